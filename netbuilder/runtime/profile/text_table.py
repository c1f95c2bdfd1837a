"""Tables as text; commands print them in colors where they can."""

from __future__ import annotations

from collections.abc import Sequence

from netbuilder.proto.late_dataclass import dataclass

__all__ = ["GAP", "Report", "TextTable", "report_text"]

GAP = "  "
"""Between columns."""


@dataclass(frozen=True)
class TextTable:
    """A table with a title; as text its columns are aligned, those of numbers to the right.

    >>> print(TextTable("a title", ("n", "name"), [("1", "one"), ("10", "ten")]))
    a title
     n  name
     1  one
    10  ten
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def figures(self) -> list[bool]:
        """For each column whether it has only numbers."""
        return [all(_is_figure(row[i]) for row in self.rows) for i in range(len(self.head))]

    def padded(self) -> list[list[str]]:
        """Return the cells of the head and of each row, padded to the widths of their columns (the last one is not)."""
        every = [tuple(self.head), *map(tuple, self.rows)]
        widths = [max(len(row[i]) for row in every) for i in range(len(self.head))]
        if not self.figures[-1]:
            widths[-1] = 0
        return [
            [
                cell.rjust(width) if figure else cell.ljust(width)
                for cell, width, figure in zip(row, widths, self.figures)
            ]
            for row in every
        ]

    def __str__(self) -> str:
        return "\n".join([self.title, *(GAP.join(cells).rstrip() for cells in self.padded())])


Report = Sequence[str | TextTable]
"""Paragraphs and tables, in the order in which they are shown."""


def report_text(report: Report) -> str:
    """Return a report as plain text, with an empty line between its parts."""
    return "\n\n".join(map(str, report))


def _is_figure(text: str) -> bool:
    number, _, unit = text.rstrip("%").partition(" ")
    return not text or (number.replace(".", "", 1).isdigit() and unit in ("", "B", "KiB", "MiB", "GiB", "TiB"))
