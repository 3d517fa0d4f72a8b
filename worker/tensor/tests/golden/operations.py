"""Records `operations.safetensors`: results and gradients of single operations in PyTorch, in double precision."""

import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

torch.manual_seed(5)
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
out = {}


def record(case, function, ints=None, **floats):
    """Stores inputs, result, an upstream gradient and the gradient of each float input."""
    for tensor in floats.values():
        tensor.requires_grad_()
    y = function(*floats.values()) if ints is None else function(*floats.values(), ints)
    grad = torch.randn(y.shape)
    y.backward(grad)
    out[f"{case}.y"], out[f"{case}.grad"] = y.detach().clone(), grad
    for name, tensor in floats.items():
        out[f"{case}.{name}"] = tensor.detach().clone()
        out[f"{case}.d{name}"] = tensor.grad.clone()
    if ints is not None:
        out[f"{case}.ints"] = ints.clone()


def x(*shape):
    return torch.randn(shape) * 1.5 + 0.3


def batch_norm(case, shape, residual, relu, running=None):
    mean, var = torch.full((shape[1],), 0.1), torch.full((shape[1],), 0.9)
    final = torch.relu if relu else (lambda y: y)
    extra = {"residual": x(*shape)} if residual else {}

    def train(x, w, b, r=0):
        return final(F.batch_norm(x, mean, var, w, b, True, 0.1, 1e-5) + r)

    record(case, train, x=x(*shape), weight=x(shape[1]), bias=x(shape[1]), **extra)
    out[f"{case}.running_mean"], out[f"{case}.running_var"] = mean.clone(), var.clone()

    def infer(x, w, b, mean, var, r=0):
        shape = [1, -1] + [1] * (x.dim() - 2)
        m, v, w, b = (t.reshape(shape) for t in (mean, var, w, b))
        return final((x - m) / torch.sqrt(v + 1e-5) * w + b + r)

    extra = {"residual": x(*shape)} if residual else {}
    record(
        f"{case}_inference", infer, x=x(*shape), weight=x(shape[1]), bias=x(shape[1]),
        mean=x(shape[1]), variance=torch.rand(shape[1]) + 0.2, **extra,
    )


batch_norm("batch_norm_4d", (3, 3, 6, 7), False, False)
batch_norm("batch_norm_2d", (20, 19), False, True)
batch_norm("batch_norm_3d", (4, 3, 20), True, True)
record("layer_norm", lambda x, w, b: F.layer_norm(x, w.shape, w, b, 1e-5), x=x(2, 2, 70), weight=x(70), bias=x(70))
record("rms_norm", lambda x, w: F.rms_norm(x, w.shape, w, 1e-6), x=x(66, 5), weight=x(5))
record("softmax", lambda x: F.softmax(x, -1), x=4 * x(2, 2, 37))
record("log_softmax", lambda x: F.log_softmax(x, -1), x=4 * x(4, 37))
target = torch.tensor([3, 0, 32, -100, 7])
for case, smoothing in (("cross_entropy", 0.0), ("cross_entropy_smooth", 0.2)):
    loss = lambda x, t: F.cross_entropy(x, t, reduction="none", label_smoothing=smoothing, ignore_index=-100)
    record(case, loss, ints=target, x=4 * x(5, 33))
record("mse_loss", lambda x, t: F.mse_loss(x, t, reduction="none"), x=x(3, 7), target=x(3, 7))
record(
    "bce_with_logits", lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction="none"),
    x=20 * x(3, 17), target=torch.rand(3, 17),
)
record(
    "kl_div", lambda x, t: F.kl_div(x, t, reduction="none"),
    x=F.log_softmax(x(4, 6), -1), target=F.softmax(x(4, 6), -1),
)
record("embedding", lambda table, ids: F.embedding(ids, table), ints=torch.tensor([[1, 4, 1], [0, 1, 4]]), table=x(5, 3))
save_file(out, sys.argv[1])
