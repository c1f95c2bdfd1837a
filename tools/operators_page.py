"""Writes the tables of docs/operators.md: operators by family, helpers of brew, Caffe2's operators that are missing.

Each table is between a line ``<!-- generated: NAME -->`` and a line ``<!-- end -->``; the rest of the page is written
by hand. ``make operators-page`` runs this program.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Sequence

import netbuilder.ops.all  # noqa: F401  (fills the registry)
from netbuilder.model import brew
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import find, operator_types
from netbuilder.ops.core.signatures import Blob, is_gradient, parsed
from netbuilder.ops.core.unsupported import GROUPS
from netbuilder.proto import ParseError, files
from netbuilder.proto.whole_file import write_text
from netbuilder.tools.parser import Parser
from netbuilder.tools.reporting import reporting

__all__ = ["brew_table", "filled_page", "main", "operator_tables", "unsupported_table"]


def operator_tables() -> str:
    """Return a section for each family of operators: the docstring of its package, and a table."""
    families: dict[str, list[str]] = {}
    for name in operator_types():
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


_TABLES = {"operators": operator_tables, "brew": brew_table, "unsupported": unsupported_table}


def filled_page(page: str) -> str:
    """Return the page with its tables generated again.

    Raises:
        ParseError: the page lacks the lines around a table.
    """
    for name, make in _TABLES.items():
        begin, end = f"<!-- generated: {name} -->", "<!-- end -->"
        before, found, rest = page.partition(f"{begin}\n")
        _, ended, after = rest.partition(end)
        if not found or not ended:
            raise ParseError(f"the page has no line {begin!r} with a line {end!r} after it")
        page = f"{before}{begin}\n\n{make()}\n\n{end}{after}"
    return page


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


@reporting("operators_page")
def main(arguments: Sequence[str] | None = None) -> int:
    """Fill the page that the command line names; return the exit status."""
    parser = Parser(prog="operators_page", description="Write the tables of docs/operators.md from the registry.")
    parser.add_argument("page", help="the page to fill, docs/operators.md")
    path = parser.parse_args(arguments).page
    with files.naming(path):
        page = filled_page(files.read_text(path))
    write_text(path, page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
