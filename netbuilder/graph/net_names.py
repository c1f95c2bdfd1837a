"""Unique names of nets and of steps in a process, until the names are reset."""

from __future__ import annotations

from netbuilder.data.forking import new_lock

__all__ = ["UniqueNames", "net_names", "plan_step_names", "reset_names"]


class UniqueNames:
    """Returns each name once: ``base``, ``base_1``, ``base_2``, ..."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self.reset()

    def reset(self) -> None:
        """Forget the names returned so far."""
        with self._lock:
            self._used: set[str] = set()
            self._next: dict[str, int] = {}

    def take(self, base: str) -> str:
        """Return a name that begins with ``base`` and was not returned before.

        >>> names = UniqueNames()
        >>> names.take("net"), names.take("net"), names.take("net_1")
        ('net', 'net_1', 'net_1_1')
        """
        with self._lock:
            name, index = base, self._next.get(base, 1)
            while name in self._used:
                name = f"{base}_{index}"
                index += 1
            self._next[base] = index
            self._used.add(name)
            return name


net_names = UniqueNames()
"""Names of nets."""

plan_step_names = UniqueNames()
"""Names of execution steps that are made without a name."""


def reset_names() -> None:
    """Forget all names of nets and steps, as in a new process; existing nets keep theirs."""
    net_names.reset()
    plan_step_names.reset()
