"""Order of the weights of nets of the zoo by their names in torchvision, or timm for ViT and DeiT.

Environments of benchmarks that have no netbuilder run it by path, so it must not import netbuilder.
"""

from __future__ import annotations

import string
from collections.abc import Iterable

__all__ = ["RUNNING", "has_blob", "in_zoo_order"]

# fmt: off
_SIBLINGS = [
    "stem", "trunk_output", "patch_embed", "cls_token", "dist_token", "pos_embed", "layer_scale", "features",
    "Conv2d_1a_3x3", "Conv2d_2a_3x3", "Conv2d_2b_3x3", "Conv2d_3b_1x1", "Conv2d_4a_3x3",
    *(f"Mixed_{module}" for module in ("5b", "5c", "5d", "6a", "6b", "6c", "6d", "6e", "7a", "7b", "7c")),
    "branch1x1", "branch5x5_1", "branch5x5_2", "branch3x3", *(f"branch7x7_{number}" for number in range(1, 4)),
    *(f"branch7x7dbl_{number}" for number in range(1, 6)), "branch3x3_1", "branch3x3_2",
    "branch3x3dbl_1", "branch3x3dbl_2", "branch3x3_2a", "branch3x3_2b", "branch3x3dbl_3", "branch3x3dbl_3a",
    "branch3x3dbl_3b", *(f"branch7x7x3_{number}" for number in range(1, 5)), "branch_pool",
    "conv0", "norm0", "norm1", "conv1", "bn1", "attn", "qkv", "relative_position_bias_table", "norm2", "conv2", "bn2",
    "conv3", "bn3", "downsample", "blocks", "block",
    *(f"{kind}{number}" for number in range(1, 9) for kind in ("layer", "denseblock", "transition")),
    "stage", "norm5", "norm", "squeeze", "conv", "expand1x1", "expand3x3", "reduction", "mlp", "proj", "f", "a", "b",
    "se", "c",
    "bn", "classifier", "fc", "head", "head_dist", "fc1", "fc2", "weight", "bias", "running_mean", "running_var",
]
# fmt: on
_RANK = {name: rank for rank, name in enumerate(_SIBLINGS)}
"""Parts of names -> their place among those of one module, in the order in which the zoo adds the layers."""

_BUFFERS = ("num_batches_tracked", "relative_position_index")
_AUXILIARY = ("AuxLogits.",)

RUNNING = ("running_mean", "running_var")
"""What the names of running statistics end with."""


def has_blob(name: str) -> bool:
    """Whether a net of the zoo has a blob for an array of this name: not for some buffers and auxiliary classifiers."""
    return not name.endswith(_BUFFERS) and not name.startswith(_AUXILIARY)


def in_zoo_order(names: Iterable[str]) -> list[str]:
    """Return the names of a module's parameters and running statistics in the order of those of the zoo's net.

    It says the mapping of all shared nets: names of torchvision, which timm has for ResNet and ResNeXt too, and those
    of timm's ViT and DeiT. What a net of the zoo has no blob for is left out.

    >>> in_zoo_order(["fc.weight", "layer1.0.bn1.weight", "layer1.0.conv1.weight", "bn1.num_batches_tracked"])
    ['layer1.0.conv1.weight', 'layer1.0.bn1.weight', 'fc.weight']
    """
    return sorted(filter(has_blob, names), key=_place)


def _place(name: str) -> list[tuple[int, str, int]]:
    found = []
    for part in name.split("."):
        text = part.rstrip(string.digits)
        known = part if part in _RANK else text
        found.append((_RANK.get(known, len(_RANK)), text, int(part[len(text) :] or 0)))
    return found
