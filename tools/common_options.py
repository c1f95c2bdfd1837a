"""Options that several commands share: devices, limits, trust, optimizations, counts, and shapes of blobs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from netbuilder.data.image_size import MAX_PIXELS
from netbuilder.graph.memory_budget import parse_budget
from netbuilder.graph.observability import KINDS
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.passes.processes import AUTO
from netbuilder.proto import PROTO_CPU, DeviceOption, NetError
from netbuilder.proto.arguments import make_device_option
from netbuilder.proto.os_errors import error_text
from netbuilder.proto.whole_file import check_place
from netbuilder.runtime.plan.optimizations import ALL, GROUPS, check_without
from netbuilder.tools.options import option, switch
from netbuilder.tools.parser import count

__all__ = [
    "IGNORE_ORIENTATION",
    "OBSERVABLE",
    "blob_spec",
    "budget",
    "check_outputs",
    "classes_option",
    "count",
    "cpu_device",
    "cpu_option",
    "image_size_option",
    "input_option",
    "max_pixels_option",
    "size",
    "size_or_auto",
    "split_problem",
    "trusted_option",
    "upright_option",
    "without_option",
]

IGNORE_ORIENTATION = "--ignore-orientation"

OBSERVABLE = KINDS
"""Kinds of values that can be fetched after a run, see ``Workspace.create_net``."""

T = TypeVar("T")
_TYPES = ("float32", "float64", "float16", "int32", "int64", "uint8", "bool")


def cpu_option(**details: Any) -> Any:
    """Return the field ``cpu`` of commands that run a predictor."""
    return switch("run on the CPU, whatever devices the files name", **details)


def cpu_device(cpu: bool) -> DeviceOption | None:
    """Return the device that ``--cpu`` asks for; None: each operator runs on the device in its net."""
    return make_device_option(PROTO_CPU, 0) if cpu else None


def max_pixels_option(**details: Any) -> Any:
    """Return the field ``max_pixels``, which is None or a whole number."""
    return option(
        "largest number of pixels of an image, height times width "
        f"(default: NETBUILDER_MAX_PIXELS, or {MAX_PIXELS})", type=count, metavar="N", **details,
    )  # fmt: skip


def upright_option(**details: Any) -> Any:
    """Return the field ``upright``, a switch that ``--ignore-orientation`` sets to False."""
    return switch(
        "do not turn images as the orientation says that cameras store in JPEG, PNG and WebP files (EXIF)",
        default=True, flag=IGNORE_ORIENTATION, **details,
    )  # fmt: skip


def trusted_option(**details: Any) -> Any:
    """Return the field ``trusted``."""
    return switch(
        "allow all operators in the files, also those that read or write files, loop, wait or call Python; "
        "without this option such files are an error", **details,
    )  # fmt: skip


def without_option(**details: Any) -> Any:
    """Return the field ``without``, a frozenset of groups."""
    return option(
        f"groups of optimizations of the net to switch off, of {', '.join(GROUPS)}, or {ALL}; see "
        "docs/optimizations.md",
        type=_optimizations, default=frozenset(), metavar="NAME,NAME", **details,
    )  # fmt: skip


def input_option(help: str, type: Callable[[str], Any] | None = None) -> Any:
    """Return the field ``input``: the names of blobs with their specs, or with what ``type`` makes of the text."""
    return option(f"{help}; may be repeated", type=type or blob_spec, repeated=True, metavar="BLOB=SHAPE[:TYPE]")


def image_size_option() -> Any:
    """Return the field ``image_size`` of commands that build nets of the zoo."""
    return option("height and width of images in pixels (default: the usual size for the net)", type=count)


def classes_option() -> Any:
    """Return the field ``classes`` of commands that build nets of the zoo."""
    return option("number of classes", type=count, default=1000)


def _optimizations(text: str) -> frozenset[str]:
    return frozenset(map(str, _refused(check_without, text, "--without")))


def budget(text: str) -> str:
    """Return a memory budget as it is given, for ``type=`` of an option.

    Raises:
        argparse.ArgumentTypeError: it is neither a size nor a fraction; argparse adds the name of the option.
    """
    _refused(parse_budget, text, "--memory-budget")
    return text


def _refused(convert: Callable[[str, str], T], text: str, name: str) -> T:
    """Call ``convert`` with text and an option's name, which argparse adds to its error."""
    try:
        return convert(text, name)
    except NetError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix(f"{name}: ")) from None


def check_outputs(options: object, *names: str) -> None:
    """Check that the files can be written that options name, before the results for them are computed.

    Raises:
        NetError: one is a folder, or its folder does not exist.
    """
    for name in names:
        if path := getattr(options, name):
            try:
                check_place(path)
            except OSError as error:
                raise NetError(f"--{name}: {error_text(error)}") from None


def size(text: str) -> int:
    """Return a number of bytes, for ``type=`` of an option: 0, or as in ``25MiB``.

    Raises:
        argparse.ArgumentTypeError: the text is not such a number; argparse adds the name of the option.
    """
    try:
        found = 0 if text == "0" else parse_budget(text, "size")
    except NetError:
        found = 0.0
    if not isinstance(found, int):
        raise argparse.ArgumentTypeError(f"must be a number of bytes, such as 25MiB, got {text!r}")
    return found


def size_or_auto(text: str) -> int | str:
    """Return a number of bytes as ``size``, or "auto", for ``type=`` of an option.

    Raises:
        argparse.ArgumentTypeError: the text is neither.
    """
    if text == AUTO:
        return AUTO
    try:
        return size(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}; or {AUTO}") from None


def split_problem(batch: int, devices: int) -> str | None:
    """Return why a batch cannot be split over devices into equal parts; None if it can.

    >>> split_problem(10, 3)
    'a batch of 10 cannot be split evenly over 3 devices; give a multiple of 3, such as 9 or 12'
    """
    if batch < 1:
        return f"the batch must be 1 or more, got {batch}"
    if batch % devices == 0:
        return None
    near = [str(n) for n in (batch // devices * devices, -(-batch // devices) * devices) if n]
    return (
        f"a batch of {batch} cannot be split evenly over {devices} devices; give a multiple of {devices}, such as "
        f"{' or '.join(near)}"
    )


def blob_spec(text: str) -> tuple[str, TensorSpec]:
    """Return a blob's name with its shape and type, for ``type=`` of an option: ``data=32x3x224x224``.

    Raises:
        argparse.ArgumentTypeError: the text is not of this form.

    >>> name, spec = blob_spec("label=32:int32")
    >>> name, spec.shape, str(spec.dtype)
    ('label', (32,), 'int32')
    """
    name, _, rest = text.partition("=")
    shape, _, kind = rest.partition(":")
    extents = shape.split("x") if shape else []
    if (
        not name
        or "=" not in text
        or not all(extent.isdigit() for extent in extents)
        or (kind or "int32") not in _TYPES
    ):
        raise argparse.ArgumentTypeError(
            f"must be BLOB=SHAPE, such as data=32x3x224x224, or BLOB=SHAPE:TYPE where TYPE is one of "
            f"{', '.join(_TYPES)}; got {text!r}"
        )
    return name, TensorSpec(tuple(map(int, extents)), np.dtype(kind or "float32"))
