"""The option ``--without`` of the commands: optimisations of plans that are switched off, by name."""

from __future__ import annotations

import argparse
from typing import Any

from netbuilder.proto import NetError
from netbuilder.runtime.optimisations import GROUPS, check_without

__all__ = ["add_without"]


def add_without(parser: Any) -> None:
    """Add the option to a parser, or to a group of one; its value is a frozenset of names."""
    parser.add_argument(
        "--without", type=_names, default=frozenset(), metavar="NAME,NAME",
        help=f"optimisations that plans may not do, as docs/optimisations.md lists them; {' and '.join(GROUPS)} stand "
        "for several",
    )  # fmt: skip


def _names(text: str) -> frozenset[str]:
    try:
        return check_without(text, "--without")
    except NetError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--without: ")) from None  # argparse says it
