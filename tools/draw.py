"""Draw a net as an HTML page: ``netbuilder-draw NET -o net.html``.

NET is a net in a file, a folder with a predictor, an ONNX model, or the name of a net of the zoo.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from netbuilder.graph.drawing.drawing import Drawing, drawing_of
from netbuilder.graph.drawing.page import page
from netbuilder.model import ModelHelper
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.optimizers import build_sgd
from netbuilder.proto import ArgumentError, NetDef, ShapeError
from netbuilder.proto.errors import counted
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.suggestions import did_you_mean
from netbuilder.proto.whole_file import write_text
from netbuilder.tools.common_options import (
    blob_spec,
    check_outputs,
    classes_option,
    count,
    image_size_option,
    input_option,
)
from netbuilder.tools.options import OptionsParser, argument, option, switch
from netbuilder.tools.profiling.zoo import ZooOptions, image_shape, no_such_net
from netbuilder.tools.reporting import reporting
from netbuilder.tools.stored_nets import NET_HELP, FileNet, read_stored
from netbuilder.tools.training.nets import NETS, add_net

__all__ = ["main"]

_SHOWN = 6  # number of blob names in a message


@reporting("netbuilder-draw")
def main(arguments: Sequence[str] | None = None) -> int:
    """Draw a net as the command line says; return the exit status."""
    options = OptionsParser(_Options, prog="netbuilder-draw").parse(arguments)
    check_outputs(options, "output")
    stored = _load(options)
    drawing = drawing_of(
        stored.net, stored.specs, stored.init, columns=options.columns, by_scope=options.by_scope or None
    )
    if options.by_scope and not drawing.scopes:
        raise ArgumentError(
            f"--by-scope: no operators of net {drawing.name!r} share a name scope, such as those that are added under "
            "NameScope('block1'); leave the option out"
        )
    if drawing.missing and not options.without_shapes:
        raise ShapeError(_question(drawing, stored.init is not None))
    if options.by_bytes and not any(blob.nbytes for blob in drawing.blobs):
        raise ShapeError(
            f"--by-bytes: no shape of net {drawing.name!r} is known, so no blob has a size; "
            + (f"its shapes contradict each other: {drawing.problem}" if drawing.problem else "give --input")
        )
    write_text(options.output, page(drawing, by_bytes=options.by_bytes))
    if drawing.problem:
        print(
            f"netbuilder-draw: drawn without shapes, since they contradict each other: {drawing.problem}",
            file=sys.stderr,
        )
    known, lanes = sum(bool(blob.shape) for blob in drawing.blobs), len(drawing.lanes)
    hidden = sum(len(fold.others) for fold in drawing.folds)
    folded = f", {hidden} folded as repeats" if hidden else ""
    if drawing.by_scope:
        folded = f", folded by {counted(len(drawing.scopes), 'name scope')}"
    boxes = "" if len(drawing.boxes) == drawing.operators else f" as {counted(len(drawing.boxes), 'box', 'boxes')}"
    print(
        f"written: {options.output}: {counted(drawing.operators, 'operator')} on {counted(lanes, 'device')}{boxes}"
        f"{folded}; shapes of {known} of {len(drawing.blobs)} blobs"
    )
    return 0


def _require_known(net: NetDef, names: Iterable[str]) -> None:
    """Raise ArgumentError if one of the names given by ``--input`` is not a blob of the net."""
    blobs = {*net.external_input, *(blob for op in net.op for blob in (*op.input, *op.output))}
    for name in names:
        if name not in blobs:
            raise ArgumentError(f"--input: net {net.name!r} has no blob {name!r}{did_you_mean(name, sorted(blobs))}")


def _question(drawing: Drawing, has_init: bool) -> str:
    """Return a message that asks for the missing shapes."""
    shown = drawing.missing[:_SHOWN]
    more = len(drawing.missing) - len(shown)
    names = ", ".join(map(repr, shown)) + (f" and {more} more" if more else "")
    examples = " ".join(f"--input {name}=SHAPE" for name in shown[:2])
    init = "" if has_init else ", --init FILE if an init net makes them,"
    return (
        f"the shapes of {names}, which net {drawing.name!r} reads, are not known; give {examples} "
        f"(such as {shown[0]}=32x3x224x224, or =32:int32 for whole numbers){init} or --without-shapes"
    )


def _input(text: str) -> tuple[str, Any]:
    """Return a name and a shape, or a spec if a type is given; otherwise the operators that read the blob decide."""
    name, spec = blob_spec(text)
    return name, spec if ":" in text else spec.shape


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Draw a net in one HTML page: operators in layers, blobs with their shapes, a search field."""

    net: str = argument(f"{NET_HELP}, or the name of a net of the zoo")
    output: str = option("the page to write", required=True, short="-o", metavar="FILE")
    init: str | None = option("init net that makes the parameters, for their shapes", metavar="FILE")
    input: tuple[tuple[str, TensorSpec], ...] = input_option(
        "shape of a blob, such as data=32x3x224x224 or label=32:int32", type=_input
    )
    without_shapes: bool = switch("draw the net even if shapes of inputs are missing")
    by_bytes: bool = switch(
        "color each operator by the bytes of the blobs that it writes; a button of the page changes the colors"
    )
    by_scope: bool = switch(
        "fold name scopes, such as tower/block1, also where the net is small; a button of the page does, too"
    )
    columns: bool = switch("draw each device in columns of its own; otherwise replicas are drawn once")
    batch: int = option("samples in the batch", type=count, default=32, group="nets of the zoo")
    image_size: int | None = image_size_option()
    classes: int = classes_option()
    inference: bool = switch("draw the forward pass in test mode instead of a training step")


def _load(options: _Options) -> FileNet:
    """Return the net with its init net, and the known specs of its inputs."""
    if not Path(options.net).exists():
        if options.net in NETS:
            return _zoo(options)
        raise no_such_net(options.net)
    given = dict(options.input)
    stored = read_stored(options.net, options.init, given)
    _require_known(stored.net, given)
    return stored.given(given)


def _zoo(options: _Options) -> FileNet:
    shape = image_shape(options.net, ZooOptions(image_size=options.image_size))
    model = ModelHelper(name=options.net, arg_scope={"order": "NCHW"})
    label = None if options.inference else "label"
    found = add_net(model, options.net, shape, options.classes, is_test=options.inference, label=label)
    if not options.inference:
        model.AddGradientOperators([found[1]])
        build_sgd(model, 0.01, momentum=0.9)
    specs: dict[str, Any] = {"data": (options.batch, *shape)}
    if label:
        specs[label] = (options.batch,)
    return FileNet(model.net.Proto(), model.param_init_net.Proto(), specs, ())


if __name__ == "__main__":
    sys.exit(main())
