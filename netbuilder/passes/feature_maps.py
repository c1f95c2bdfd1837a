"""The feature maps of a net of images: values between its blocks, for nets that are built on top of it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from netbuilder.graph.blob import blob_name
from netbuilder.graph.message import message_of
from netbuilder.graph.passages import values_left
from netbuilder.graph.shapes import infer_shapes
from netbuilder.graph.versions import EXTERNAL, Versions, number_versions
from netbuilder.proto import NetError

__all__ = ["FeatureMap", "feature_maps"]


class FeatureMap(NamedTuple):
    """A blob with features of an image.

    Args:
        blob: its name.
        channels, height, width: of one image.
    """

    blob: str
    channels: int
    height: int
    width: int


def feature_maps(
    nets: Sequence[Any], inputs: Mapping[Any, Any], *, every: bool = False, order: str = "NCHW"
) -> list[FeatureMap]:
    """Return the last feature map of each resolution, the finest first, for ``extract_predictor``.

    A feature map is a value of the image's proportions through which all data pass: what a residual block adds up, or a
    layer outside of blocks, such as the widened maps of MobileNet's blocks without a shortcut.

    Args:
        nets: init net and net, as for ``infer_shapes``; the maps are those of the last one's forward pass.
        inputs: shape of each input, the batch first.
        every: all maps, in the order of the net.
        order: of the extents of the maps, "NCHW" or "NHWC", as Swin has them.

    Raises:
        NetError: there is none.

    >>> from netbuilder.model import ModelHelper, brew
    >>> model = ModelHelper("maps")
    >>> fine = brew.conv(model, "data", "fine", 3, 8, 3, pad=1)
    >>> coarse = brew.conv(model, brew.max_pool(model, fine, "pool", kernel=2, stride=2), "coarse", 8, 16, 3, pad=1)
    >>> for each in feature_maps([model.param_init_net, model.net], {"data": (1, 3, 32, 32)}): print(*each)
    fine 8 32 32
    coarse 16 16 16
    """
    shapes = {blob_name(blob): shape for blob, shape in inputs.items()}
    known = infer_shapes(nets, shapes).shapes
    net = message_of(nets[-1])
    versions = number_versions(itertools.takewhile(lambda op: not op.is_gradient_op, net.op))
    found = []
    for index, live in values_left(versions, _operators_on(versions, shapes)):
        passed = live or versions.outputs[index]  # nothing is read later: the end
        if len(passed) != 1:
            continue
        (value,) = passed
        shape = known.get(name := versions.names[value], ())
        if versions.last[name] == value and len(shape) == 4:
            channels, height, width = shape[1:] if order == "NCHW" else (shape[3], *shape[1:3])
            if any(_in_proportion((height, width), tuple(image)) for image in shapes.values()):
                found.append(FeatureMap(name, channels, height, width))
    if not found:
        raise NetError(
            f"net {net.name!r} has no map of images through which all data pass from {sorted(shapes)}; name blobs of "
            "your own in extract_predictor(outputs=...)"
        )
    if every:
        return list(dict.fromkeys(found))
    last = {(each.height, each.width): each for each in found}
    return sorted((each for sides, each in last.items() if sides > (1, 1)), key=lambda each: -each.height * each.width)


def _in_proportion(sides: tuple[int, int], image: tuple[int, ...]) -> bool:
    """Whether sides are those of an image, (N, C, H, W) or (N, H, W, C), over one number, but for a pixel."""
    pairs = [image[2:], image[1:3]] if len(image) == 4 else []
    return any(abs(sides[0] * width / height - sides[1]) <= 1 for height, width in pairs)


def _operators_on(versions: Versions, names: Collection[str]) -> list[int]:
    """Return the operators that compute something from inputs of these names."""
    data = {value for value, name in enumerate(versions.names)
            if name in names and versions.writers[value] == EXTERNAL}  # fmt: skip
    found = []
    for index, (read, written) in enumerate(zip(versions.inputs, versions.outputs)):
        if not data.isdisjoint(read):
            found.append(index)
            data.update(written)
    return found
