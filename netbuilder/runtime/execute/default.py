"""The current workspace: the default one, or a named one that the caller has switched to."""

from __future__ import annotations

from netbuilder.proto import NetError
from netbuilder.runtime.execute.workspace import Workspace

__all__ = ["current_name", "names", "remove", "reset", "switch", "workspace"]

_DEFAULT = "default"
_workspaces: dict[str, Workspace] = {_DEFAULT: Workspace()}
_current = _DEFAULT


def workspace() -> Workspace:
    """Return the current workspace."""
    return _workspaces[_current]


def current_name() -> str:
    """Return the name of the current workspace."""
    return _current


def names() -> list[str]:
    """Return the names of all workspaces, sorted."""
    return sorted(_workspaces)


def switch(name: str, create: bool = False) -> Workspace:
    """Make a named workspace the current one.

    Args:
        name: its name.
        create: make it if it does not exist.

    Raises:
        NetError: there is no workspace of that name and ``create`` is false.
    """
    global _current
    if name not in _workspaces:
        if not create:
            raise NetError(f"no workspace {name!r}; the workspaces are {names()}; give create=True to make it")
        _workspaces[name] = Workspace()
    _current = name
    return _workspaces[name]


def reset() -> None:
    """Remove all blobs and nets of the current workspace."""
    workspace().reset()


def remove(name: str) -> None:
    """Forget a workspace, with its blobs and nets; nothing happens if there is none of that name, or it is current."""
    if name != _current:
        _workspaces.pop(name, None)
