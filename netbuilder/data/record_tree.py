"""Records with nested lists stored as columns: how many rows of each column belong to a row, and reading in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.data.forking import new_lock
from netbuilder.proto import NetError

__all__ = ["RecordTree", "TreeCursor"]

_SEPARATOR = ":"
_LENGTHS = "lengths"


class RecordTree:
    """The columns of a record by their names; "a:lengths" holds, for each row, how many rows of "a:..." belong to it.

    Columns of one domain have the same number of rows: domain 0 is the record itself, domain i + 1 the lists whose
    lengths are the i-th column of lengths.

    Args:
        names: of the columns.

    >>> RecordTree(["x", "a:lengths", "a:values"]).domains
    [0, 0, 1]
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        paths = [name.split(_SEPARATOR) for name in self.names]
        self.lengths = [
            i for i, path in enumerate(paths) if path[-1] == _LENGTHS and len(path) > 1 or path == [_LENGTHS]
        ]
        self.domains = [self._domain(i, paths) for i in range(len(paths))]
        # Lengths of outer lists come before those of the lists inside them.
        self._order = sorted(range(len(self.lengths)), key=lambda k: len(paths[self.lengths[k]]))

    def _domain(self, column: int, paths: list[list[str]]) -> int:
        """Return the domain of a column: that of the innermost list that contains it."""
        found, depth = 0, -1
        for k, lengths in enumerate(self.lengths):
            around = paths[lengths][:-1]
            if lengths != column and paths[column][: len(around)] == around and depth < len(around):
                if len(paths[column]) > len(around) + 1 or paths[column][-1] != _LENGTHS:
                    found, depth = k + 1, len(around)
        return found

    def size(self, columns: Sequence[Any]) -> int:
        """Return how many rows the record has.

        Raises:
            NetError: columns of domain 0 have different numbers of rows.
        """
        rows = {len(columns[i]) for i, domain in enumerate(self.domains) if domain == 0}
        if len(rows) != 1:
            raise NetError(f"records: the columns {self.names} have different numbers of rows: {sorted(rows)}")
        return rows.pop()

    def start(self) -> list[int]:
        """Return the position before the first row: a row number for each domain."""
        return [0] * (len(self.lengths) + 1)

    def after(self, columns: Sequence[Any], place: Sequence[int], rows: int) -> list[int]:
        """Return the position ``rows`` rows of the record after ``place``."""
        end = list(place)
        end[0] += rows
        for k in self._order:
            column = self.lengths[k]
            domain = self.domains[column]
            end[k + 1] = place[k + 1] + int(np.sum(columns[column][place[domain] : end[domain]]))
        return end

    def rows(self, columns: Sequence[Any], begin: Sequence[int], end: Sequence[int]) -> list[Any]:
        """Return the values between two positions, column by column."""
        return [column[begin[d] : end[d]] for column, d in zip(columns, self.domains)]

    def check(self, columns: Sequence[Any]) -> None:
        """Raise an error unless the columns have as many rows as the lengths add up to.

        Raises:
            NetError: a column has more or fewer.
        """
        end = self.after(columns, self.start(), self.size(columns))
        for name, column, domain in zip(self.names, columns, self.domains):
            if len(column) != end[domain]:
                raise NetError(
                    f"records: column {name!r} has {len(column)} rows, but the lengths add up to {end[domain]}"
                )

    def places(self, columns: Sequence[Any]) -> np.ndarray[Any, Any]:
        """Return the positions before each row and after the last one, (rows + 1, domains), int64."""
        places = [self.start()]
        for _ in range(self.size(columns)):
            places.append(self.after(columns, places[-1], 1))
        return np.array(places, np.int64)


class TreeCursor:
    """A position in a record that several readers share.

    Args:
        names: of the columns; if empty, columns are read row by row, without nested lists.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.lock = new_lock()
        self.place: list[int] = []
        self._tree: RecordTree | None = None

    def tree(self, columns: int) -> RecordTree:
        """Return the tree for this number of columns."""
        if self._tree is None:
            self._tree = RecordTree(self.names or [f"field_{i}" for i in range(columns)])
        if len(self._tree.names) != columns:
            raise NetError(f"the cursor is for {len(self._tree.names)} columns, got {columns}")
        return self._tree

    def next(self, columns: Sequence[Any], rows: int, *, whole: bool = False) -> list[Any]:
        """Return the next rows, and move the position after them.

        Args:
            columns: the record.
            rows: how many; fewer are left at the end, and none after it.
            whole: return no rows instead of fewer than ``rows``.
        """
        tree = self.tree(len(columns))
        with self.lock:
            begin = self.place or tree.start()
            left = tree.size(columns) - begin[0]
            count = min(rows, max(0, left))
            end = tree.after(columns, begin, count)
            self.place = end
        if whole and count < rows:
            end = begin
        return tree.rows(columns, begin, end)

    def reset(self) -> None:
        """Go back to the beginning."""
        with self.lock:
            self.place = []
