"""Writes a page of reference: operators by family, helpers of brew, Caffe2's operators that are missing.

``make operators-page`` runs this program; the page is made from the registry and is not part of the source.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from netbuilder.exchange.onnx.graph import rules
from netbuilder.exchange.onnx.reasons import reason
from netbuilder.model import brew
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import find, operator_types
from netbuilder.ops.core.signatures import Blob, is_gradient, parsed
from netbuilder.ops.core.unsupported import GROUPS
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.whole_file import write_text
from netbuilder.tools.options import OptionsParser, argument
from netbuilder.tools.reporting import reporting

__all__ = ["brew_table", "main", "onnx_table", "operator_tables", "page", "unsupported_table"]


def _own_operators() -> list[str]:
    """Return the types of netbuilder's operators, without those that a program has added."""
    return [name for name in operator_types() if find(name).__module__.startswith("netbuilder.")]


def operator_tables() -> str:
    """Return a section for each family of operators: the docstring of its package, and a table."""
    families: dict[str, list[str]] = {}
    for name in _own_operators():
        families.setdefault(find(name).__module__.split(".")[2], []).append(name)
    sections = []
    for family in sorted(families):
        title, *more = (importlib.import_module(f"netbuilder.ops.{family}").__doc__ or "").strip().split("\n\n")
        head = [f"### {title.rstrip('.')} (`ops/{family}`)", *(inspect.cleandoc(text) for text in more)]
        rows = [_operator_row(names) for names in _with_gradients(families[family])]
        sections += [*head, _table("| operators | inputs → outputs | |", rows)]
    return "\n\n".join(sections)


def brew_table() -> str:
    """Return the table of brew's helpers."""
    rows = []
    for name in sorted(name for name in dir(brew) if name.islower() and brew.has_helper(name)):
        rows.append(f"| `{name}` | {_summary(getattr(brew, name).__doc__)} |")
    return _table("| helper | |", rows)


def unsupported_table() -> str:
    """Return the table of Caffe2's operators that netbuilder does not have."""
    return _table(
        "| missing | instead |",
        [f"| {_code(sorted(names.split()))} | {instead} |" for instead, names in GROUPS],
    )


def onnx_table() -> str:
    """Return the table of the operators that are not written to ONNX, with the reasons."""
    reasons: dict[str, list[str]] = {}
    for name in _own_operators():
        if name not in rules() and not is_gradient(find(name)):
            reasons.setdefault(reason(name), []).append(name)
    return _table("| operators | |", [f"| {_code(names)} | {why} |" for why, names in reasons.items()])


_PAGE = """# Operators and helpers

`net.Relu("x", "y")` adds an operator to a net. `help(netbuilder.ops.core.registry.find("Relu"))`, after `import
netbuilder`, shows its class: what it computes, the shapes and element types of its inputs, and its arguments with their
defaults.

In the second column a letter is an extent, the same one in the whole row; the name of an argument is its value; `*S` is
any number of axes, and `...` any shape. `?` marks what may be left out, `*` and `+` any number of blobs. Gradient
operators are in the rows of their forward operators; `AddGradientOperators` adds them, and their inputs and outputs
have the shapes of the forward operator's. You can write an operator that is missing here: as a Python function, by
`net.Python(function)(inputs, outputs)`, or as a class (CONTRIBUTING.md). `make operators-page` writes this page.

## Operators

{operators}

## Helpers of `brew`

A helper adds an operator together with the parameters that it needs: `brew.fc(model, "x", "y", dim_in=4, dim_out=2)`.
`brew.register(function)` adds one of your own.

{brew}

## Operators of Caffe2 that are not in this version

A net that names one says so when it is built or created. All other operators of Caffe2's last release are
there. The `engine` of an operator names a library that is preferred; where it is not there, another kernel is used.

{unsupported}

## Operators that are not written to ONNX

The error of an export says the same. All others are written (docs/onnx.md); no operator of a backward pass is.

{onnx}
"""


def page() -> str:
    """Return the page, in Markdown."""
    return _PAGE.format(
        operators=operator_tables(), brew=brew_table(), unsupported=unsupported_table(), onnx=onnx_table()
    )


def _with_gradients(names: Iterable[str]) -> list[list[str]]:
    """Return the operators in order, each with its gradient operators, found by their names."""
    rows: dict[str, list[str]] = {name: [] for name in names}
    for name in list(rows):
        forward = re.sub("Grad(ient)?$", "", name)
        owner = forward if forward in rows and is_gradient(find(name)) else name
        rows[owner].append(name)
    return [row for row in rows.values() if row]


def _operator_row(names: list[str]) -> str:
    cls = find(names[0])
    return f"| {_code(names)} | {_shapes(cls)} | {_summary(cls.__doc__)} |"


def _shapes(cls: type[Operator]) -> str:
    stated = parsed(cls.signature)
    inputs, outputs = (", ".join(map(_blob, blobs)) for blobs in (stated.inputs, stated.outputs))
    return f"`{inputs} → {outputs}`".replace("` ", "`").replace(" `", "`")


def _blob(blob: Blob) -> str:
    return f"{blob.name} {blob.shapes_text or (blob.like and f'as {blob.like}')}".strip()


def _summary(document: str | None) -> str:
    return (document or "").strip().split("\n")[0].replace("``", "`").replace("|", "\\|")


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(head: str, rows: Iterable[str]) -> str:
    return "\n".join([head, "|" + "---|" * head.count(" |"), *rows])


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Write a page with all operators, from the registry."""

    page: str = argument("the file to write, such as build/docs/operators.md; its folder is made")


@reporting("operators_page")
def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page to the file that the command line names; return the exit status."""
    parser = OptionsParser(_Options, prog="operators_page")
    path = Path(parser.parse(arguments).page)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
