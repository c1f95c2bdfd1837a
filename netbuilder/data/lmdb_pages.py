"""The pages of an LMDB file, read and checked: every number in them is compared with what the file can hold.

LMDB's own library trusts the pages and aborts the process on a damaged one; here that is an error. Layout: pages of
one size, of which the first two are meta pages; a B+ tree of branch pages over leaf pages with the records, sorted by
key; long values in separate overflow pages. A page begins with its number (8 bytes), two bytes that are not used,
flags (2), and either where its list of nodes ends and where its nodes begin (2, 2) or the count of overflow pages (4).

Source: Chu, "Lightning Memory-Mapped Database", lmdb.h and mdb.c of version 0.9; data format 1, 64 bits, little-endian.
"""

from __future__ import annotations

import os
import struct
import weakref
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from netbuilder.proto import ParseError
from netbuilder.proto.errors import counted
from netbuilder.proto.opened_files import open_descriptor

__all__ = ["LmdbFile"]

_HEADER = struct.Struct("<QHHHH")  # of a page: number, unused, flags, lower, upper
_META = struct.Struct("<IIQQ")  # magic, version, address, size of the map
_TREE = struct.Struct("<IHHQQQQQ")  # page size, flags, depth, branch, leaf and overflow pages, entries, root
_TREE_AT = _HEADER.size + _META.size + _TREE.size  # offset of the tree of records, after the tree of free pages
_LAST = struct.Struct("<QQ")  # last page, transaction
_NODE = struct.Struct("<HHHH")  # two halves of a size, flags, length of the key
_META_SIZE = _TREE_AT + _TREE.size + _LAST.size

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF, _OVERFLOW, _META_PAGE = 1, 2, 4, 8
_KINDS = (
    _BRANCH | _LEAF | _OVERFLOW | _META_PAGE | 0x20 | 0x40
)  # 0x20: leaf pages without nodes, 0x40: pages within pages
_NAMES = {_BRANCH: "branch page", _LEAF: "leaf page", _OVERFLOW: "overflow page", _META_PAGE: "meta page"}
_LONG = 1  # flag of a node: its value is in overflow pages
_REVERSED, _SEVERAL, _NUMBERS = 2, 4, 8  # flags of a tree: keys compared from the end, several values a key, numbers
_NONE = 2**64 - 1  # the root of an empty tree
_DEEPEST = 32


class _Tree(NamedTuple):
    """The records, as a meta page describes them."""

    page_size: int
    flags: int
    depth: int
    entries: int
    root: int
    last_page: int
    transaction: int


class _Node(NamedTuple):
    """A record in a leaf page: where its value begins in the page, and its length; long values are in other pages."""

    key: bytes
    begin: int
    size: int
    is_long: bool


class LmdbFile:
    """An LMDB database open for reading; any thread may call its methods. It is closed when it is garbage-collected.

    Args:
        path: of the file.
        name: of the database in errors.

    Raises:
        ParseError: the file is not an LMDB database, or damaged, truncated or of an unsupported kind.
    """

    def __init__(self, path: str, name: str) -> None:
        self.path = name
        self._file = open_descriptor(path)
        weakref.finalize(self, os.close, self._file)
        size = os.fstat(self._file).st_size
        self._tree = self._newest(size)
        used = (self._tree.last_page + 1) * self._tree.page_size
        if used > size:
            raise self._broken(f"the file is truncated: it has {size} bytes, its pages take {used}")
        self._starts: list[int] = []  # for each leaf page, how many records are before it
        self._leaves: list[int] = []

    def __len__(self) -> int:
        return self._tree.entries

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all records, key and value, sorted by key.

        Raises:
            ParseError: a page is damaged.
        """
        for number, data, nodes in self._walk():
            for node in nodes:
                yield node.key, self._value(number, data, node)

    def record(self, index: int) -> tuple[bytes, bytes]:
        """Return a record by number; the first call reads all leaf pages.

        Raises:
            IndexError: there are fewer records.
            ParseError: a page is damaged.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"{self.path!r}: record {index} of {len(self)}")
        if not self._leaves:
            self._index()
        leaf = bisect_right(self._starts, index) - 1
        number = self._leaves[leaf]
        data = self._page(number, _LEAF)
        within, places = index - self._starts[leaf], _places(data)
        if within >= len(places):
            raise self._broken(
                f"page {number} has {counted(len(places), 'record')}, fewer than when the file was opened; if it has "
                "been rewritten since, open it again"
            )
        node = self._node(number, data, places[within])
        return node.key, self._value(number, data, node)

    def _index(self) -> None:
        starts, leaves, count = [], [], 0
        for number, _, nodes in self._walk():
            starts.append(count)
            leaves.append(number)
            count += len(nodes)
        self._starts, self._leaves = starts, leaves

    # Pages.

    def _newest(self, size: int) -> _Tree:
        """Return the tree of the last committed transaction."""
        first = self._meta(0, 0, size)
        second = self._meta(1, first.page_size, size)
        if first.page_size != second.page_size or abs(first.transaction - second.transaction) > 1:
            raise self._broken(
                f"its meta pages contradict each other: pages of {first.page_size} and {second.page_size} bytes, "
                f"transactions {first.transaction} and {second.transaction}"
            )
        return second if second.transaction > first.transaction else first

    def _meta(self, number: int, offset: int, size: int) -> _Tree:
        data = os.pread(self._file, _META_SIZE, offset)
        if len(data) < _META_SIZE:
            raise self._broken(f"the file is truncated: it has {size} bytes, and meta page {number} ends after them")
        page, _, flags, _, _ = _HEADER.unpack_from(data)
        magic, version, _, _ = _META.unpack_from(data, _HEADER.size)
        if magic != _MAGIC or version != _VERSION or page != number or flags & _KINDS != _META_PAGE:
            raise self._broken(
                f"page {number} is not a meta page of data format {_VERSION}: it has page number {page}, "
                f"flags {flags:#x}, magic {magic:#x}, format {version}"
            )
        page_size = int(_TREE.unpack_from(data, _HEADER.size + _META.size)[0])
        _, kind, depth, _, _, _, entries, root = _TREE.unpack_from(data, _TREE_AT)
        tree = _Tree(page_size, kind, depth, entries, root, *_LAST.unpack_from(data, _TREE_AT + _TREE.size))
        if page_size & (page_size - 1) or not 512 <= page_size <= 65536:
            raise self._broken(f"meta page {number}: pages have 512, 1024, ... or 65536 bytes, got {page_size}")
        if kind & _SEVERAL:
            raise self._broken(f"meta page {number}: databases with several values per key are not supported")
        empty = root == _NONE
        if empty != (entries == 0) or not empty and not (2 <= root <= tree.last_page and 1 <= depth <= _DEEPEST):
            raise self._broken(
                f"meta page {number}: {entries} records, {depth} levels below page {root} of {tree.last_page + 1}"
            )
        if entries > (tree.last_page + 1) * page_size // _NODE.size:
            raise self._broken(f"meta page {number}: {tree.last_page + 1} pages cannot hold {entries} records")
        return tree

    def _page(self, number: int, kind: int) -> bytes:
        """Return a branch or leaf page after checking its header and its list of nodes."""
        size = self._tree.page_size
        data = os.pread(self._file, size, number * size)
        if len(data) < size:
            raise self._broken(
                f"page {number} is truncated; if the file has been rewritten since it was opened, open it again"
            )
        found, _, flags, lower, upper = _HEADER.unpack_from(data)
        if found != number or flags & _KINDS != kind:
            raise self._broken(
                f"page {number} should be a {_NAMES[kind]}: it has page number {found}, "
                f"{_NAMES.get(flags & _KINDS, 'kind')} ({flags:#x})"
            )
        if not _HEADER.size < lower <= upper <= size or lower % 2:
            raise self._broken(f"page {number}: its nodes are listed up to byte {lower} and begin at {upper} of {size}")
        return data

    def _walk(self) -> Iterator[tuple[int, bytes, list[_Node]]]:
        """Yield the number, content and records of each leaf page, in order."""
        tree = self._tree
        left = tree.last_page  # bounds the number of visited pages, so that a cycle ends
        waiting = [] if tree.root == _NONE else [(tree.root, 1)]
        records, last = 0, b""
        sorted_ = not tree.flags & (_REVERSED | _NUMBERS)
        while waiting:
            number, level = waiting.pop()
            left -= 1
            if not 2 <= number <= tree.last_page or left < 0:
                raise self._broken(f"the tree refers to page {number} of {tree.last_page + 1}, or has a cycle")
            data = self._page(number, _LEAF if level == tree.depth else _BRANCH)
            if level < tree.depth:
                waiting += [(child, level + 1) for child in reversed(self._children(number, data))]
                continue
            nodes = [self._node(number, data, at) for at in _places(data)]
            for node in nodes if sorted_ else ():
                if node.key <= last:
                    raise self._broken(f"page {number}: the key {node.key!r} is out of order after {last!r}")
                last = node.key
            records += len(nodes)
            yield number, data, nodes
        if records != tree.entries:
            raise self._broken(f"its meta page counts {tree.entries} records, and {records} were found")

    def _children(self, number: int, data: bytes) -> list[int]:
        upper, children = _HEADER.unpack_from(data)[4], []
        for at in _places(data):
            if not upper <= at <= len(data) - _NODE.size:
                raise self._broken(f"page {number}: a node is at byte {at}, not among its nodes from {upper} on")
            low, middle, high, _ = _NODE.unpack_from(data, at)
            children.append(low | middle << 16 | high << 32)
        return children

    def _node(self, number: int, data: bytes, at: int) -> _Node:
        """Return the record at a byte of a leaf page."""
        upper, size = _HEADER.unpack_from(data)[4], len(data)
        if not upper <= at <= size - _NODE.size:
            raise self._broken(f"page {number}: a record is at byte {at}, not among its records from {upper} on")
        low, high, flags, key_size = _NODE.unpack_from(data, at)
        key_end, length = at + _NODE.size + key_size, low | high << 16
        end = key_end + (8 if flags == _LONG else length)
        if flags & ~_LONG or end > size or not key_size:
            raise self._broken(
                f"page {number}: the record at byte {at} has {key_size} bytes of key and {length} of value, flags "
                f"{flags:#x}; only plain records that end within {size} bytes are supported"
            )
        return _Node(data[at + _NODE.size : key_end], key_end, length, flags == _LONG)

    def _value(self, number: int, data: bytes, node: _Node) -> bytes:
        if not node.is_long:
            return data[node.begin : node.begin + node.size]
        first = int.from_bytes(data[node.begin : node.begin + 8], "little")
        size = self._tree.page_size
        pages = (_HEADER.size - 1 + node.size) // size + 1
        where = f"page {number}: the value of {node.key!r}, {node.size} bytes"
        if not 2 <= first <= self._tree.last_page + 1 - pages:
            last = self._tree.last_page
            raise self._broken(f"{where}, should be in {pages} pages from {first} on; the last page is {last}")
        header = os.pread(self._file, _HEADER.size, first * size)
        value = os.pread(self._file, node.size, first * size + _HEADER.size)
        if len(header) < _HEADER.size or len(value) < node.size:
            raise self._broken(
                f"{where}, is truncated; if the file has been rewritten since it was opened, open it again"
            )
        found, _, flags, low, high = _HEADER.unpack(header)
        if found != first or flags & _KINDS != _OVERFLOW or low | high << 16 != pages:
            raise self._broken(
                f"{where}, should be in {pages} overflow pages from {first} on: their header has page number {found}, "
                f"flags {flags:#x}, {low | high << 16} pages"
            )
        return value

    def _broken(self, reason: str) -> ParseError:
        return ParseError(f"{self.path!r} cannot be read as lmdb: {reason}")


def _count(data: bytes) -> int:
    return int((_HEADER.unpack_from(data)[3] - _HEADER.size) // 2)


def _places(data: bytes) -> tuple[int, ...]:
    """Return where the nodes of a page begin."""
    return struct.unpack_from(f"<{_count(data)}H", data, _HEADER.size)
