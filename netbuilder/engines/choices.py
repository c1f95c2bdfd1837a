"""The choices that were made by measuring on a machine, in a file: see ``NETBUILDER_CACHE``."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from netbuilder.data.forking import new_lock
from netbuilder.engines.kept_files import replace_file
from netbuilder.proto.opened_files import read_bytes

__all__ = ["CACHE_VARIABLE", "SWITCH_VARIABLE", "Choices", "cache_file", "cache_folder", "choices_of", "turned_off"]

CACHE_VARIABLE = "NETBUILDER_CACHE"
"""The environment variable with the folder of the files."""

SWITCH_VARIABLE = "NETBUILDER_MEASURE"
"""The environment variable that switches measuring off, if it is 0."""


def turned_off() -> bool:
    """Whether measuring is switched off, so that every process makes the same choices."""
    return os.environ.get(SWITCH_VARIABLE, "1").strip().lower() in ("0", "off", "no", "false")


class Choices:
    """The choices made so far: those in the file, and those of this process.

    Args:
        path: of the file; None: there is no folder for it.
        machine: describes all that the choices depend on besides their keys. Those of another machine are not read.
    """

    def __init__(self, path: Path | None, machine: str) -> None:
        self._path, self._machine = path, machine
        self._lock = new_lock()
        self._choices = self._read()
        self._unsaved = False

    @staticmethod
    def of(machine: str) -> Choices:
        """Return the choices of a machine, for the present value of ``NETBUILDER_CACHE``."""
        return choices_of(cache_file(machine), machine)

    def get(self, key: str) -> str | float | None:
        return self._choices.get(key)

    def put(self, found: Mapping[str, str | float]) -> None:
        """Store choices and times in the file."""
        self.note(found)
        self.save()

    def note(self, found: Mapping[str, str | float]) -> None:
        """Store choices and times; the file has them when ``save`` was called."""
        with self._lock:
            self._choices = {**self._choices, **found}
            self._unsaved = True

    def save(self) -> None:
        """Write what was noted; what other processes have written in the meantime is kept."""
        with self._lock:
            if self._unsaved:
                self._choices = {**self._read(), **self._choices}
                self._write()
                self._unsaved = False

    def _read(self) -> dict[str, str | float]:
        """Return the content of the file; {} if it is missing, not readable or of another machine."""
        if self._path is None:
            return {}
        try:
            found = json.loads(read_bytes(self._path))
            if found["machine"] != self._machine:
                return {}
            return {key: value for key, value in found["choices"].items() if isinstance(value, (str, float))}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}

    def _write(self) -> None:
        if self._path is None:
            return
        text = json.dumps({"machine": self._machine, "choices": self._choices}, indent=1, sort_keys=True)
        try:
            replace_file(self._path, text.encode())
        except OSError:
            self._path = None  # keep the choices for this process only


@functools.lru_cache(8)
def choices_of(path: Path | None, machine: str) -> Choices:
    """Return the choices of a machine in a file, which is read once."""
    return Choices(path, machine)


def cache_folder() -> Path | None:
    """Return the folder of what is kept between processes; None if there is none."""
    return _folder(*map(os.environ.get, _VARIABLES))


def cache_file(machine: str) -> Path | None:
    """Return the file with the choices of a machine; None if there is no folder for it."""
    return _file(machine, *map(os.environ.get, _VARIABLES))


_VARIABLES = (CACHE_VARIABLE, "XDG_CACHE_HOME", "HOME")


@functools.lru_cache(8)
def _folder(named: str | None, caches: str | None, _: str | None) -> Path | None:
    home = os.path.expanduser("~")
    if not named and not caches and home == "~":
        return None
    return Path(named or os.path.join(caches or os.path.join(home, ".cache"), "netbuilder"))


@functools.lru_cache(8)
def _file(machine: str, *variables: str | None) -> Path | None:
    folder = _folder(*variables)
    return None if folder is None else folder / f"choices-{hashlib.sha256(machine.encode()).hexdigest()[:12]}.json"
