"""Weights and logits of torchvision's ResNets, to compare with those of examples/image_folder.

    python torchvision_resnet.py NETWORK WIDTH CLASSES SIDE FILE

writes random weights with statistics of BatchNorm to FILE (.pth or .safetensors), and FILE.json with the logits of two
pictures. A width of 64 is torchvision's; a smaller one makes small files for tests.
"""
import json
import sys
from pathlib import Path

import torch
import torchvision
from torch import nn

name, width, classes, side, file = sys.argv[1], *map(int, sys.argv[2:5]), Path(sys.argv[5])
torch.manual_seed(1)
net = getattr(torchvision.models, name)(num_classes=classes)


def narrowed(channels):
    """64 channels become `width`; the three of a picture and the classes are kept."""
    return channels * width // 64 if channels % 64 == 0 else channels


for path, layer in list(net.named_modules()):
    if isinstance(layer, nn.Conv2d):
        channels = narrowed(layer.in_channels), narrowed(layer.out_channels)
        layer = nn.Conv2d(*channels, layer.kernel_size, layer.stride, layer.padding, bias=False)
    elif isinstance(layer, nn.BatchNorm2d):
        layer = nn.BatchNorm2d(narrowed(layer.num_features))
        for values in layer.bias.data, layer.running_mean:
            values.normal_(0, 0.1)
        for values in layer.weight.data, layer.running_var:
            values.uniform_(0.5, 1.5)
    elif isinstance(layer, nn.Linear):
        layer = nn.Linear(narrowed(layer.in_features), classes)
    else:
        continue
    parent, _, child = path.rpartition(".")
    setattr(net.get_submodule(parent), child, layer)

net.eval()
places = torch.arange(2 * 3 * side * side)
pictures = ((places * 7919 + places // 997) % 256).float() / 255 - 0.5
with torch.no_grad():
    logits = net(pictures.reshape(2, 3, side, side))
if file.suffix == ".pth":
    torch.save(net.state_dict(), file)
else:
    from safetensors.torch import save_file
    save_file(net.state_dict(), file, {"format": "pt"})
facts = {"network": name, "width": width, "side": side, "logits": logits.tolist()}
file.with_name(file.name + ".json").write_text(json.dumps(facts) + "\n")
