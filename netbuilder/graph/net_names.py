"""Names of nets and of steps: unique in a process, as long as the names are not reset."""

from __future__ import annotations

from netbuilder.data.forking import new_lock

__all__ = ["UniqueNames", "net_names", "plan_step_names", "reset_names"]


class UniqueNames:
    """Hands out names, each once: ``base``, ``base_1``, ``base_2``, ..."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self.reset()

    def reset(self) -> None:
        """Forget the names given so far."""
        with self._lock:
            self._used: set[str] = set()
            self._next: dict[str, int] = {}

    def take(self, base: str) -> str:
        """Return a name not given before that begins with ``base``.

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
"""Names of execution steps made without a name of their own."""


def reset_names() -> None:
    """Forget all names of nets and steps, as in a fresh process; nets made before keep theirs."""
    net_names.reset()
    plan_step_names.reset()
