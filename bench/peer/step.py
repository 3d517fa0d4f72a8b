"""One training step in PyTorch, timed on request: the peer of `cargo xtask bench step`.

  python step.py --case mlp-128 --threads 1

Cases and the protocol on standard input and output are described in bench/README.md.
"""

import argparse
import json
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

WARM_UP_STEPS = 3

WIDTH, HEADS, LAYERS, CONTEXT, VOCABULARY = 256, 4, 4, 128, 512


def mlp():
    return nn.Sequential(
        nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 14 * 14, 10),
    )


class BasicBlock(nn.Module):
    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        blocks, channels_in = [], 64
        for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [BasicBlock(channels_in, channels, stride), BasicBlock(channels, channels, 1)]
            channels_in = channels
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(512, 10)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Attention(nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.causal = causal
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, HEADS, width // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    """A transformer layer: normalised before each part (causal) or after it."""

    def __init__(self, pre_norm):
        super().__init__()
        self.pre_norm = pre_norm
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(causal=pre_norm)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        if self.pre_norm:
            x = x + self.attention(self.norm1(x))
            return x + self.mlp(self.norm2(x))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.Sequential(*[Layer(pre_norm=True) for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        return self.head(self.norm(self.layers(x))).flatten(0, 1)


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.types = nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.Sequential(*[Layer(pre_norm=False) for _ in range(LAYERS)])
        self.pooler = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        x = self.norm(x + self.types(torch.zeros_like(ids)))
        return self.head(torch.tanh(self.pooler(self.layers(x)[:, 0])))


def images(batch, *shape):
    return torch.randn(batch, *shape), torch.arange(batch) % 10


def tokens(batch):
    ids = torch.randint(0, VOCABULARY, (batch, CONTEXT + 1))
    return ids[:, :-1].contiguous(), ids[:, 1:].reshape(-1)


def sentences(batch):
    return tokens(batch)[0], torch.arange(batch) % 2


def sgd(momentum):
    return lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=momentum)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=3e-4, weight_decay=0.01, fused=True)


CASES = {
    "mlp-128": (mlp, lambda: images(128, 784), sgd(0.0)),
    "mlp-8": (mlp, lambda: images(8, 784), sgd(0.0)),
    "cnn-128": (cnn, lambda: images(128, 1, 28, 28), sgd(0.0)),
    "resnet18-32": (ResNet18, lambda: images(32, 3, 32, 32), sgd(0.9)),
    "gpt-8": (Gpt, lambda: tokens(8), adamw),
    "bert-8": (Bert, lambda: sentences(8), adamw),
}


def training_step(name):
    """A function that does one step of the case and returns its loss."""
    make_model, make_batch, make_optimizer = CASES[name]
    model = make_model()
    inputs, labels = make_batch()
    optimizer = make_optimizer(model.parameters())

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def matrix_product():
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    out = torch.empty(1024, 1024)
    return lambda: torch.mm(a, b, out=out)


def timed(step):
    start = time.perf_counter()
    step()
    return (time.perf_counter() - start) * 1e3


def say(answer):
    print(json.dumps(answer), flush=True)


def peak_rss_mib():
    """Of this program alone: the kernel's ru_maxrss would count what ran before it in the process, too."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", required=True, choices=[*CASES, "gemm-1024"])
    parser.add_argument("--threads", type=int, required=True)
    asked = parser.parse_args()
    if asked.threads < 1:
        parser.error(f"--threads is {asked.threads}, expected 1 or more")

    torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    step = matrix_product() if asked.case == "gemm-1024" else training_step(asked.case)
    for _ in range(WARM_UP_STEPS):
        step()
    say({"case": asked.case, "threads": asked.threads, "name": f"torch {torch.__version__.split('+')[0]}"})

    for line in sys.stdin:
        command = json.loads(line)
        if (command["case"], command["threads"]) != (asked.case, asked.threads):
            sys.exit(f"asked for {line.strip()}, but this is {asked.case} on {asked.threads} threads")
        ms = [timed(step) for _ in range(command["rounds"])]
        peak = peak_rss_mib()
        say({"case": asked.case, "ms": ms, "peak_rss_mib": peak})


if __name__ == "__main__":
    main()
