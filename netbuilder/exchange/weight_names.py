"""Order of the weights of nets of the zoo by their names in torchvision, or timm for ViT and DeiT.

Environments of benchmarks that have no netbuilder run it by path, so it must not import netbuilder.
"""

from __future__ import annotations

import string
from collections.abc import Iterable

__all__ = ["NOT_READ", "RUNNING", "in_zoo_order"]

# fmt: off
_SIBLINGS = [
    "stem", "trunk_output", "patch_embed", "cls_token", "dist_token", "pos_embed", "layer_scale", "features",
    "conv0", "norm0", "norm1", "conv1", "bn1", "attn", "qkv", "relative_position_bias_table", "norm2", "conv2", "bn2",
    "conv3", "bn3", "downsample", "blocks", "block",
    *(f"{kind}{number}" for number in range(1, 9) for kind in ("layer", "denseblock", "transition")),
    "norm5", "norm", "squeeze", "conv", "expand1x1", "expand3x3", "reduction", "mlp", "proj", "f", "a", "b", "se", "c",
    "classifier", "fc", "head", "head_dist", "fc1", "fc2", "weight", "bias", "running_mean", "running_var",
]
# fmt: on
_RANK = {name: rank for rank, name in enumerate(_SIBLINGS)}
"""Parts of names -> their place among those of one module, in the order in which the zoo adds the layers."""

NOT_READ = ("num_batches_tracked", "relative_position_index")
"""What the names of buffers end with for which a net of the zoo has no blob."""

RUNNING = ("running_mean", "running_var")
"""What the names of running statistics end with."""


def in_zoo_order(names: Iterable[str]) -> list[str]:
    """Return the names of a module's parameters and running statistics in the order of those of the zoo's net.

    It says the mapping of all shared nets: names of torchvision, which timm has for ResNet and ResNeXt too, and those
    of timm's ViT and DeiT. Buffers that a net of the zoo has no blob for are left out.

    >>> in_zoo_order(["fc.weight", "layer1.0.bn1.weight", "layer1.0.conv1.weight", "bn1.num_batches_tracked"])
    ['layer1.0.conv1.weight', 'layer1.0.bn1.weight', 'fc.weight']
    """
    return sorted((name for name in names if not name.endswith(NOT_READ)), key=_place)


def _place(name: str) -> list[tuple[int, str, int]]:
    found = []
    for part in name.split("."):
        text = part.rstrip(string.digits)
        known = part if part in _RANK else text
        found.append((_RANK.get(known, len(_RANK)), text, int(part[len(text) :] or 0)))
    return found
