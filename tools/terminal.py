"""Output of commands: in colors on a terminal, where rich is installed, and plain elsewhere."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from netbuilder.runtime.profile.text_table import GAP, Report, TextTable, report_text

__all__ = ["FIGURE", "HEAD", "WRONG", "print_cells", "print_line", "print_report"]

HEAD, FIGURE, WRONG = "bold cyan", "green", "bold red"
"""Styles of the head of a table, of numbers, and of what is wrong."""


def print_report(report: Report) -> None:
    """Print paragraphs and tables; on a terminal what is too wide for it is cut off."""
    console = _console()
    if console is not None:
        for number, part in enumerate(report):
            if number:
                console.print()
            for line in _styled(part) if isinstance(part, TextTable) else [part]:
                console.print(line, no_wrap=isinstance(part, TextTable), overflow="ellipsis", crop=True)
        return
    lines = report_text(report).splitlines()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print("\n".join(line[:width] for line in lines))


def print_line(text: str, style: str) -> None:
    """Print a line at once, in a style of rich if it can be shown."""
    console = _console()
    if console is None:
        print(text, flush=True)
    else:
        console.print(text, style=style, soft_wrap=True)


def print_cells(cells: Sequence[str], styles: Sequence[str]) -> None:
    """Print padded cells of a table whose rows come one by one, each at once and in a style of its own."""
    console = _console()
    if console is None:
        print(GAP.join(cells).rstrip(), flush=True)
    else:
        console.print(_row(cells, styles), soft_wrap=True)


def _console() -> Any:
    """Return a console of rich for standard output; None if this is no terminal, or rich is not installed."""
    if not sys.stdout.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False)


def _styled(table: TextTable) -> Iterator[Any]:
    """Yield the lines of a table: the title, the head, and rows whose numbers have a color of their own."""
    from rich.text import Text

    yield Text(table.title, "bold")
    head, *rows = table.padded()
    yield _row(head, [HEAD] * len(head))
    for cells in rows:
        yield _row(cells, [FIGURE if figure else "" for figure in table.figures])


def _row(cells: Sequence[str], styles: Sequence[str]) -> Any:
    from rich.text import Text

    line = Text()
    for number, (cell, style) in enumerate(zip(cells, styles)):
        line.append(GAP if number else "").append(cell, style)
    return line
