"""Options that several commands share: devices, limits, trust, optimizations, counts, and shapes of blobs."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from netbuilder.data.image_size import MAX_PIXELS
from netbuilder.graph.memory_budget import parse_budget
from netbuilder.graph.observability import KINDS
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import PROTO_CPU, DeviceOption, NetError
from netbuilder.proto.arguments import make_device_option
from netbuilder.proto.os_errors import error_text
from netbuilder.proto.whole_file import check_place
from netbuilder.runtime.plan.optimizations import ALL, GROUPS, check_without
from netbuilder.tools.parser import count

__all__ = [
    "IGNORE_ORIENTATION",
    "OBSERVABLE",
    "add_cpu",
    "add_ignore_orientation",
    "add_max_pixels",
    "add_trusted",
    "add_without",
    "blob_spec",
    "check_outputs",
    "count",
    "cpu_device",
    "size",
    "split_problem",
]

IGNORE_ORIENTATION = "--ignore-orientation"

OBSERVABLE = KINDS
"""Kinds of values that can be fetched after a run, see ``Workspace.create_net``."""

_TYPES = ("float32", "float64", "float16", "int32", "int64", "uint8", "bool")


def add_cpu(parser: Any) -> None:
    """Add the option ``--cpu`` of commands that run a predictor to a parser or argument group."""
    parser.add_argument("--cpu", action="store_true", help="run on the CPU, whatever devices the files name")


def cpu_device(options: argparse.Namespace) -> DeviceOption | None:
    """Return the device that ``--cpu`` asks for; None: each operator runs on the device in its net."""
    return make_device_option(PROTO_CPU, 0) if options.cpu else None


def add_max_pixels(parser: Any) -> None:
    """Add the option ``--max-pixels`` to a parser or argument group; its value is None or a whole number."""
    parser.add_argument(
        "--max-pixels", type=count, metavar="N",
        help=f"largest number of pixels of an image, height times width "
        f"(default: NETBUILDER_MAX_PIXELS, or {MAX_PIXELS})",
    )  # fmt: skip


def add_ignore_orientation(parser: Any) -> None:
    """Add the option ``--ignore-orientation`` to a parser or argument group."""
    parser.add_argument(
        IGNORE_ORIENTATION, action="store_true",
        help="do not turn images as the orientation says that cameras store in JPEG, PNG and WebP files (EXIF)",
    )  # fmt: skip


def add_trusted(parser: Any) -> None:
    """Add the option ``--trusted`` to a parser or argument group."""
    parser.add_argument(
        "--trusted", action="store_true",
        help="allow all operators in the files, also those that read or write files, loop, wait or call Python; "
        "without this option such files are an error",
    )  # fmt: skip


def add_without(parser: Any) -> None:
    """Add the option ``--without`` to a parser or argument group; its value is a frozenset of groups."""
    parser.add_argument(
        "--without", type=_optimizations, default=frozenset(), metavar="NAME,NAME",
        help=f"groups of optimizations of the net to switch off, of {', '.join(GROUPS)}, or {ALL}; see "
        "docs/optimizations.md",
    )  # fmt: skip


def _optimizations(text: str) -> frozenset[str]:
    try:
        return frozenset(map(str, check_without(text, "--without")))
    except NetError as error:
        raise argparse.ArgumentTypeError(
            str(error).removeprefix("--without: ")
        ) from None  # argparse adds the option's name


def check_outputs(options: argparse.Namespace, *names: str) -> None:
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


def split_problem(batch: int, devices: int, steps: int = 1) -> str | None:
    """Return why a batch cannot be split over devices and micro-batches into equal parts; None if it can.

    >>> split_problem(10, 3)
    'a batch of 10 cannot be split evenly over 3 devices; give a multiple of 3, such as 9 or 12'
    """
    parts = devices * steps
    if batch < 1:
        return f"the batch must be 1 or more, got {batch}"
    if batch % parts == 0:
        return None
    where = f"{devices} device{'s' if devices > 1 else ''}" + (f" in {steps} micro-batches" if steps > 1 else "")
    near = [str(n) for n in (batch // parts * parts, -(-batch // parts) * parts) if n]
    return (
        f"a batch of {batch} cannot be split evenly over {where}; give a multiple of {parts}, such as "
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
