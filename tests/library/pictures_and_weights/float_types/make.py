"""Writes the fixtures of tests/library/pictures_and_weights/float_types.rs, with torch 2.15 and safetensors 0.8, into this folder.

The MNIST network's weights are 0 but for the first sixteen elements of each tensor, whose values all types
hold exactly; the files compress to a few kilobytes.
"""
import gzip, io, pathlib, torch
from safetensors.torch import save

SHAPES = {"conv1.weight": (32, 1, 3, 3), "conv1.bias": (32,), "conv2.weight": (64, 32, 3, 3), "conv2.bias": (64,),
          "fc1.weight": (128, 9216), "fc1.bias": (128,), "fc2.weight": (10, 128), "fc2.bias": (10,)}
state = {}
for index, (name, shape) in enumerate(SHAPES.items()):
    tensor = torch.zeros(shape)
    count = min(16, tensor.numel())
    tensor.view(-1)[:count] = (torch.arange(count) + 16 * index) / 64 - 1
    state[name] = tensor


def write(name, data):
    (pathlib.Path(__file__).parent / (name + ".gz")).write_bytes(gzip.compress(data, 9, mtime=0))


def torch_file(tensors, **options):
    file = io.BytesIO()
    torch.save(tensors, file, **options)
    return file.getvalue()


for name, dtype in {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}.items():
    tensors = {key: value.to(dtype) for key, value in state.items()}
    write(name + ".safetensors", save(tensors))
    write(name + ".pt", torch_file(tensors))
write("f16_legacy.pt", torch_file({key: value.half() for key, value in state.items()}, _use_new_zipfile_serialization=False))
