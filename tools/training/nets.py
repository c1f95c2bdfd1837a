"""The nets of the trainer, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from netbuilder.model import ModelHelper
from netbuilder.zoo import (
    create_alexnet,
    create_inception_v1,
    create_inception_v3,
    create_lenet,
    create_mlp,
    create_overfeat,
    create_resnet,
    create_resnet_cifar,
    create_resnext,
    create_shufflenet,
    create_shufflenet_v2,
    create_squeezenet,
    create_vgg,
)

__all__ = ["NETS", "add_net"]

Shape = tuple[int, ...]
Builder = Callable[..., Any]


def _mlp(model: ModelHelper, shape: Shape, classes: int, **options: Any) -> Any:
    options.pop("is_test")  # the net is the same in training and testing
    size = 1
    for extent in shape:
        size *= extent
    return create_mlp(model, "data", [size, 256, 128, classes], **options)


def _lenet(model: ModelHelper, shape: Shape, classes: int, **options: Any) -> Any:
    options.pop("is_test")
    return create_lenet(model, "data", shape[0], classes, image_size=shape[1], **options)


def _alexnet(model: ModelHelper, shape: Shape, classes: int, **options: Any) -> Any:
    return create_alexnet(model, "data", shape[0], classes, image_size=shape[1], **options)


def _vgg(layers: int, batch_norm: bool) -> Builder:
    def build(model: ModelHelper, shape: Shape, classes: int, **options: Any) -> Any:
        return create_vgg(
            model, "data", shape[0], classes, layers, batch_norm=batch_norm, image_size=shape[1], **options
        )

    return build


def _inception_v1(batch_norm: bool) -> Builder:
    def build(model: ModelHelper, shape: Shape, classes: int, **options: Any) -> Any:
        return create_inception_v1(model, "data", shape[0], classes, batch_norm=batch_norm, **options)

    return build


def _inception_v3(model: ModelHelper, shape: Shape, classes: int, **options: Any) -> Any:
    return create_inception_v3(model, "data", shape[0], classes, image_size=shape[1], **options)


def _overfeat(model: ModelHelper, shape: Shape, classes: int, **options: Any) -> Any:
    return create_overfeat(model, "data", shape[0], classes, image_size=shape[1], **options)


def _squeezenet(version: str) -> Builder:
    def build(model: ModelHelper, shape: Shape, classes: int, **options: Any) -> Any:
        return create_squeezenet(model, "data", shape[0], classes, version=version, image_size=shape[1], **options)

    return build


def _shufflenet(groups: int) -> Builder:
    def build(model: ModelHelper, shape: Shape, classes: int, **options: Any) -> Any:
        return create_shufflenet(model, "data", shape[0], classes, groups, **options)

    return build


def _shufflenet_v2(width: str) -> Builder:
    def build(model: ModelHelper, shape: Shape, classes: int, **options: Any) -> Any:
        return create_shufflenet_v2(model, "data", shape[0], classes, width=width, image_size=shape[1], **options)

    return build


def _cifar(layers: int) -> Builder:
    def build(model: ModelHelper, shape: Shape, classes: int, **options: Any) -> Any:
        return create_resnet_cifar(model, "data", shape[0], classes, layers, **options)

    return build


def _resnet(layers: int) -> Builder:
    def build(model: ModelHelper, shape: Shape, classes: int, **options: Any) -> Any:
        return create_resnet(model, "data", shape[0], classes, layers, **options)

    return build


def _resnext(layers: int, groups: int, width: int) -> Builder:
    def build(model: ModelHelper, shape: Shape, classes: int, **options: Any) -> Any:
        return create_resnext(model, "data", shape[0], classes, layers, groups, width, **options)

    return build


NETS: dict[str, Builder] = {
    "mlp": _mlp,
    "lenet": _lenet,
    "alexnet": _alexnet,
    **{f"vgg{layers}": _vgg(layers, False) for layers in (11, 13, 16, 19)},
    **{f"vgg{layers}-bn": _vgg(layers, True) for layers in (11, 13, 16, 19)},
    "inception-v1": _inception_v1(False),
    "inception-v1-bn": _inception_v1(True),
    "inception-v3": _inception_v3,
    "overfeat": _overfeat,
    "squeezenet1.0": _squeezenet("1.0"),
    "squeezenet1.1": _squeezenet("1.1"),
    **{f"shufflenet-g{groups}": _shufflenet(groups) for groups in (1, 2, 3, 4, 8)},
    **{f"shufflenet-v2-{width}": _shufflenet_v2(width) for width in ("0.5x", "1.0x", "1.5x", "2.0x")},
    **{f"resnet{layers}-cifar": _cifar(layers) for layers in (8, 14, 20, 32, 44, 56, 110)},
    **{f"resnet{layers}": _resnet(layers) for layers in (18, 34, 50, 101, 152)},
    "resnext50": _resnext(50, 32, 4),
    "resnext101": _resnext(101, 32, 4),
}
"""Name -> function that adds the net to a model: ``build(model, image shape, classes, is_test=, label=, no_loss=)``."""


def add_net(model: ModelHelper, name: str, shape: Shape, classes: int, *, is_test: bool, label: Any = None) -> Any:
    """Add a net that reads the blob ``data``; return (softmax, loss) if ``label`` is given, else the softmax."""
    return NETS[name](model, shape, classes, is_test=is_test, label=label)
