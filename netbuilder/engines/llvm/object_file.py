"""Object files of Linux on x86-64, loaded without LLVM, whose import takes a tenth of a second and much memory.

The files are those that LLVM writes for its large code model: addresses in the code are of 64 bits, so that any memory
will do. Whatever else is in a file is left to LLVM.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
from typing import Any, NamedTuple

__all__ = ["load", "serves"]

_ALLOCATED, _CODE_OR_DATA, _SYMBOLS, _RELOCATIONS, _ABSOLUTE_64, _FUNCTION = 2, 1, 2, 4, 1, 2
_PAGE_READ_AND_RUN = 5  # PROT_READ and PROT_EXEC
_FROM_OUTSIDE = ("memcpy", "memmove", "memset")


def serves() -> bool:
    """Whether object files of this system can be loaded here."""
    return platform.system() == "Linux" and platform.machine() == "x86_64" and struct.calcsize("P") == 8


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry: int


def load(code: bytes, name: str) -> tuple[int, Any] | None:
    """Return the address of a function in an object file, and what keeps it in memory; None: LLVM has to load it."""
    try:
        return _loaded(code, name.encode())
    except (ValueError, IndexError, StopIteration, struct.error, OSError, AttributeError):
        return None


def _loaded(code: bytes, name: bytes) -> tuple[int, Any]:
    if code[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<HH", code, 16) != (1, 62):
        raise ValueError("no object file for x86-64")
    (start,), (count,) = struct.unpack_from("<Q", code, 40), struct.unpack_from("<H", code, 60)
    sections = [_Section(*struct.unpack_from("<IIQQQQIIQQ", code, start + 64 * i)) for i in range(count)]
    places, size = {}, 0
    for i, section in enumerate(sections):
        if section.kind == _CODE_OR_DATA and section.flags & _ALLOCATED and section.size:
            places[i] = size = -(-size // 64) * 64
            size += section.size
    memory = mmap.mmap(-1, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for i, place in places.items():
        memory[place : place + sections[i].size] = code[sections[i].offset :][: sections[i].size]
    table = next(section for section in sections if section.kind == _SYMBOLS)
    found = 0
    for number in range(1, table.size // 24):
        if code[table.offset + 24 * number + 4] & 15 == _FUNCTION:
            symbol, address = _symbol(code, sections, table, number, places, base)
            found = address if symbol == name else found
    if not found:
        raise ValueError("there is no such function")
    for section in sections:
        if section.kind == _RELOCATIONS and section.info in places:
            for at in range(section.offset, section.offset + section.size, 24):
                where, info, addend = struct.unpack_from("<QQq", code, at)
                if info & 0xFFFFFFFF != _ABSOLUTE_64:
                    raise ValueError("a relocation of another kind")
                _, value = _symbol(code, sections, table, info >> 32, places, base)
                struct.pack_into("<q", memory, places[section.info] + where, value + addend)
    if ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(base), len(memory), _PAGE_READ_AND_RUN):
        raise OSError(ctypes.get_errno(), "the memory cannot be made executable")
    return found, memory


def _symbol(
    code: bytes, sections: list[_Section], table: _Section, number: int, places: dict[int, int], base: int
) -> tuple[bytes, int]:
    """Return the name and the address of a symbol."""
    at, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", code, table.offset + 24 * number)
    names = sections[table.link].offset
    name = code[names + at : code.index(b"\0", names + at)]
    if section in places:
        return name, base + places[section] + value
    if section or name.decode() not in _FROM_OUTSIDE:
        raise ValueError(f"the symbol {name.decode()} is not there")
    address = ctypes.cast(getattr(ctypes.CDLL(None), name.decode()), ctypes.c_void_p).value
    assert address is not None
    return name, address
