"""Records what torchvision and Hugging Face compute, for the tests beside it.

    python record.py    with torch 2.15.0, torchvision 0.29.2, transformers 5.24.0, safetensors, numpy; on CPU

Tiny models: `NAME.safetensors` is the state dict as the library names it, `NAME_run.safetensors` the inputs, and in
f64 and f32 the logits, the loss (mean cross entropy), every gradient, and batch-norm statistics after the step.
ResNets are too large for that: their weights come from the counter-based generator of `lockstep_tensor::init`, and
`resnet.json` holds logits and, of every gradient and buffer, its product with a vector of that generator and its
greatest element. `names.json`: names and shapes of whole state dicts at the published sizes.
"""

import json
import math
import pathlib

import numpy as np
import torch
import torchvision
import transformers
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

HERE = pathlib.Path(__file__).parent
torch.set_num_threads(1)
MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15


def mix(z):
    z = ((z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)).astype(np.uint64)
    z = ((z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)).astype(np.uint64)
    return z ^ (z >> np.uint64(31))


def mix1(z):
    return int(mix(np.array([z & MASK], dtype=np.uint64))[0])


def uniform(seed, name, count):
    """`init::uniform` with bound 1, in f64."""
    hashed = 0xCBF29CE484222325
    for byte in name.encode():
        hashed = ((hashed ^ byte) * 0x100000001B3) & MASK
    key = mix1((mix1(seed + GAMMA) ^ hashed) + GAMMA)
    index = np.arange(1, count + 1, dtype=np.uint64)
    bits = mix(np.uint64(key) + index * np.uint64(GAMMA))
    return 2.0 * ((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53) - 1.0


def randomise(module, seed):
    """Every parameter and running statistic away from its constants, so that a swap would show."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if not tensor.is_floating_point():
                continue
            noise = torch.randn_like(tensor)
            if name.endswith("running_var"):
                tensor.copy_(1 + 0.3 * noise.abs())
            elif name.endswith(("running_mean", "bias")) or tensor.dim() == 0:
                tensor.copy_(0.1 * noise)
            elif tensor.dim() == 1:
                tensor.copy_(1 + 0.2 * noise)
            else:
                fan = max(tensor.shape[-1], tensor[0].numel() if tensor.dim() > 2 else 1)
                tensor.copy_(noise / math.sqrt(fan))


def loss_of(logits, target):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1))


def step(module, call, target, dtype):
    """Evaluation logits, then one forward and backward in training mode."""
    module = module.to(dtype)
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    module.eval()
    with torch.no_grad():
        out = {"eval_logits": call(module, dtype)}
    module.train()
    module.zero_grad()
    logits = call(module, dtype)
    loss = loss_of(logits, target)
    loss.backward()
    out |= {"logits": logits.detach(), "loss": loss.detach()}
    for name, parameter in module.named_parameters():
        out[f"grad.{name}"] = parameter.grad
    for name, buffer in module.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            out[f"after.{name}"] = buffer.clone()
    module.load_state_dict(state)
    return out


def runs(module, call, target):
    found = {}
    for label, dtype in (("f32", torch.float32), ("f64", torch.float64)):
        for name, tensor in step(module, call, target, dtype).items():
            found[f"{label}.{name}"] = tensor.detach().clone().contiguous()
    module.to(torch.float32)
    return found


def record(name, module, call, target, inputs, drop=()):
    state = {k: v.clone().contiguous() for k, v in module.state_dict().items() if k not in drop}
    save_file(state, HERE / f"{name}.safetensors")
    found = runs(module, call, target)
    for key, value in inputs.items():
        found[f"input.{key}"] = value
    found["target"] = target
    save_file(found, HERE / f"{name}_run.safetensors")
    print(name, float(found["f64.loss"]))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(5, 7), nn.Linear(7, 6), nn.Linear(6, 4)])

    def forward(self, x):
        for index, layer in enumerate(self.layers):
            x = layer(x if index == 0 else F.silu(x))
        return x


def mlp():
    module = Mlp()
    randomise(module, 1)
    x = torch.randn(6, 5)
    record("mlp", module, lambda m, d: m(x.to(d)), torch.randint(0, 4, (6,)), {"x": x})


def layers():
    module = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(6, 8, 3, stride=1, padding=2, dilation=2, groups=2),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Conv2d(8, 8, 1),
        nn.ReLU(),
        nn.BatchNorm2d(8, eps=1e-3, momentum=0.25),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.LayerNorm(32),
        nn.Linear(32, 12),
        nn.GELU(approximate="tanh"),
        nn.RMSNorm(12, eps=1e-6),
        nn.Linear(12, 10, bias=False),
        nn.SiLU(),
        nn.BatchNorm1d(10),
        nn.Linear(10, 9),
        nn.Tanh(),
        nn.Linear(9, 8),
        nn.Sigmoid(),
        nn.Linear(8, 3),
        nn.ReLU(),
    )
    randomise(module, 2)
    x = torch.randn(5, 2, 9, 11)
    record("layers", module, lambda m, d: m(x.to(d)), torch.randint(0, 3, (5,)), {"x": x})


def gpt2(name, tie):
    config = transformers.GPT2Config(
        vocab_size=17, n_positions=12, n_embd=16, n_layer=2, n_head=2, n_inner=24,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=tie,
        attn_implementation="eager", bos_token_id=0, eos_token_id=0,
    )
    module = transformers.GPT2LMHeadModel(config)
    randomise(module, 3)
    ids, target = torch.randint(0, 17, (3, 9)), torch.randint(0, 17, (3, 9))
    call = lambda m, d: m(input_ids=ids, use_cache=False).logits
    record(name, module, call, target, {"input_ids": ids}, drop=("lm_head.weight",) if tie else ())


def bert():
    config = transformers.BertConfig(
        vocab_size=19, max_position_embeddings=12, type_vocab_size=2, hidden_size=16, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=24, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        num_labels=3, attn_implementation="eager",
    )
    module = transformers.BertForSequenceClassification(config)
    randomise(module, 4)
    ids, target = torch.randint(1, 19, (4, 7)), torch.randint(0, 3, (4,))
    mask, kinds = torch.ones(4, 7, dtype=torch.long), torch.zeros(4, 7, dtype=torch.long)
    mask[1, 5:] = 0
    mask[3, 2:] = 0
    kinds[:, 4:] = 1
    whole = lambda m, d: m(input_ids=ids, attention_mask=mask, token_type_ids=kinds).logits
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": kinds}
    record("bert", module, whole, target, inputs)
    plain = lambda m, d: m(input_ids=ids).logits
    found = {"f32.logits": plain(module.float().eval(), None), "f64.logits": plain(module.double().eval(), None)}
    save_file({k: v.detach() for k, v in found.items()}, HERE / "bert_plain_run.safetensors")


def vit():
    module = torchvision.models.VisionTransformer(
        image_size=8, patch_size=4, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=24, num_classes=5)
    randomise(module, 5)
    x = torch.randn(3, 3, 8, 8)
    record("vit", module, lambda m, d: m(x.to(d)), torch.randint(0, 5, (3,)), {"x": x})


def generated(name, tensor):
    u = uniform(7, name, tensor.numel()).reshape(tensor.shape)
    if name.endswith("running_var") or (tensor.dim() == 1 and name.endswith("weight")):
        values = 1.0 + 0.2 * u
    elif tensor.dim() > 1:
        values = u * math.sqrt(6.0 / tensor[0].numel())
    else:
        values = 0.2 * u
    return torch.from_numpy(np.ascontiguousarray(values)).to(torch.float32)


def resnet(name, stem, size, batch, classes):
    module = getattr(torchvision.models, name)(num_classes=classes)
    if stem == "small":
        module.conv1 = nn.Conv2d(3, 64, 3, stride=1, padding=1, bias=False)
        module.maxpool = nn.Identity()
    with torch.no_grad():
        for key, tensor in module.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(generated(key, tensor))
    x = torch.from_numpy(uniform(9, "x", batch * 3 * size * size).reshape(batch, 3, size, size)).float()
    target = torch.arange(batch) % classes
    found = runs(module, lambda m, d: m(x.to(d)), target)
    out = {"arch": name, "stem": stem, "input": [3, size, size], "batch": batch, "classes": classes}
    for label in ("f32", "f64"):
        part = {}
        for key, tensor in found.items():
            which, _, rest = key.partition(".")
            if which != label:
                continue
            values = tensor.double().reshape(-1)
            if rest.startswith(("grad.", "after.")):
                along = torch.from_numpy(uniform(8, rest.partition(".")[2], values.numel()))
                part[rest] = [float((values * along).sum()), float(values.abs().max()), float(values.norm())]
            else:
                part[rest] = values.tolist()
        out[label] = part
    print(name, stem, out["f64"]["loss"])
    return out


def names():
    with torch.device("meta"):
        models = {
            "resnet18": torchvision.models.resnet18(), "resnet34": torchvision.models.resnet34(),
            "resnet50": torchvision.models.resnet50(), "vit": torchvision.models.vit_b_16(),
            "gpt2": transformers.GPT2LMHeadModel(transformers.GPT2Config()),
            "bert": transformers.BertForSequenceClassification(transformers.BertConfig(num_labels=2)),
        }
    lists = {arch: {k: list(v.shape) for k, v in model.state_dict().items()} for arch, model in models.items()}
    (HERE / "names.json").write_text(json.dumps(lists, separators=(",", ":")).replace("},", "},\n"))


if __name__ == "__main__":
    names()
    mlp()
    layers()
    gpt2("gpt2", True)
    gpt2("gpt2_untied", False)
    bert()
    vit()
    cases = [("resnet18", "small", 16, 3, 5), ("resnet18", "imagenet", 64, 3, 5),
             ("resnet34", "small", 16, 3, 4), ("resnet50", "imagenet", 64, 3, 4)]
    text = json.dumps([resnet(*case) for case in cases], separators=(",", ":"))
    (HERE / "resnet.json").write_text(text.replace(",\"grad", ",\n\"grad"))
