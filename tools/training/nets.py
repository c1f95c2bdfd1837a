"""The nets of the trainer, by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from netbuilder import zoo
from netbuilder.model import ModelHelper
from netbuilder.proto.suggestions import did_you_mean, near_or_known
from netbuilder.zoo import (
    create_alexnet,
    create_convnext,
    create_densenet,
    create_efficientnet,
    create_inception_v1,
    create_inception_v3,
    create_lenet,
    create_mlp,
    create_mobilenet_v2,
    create_mobilenet_v3,
    create_overfeat,
    create_regnet,
    create_resnet,
    create_resnet_cifar,
    create_resnext,
    create_shufflenet,
    create_shufflenet_v2,
    create_squeezenet,
    create_swin,
    create_vgg,
    create_vit,
)
from netbuilder.zoo.convnext import CONVNEXT
from netbuilder.zoo.densenet import DENSENET
from netbuilder.zoo.efficientnet import EFFICIENTNET
from netbuilder.zoo.mobilenet import MOBILENET_V2, MOBILENET_V3
from netbuilder.zoo.regnet import REGNET
from netbuilder.zoo.swin import SWIN
from netbuilder.zoo.vit import VIT

__all__ = ["NETS", "Builder", "add_net"]

Shape = tuple[int, ...]
Builder = Callable[..., Any]


def _net(create: Builder, *args: Any, image_size: bool = False, **fixed: Any) -> Builder:
    """Return the builder of a net that is created by ``create(model, "data", channels, classes, *args, ...)``.

    Args:
        image_size: whether it takes the height and width of the images.
        fixed: further arguments.
    """

    def build(model: ModelHelper, shape: Shape, classes: int, **options: Any) -> Any:
        size = {"image_size": shape[1]} if image_size else {}
        return create(model, "data", shape[0], classes, *args, **size, **fixed, **options)

    return build


def _without_modes(create: Builder) -> Builder:
    """Return a builder without the argument ``is_test``: the net is the same in training and testing."""

    def build(*args: Any, is_test: bool, **options: Any) -> Any:
        return create(*args, **options)

    return build


def _mlp(model: ModelHelper, shape: Shape, classes: int, **options: Any) -> Any:
    return create_mlp(model, "data", [math.prod(shape), 256, 128, classes], **options)


NETS: dict[str, Builder] = {
    "mlp": _without_modes(_mlp),
    "lenet": _without_modes(_net(create_lenet, image_size=True)),
    "alexnet": _net(create_alexnet, image_size=True),
    "alexnet-one-tower": _net(create_alexnet, towers=1, image_size=True),
    **{f"vgg{layers}": _net(create_vgg, layers, image_size=True) for layers in (11, 13, 16, 19)},
    **{f"vgg{layers}-bn": _net(create_vgg, layers, batch_norm=True, image_size=True) for layers in (11, 13, 16, 19)},
    "inception-v1": _net(create_inception_v1),
    "inception-v1-bn": _net(create_inception_v1, batch_norm=True),
    "inception-v3": _net(create_inception_v3, image_size=True),
    "overfeat": _net(create_overfeat, image_size=True),
    **{f"squeezenet{v}": _net(create_squeezenet, version=v, image_size=True) for v in ("1.0", "1.1")},
    **{f"shufflenet-g{groups}": _net(create_shufflenet, groups) for groups in (1, 2, 3, 4, 8)},
    **{
        f"shufflenet-v2-{width}": _net(create_shufflenet_v2, width=width, image_size=True)
        for width in ("0.5x", "1.0x", "1.5x", "2.0x")
    },
    **{
        f"shufflenet-v2-{width}-bn": _net(create_shufflenet_v2, width=width, batch_norm=True, image_size=True)
        for width in ("0.5x", "1.0x", "1.5x", "2.0x")
    },
    **{f"resnet{layers}-cifar": _net(create_resnet_cifar, layers) for layers in (8, 14, 20, 32, 44, 56, 110)},
    **{f"resnet{layers}": _net(create_resnet, layers) for layers in (18, 34, 50, 101, 152)},
    **{f"resnext{layers}": _net(create_resnext, layers, 32, 4) for layers in (50, 101)},
    **{f"mobilenet-v2-{size}": _net(create_mobilenet_v2, size) for size in MOBILENET_V2},
    **{f"mobilenet-v3-{size}": _net(create_mobilenet_v3, size) for size in MOBILENET_V3},
    **{f"efficientnet-{size}": _net(create_efficientnet, size) for size in EFFICIENTNET},
    **{f"regnet-{size}": _net(create_regnet, size) for size in REGNET},
    **{f"densenet{size}": _net(create_densenet, size) for size in DENSENET},
    **{f"convnext-{size}": _net(create_convnext, size) for size in CONVNEXT},
    **{size: _net(create_vit, size, image_size=True) for size in VIT},
    **{f"swin-{size}": _net(create_swin, size, image_size=True) for size in SWIN},
}
"""Name -> function that adds the net to a model: ``build(model, image shape, classes, is_test=, label=, no_loss=)``."""


def add_net(model: ModelHelper, name: str, shape: Shape, classes: int, *, is_test: bool, label: Any = None) -> Any:
    """Add a net that reads the blob ``data``; return (softmax, loss) if ``label`` is given, else the softmax."""
    return NETS[name](model, shape, classes, is_test=is_test, label=label)


def instead_of_net(name: str, others: Iterable[str] = ()) -> str:
    """Return the end of a message about a name that is not that of a net, from "; " on: what it is, or similar names.

    Args:
        name: as it was given.
        others: further names that may have been meant.
    """
    spelled = name.replace("_", "-")  # builders are named with underscores
    if near := did_you_mean(spelled, [each for each in NETS if each.startswith(spelled)]):
        return near
    builder = f"create_{name.replace('-', '_')}"
    if hasattr(zoo, builder):
        return f"; commands do not offer that net: in a program, netbuilder.zoo.{builder} builds it"
    if near := did_you_mean(name, [*NETS, *others]):
        return near
    return f"{near_or_known(name, NETS, 'nets')}; netbuilder-train --help lists all"
