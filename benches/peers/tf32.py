"""TF32 arithmetic in PyTorch on a CPU: inputs of matrix products and convolutions keep 10 bits of mantissa.

    with Tf32("nearest"):     # to nearest even; or "truncate", towards zero
        network(inputs).sum().backward()

The mode applies below autograd, so that products of the backward pass are included. Sums stay in f32, as on tensor
cores. Fused attention is not intercepted; use separate products.
"""
import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Positions of the products' inputs among the arguments.
INPUTS = {
    "mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "convolution": (0, 1), "convolution_backward": (0, 1, 2),
}


def rounded(tensor, kind):
    bits = tensor.contiguous().view(torch.int32)
    if kind == "nearest":
        # Half a unit in the last of the 10 bits, and less for an even result.
        bits = bits + 0xFFF + (bits >> 13 & 1)
    return (bits & ~0x1FFF).view(torch.float32)


class Tf32(TorchDispatchMode):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        at = INPUTS.get(function.overloadpacket.__name__, ())
        args = [rounded(arg, self.kind) if i in at else arg for i, arg in enumerate(args)]
        return function(*args, **(kwargs or {}))
