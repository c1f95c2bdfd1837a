"""Output of commands: in colors on a terminal, where rich is installed, and plain elsewhere."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from typing import Any

from netbuilder.runtime.profile.text_table import GAP, Report, TextTable, report_text

__all__ = ["print_line", "print_report"]


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
    yield Text(GAP.join(head), "bold cyan")
    for cells in rows:
        line = Text()
        for number, (cell, figure) in enumerate(zip(cells, table.figures)):
            line.append(GAP if number else "").append(cell, "green" if figure else "")
        yield line
