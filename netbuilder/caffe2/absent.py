"""What the face does not have: said by name, with the reason and what comes nearest."""

from __future__ import annotations

import difflib
import dis
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from netbuilder.caffe2.reasons import reason_of
from netbuilder.caffe2.taken_over import home_of

__all__ = ["names_of", "refuse_missing_modules"]

FACE = "netbuilder.caffe2"
PAGE = "docs/caffe2.md"
_FROM_IMPORT = dis.opmap["IMPORT_FROM"]


def names_of(module: str, lazy: Mapping[str, Callable[[], Any]] | None = None) -> Callable[[str], Any]:
    """Return a module's ``__getattr__``: it refuses what the module does not have, by name.

    Args:
        module: its name, ``__name__``.
        lazy: names whose values are made when they are first read.
    """
    made = lazy or {}

    def __getattr__(name: str) -> Any:
        if name in made:
            value = vars(sys.modules[module])[name] = made[name]()
            return value
        if (home := home_of(module.removeprefix(f"{FACE}.python."), name)) is not None:
            value = vars(sys.modules[module])[name] = getattr(import_module(f"{FACE}.python.{home}"), name)
            return value
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        loaded = sys.modules[module]
        listed = getattr(loaded, "__all__", None) or [n for n in vars(loaded) if not n.startswith("_")]
        text = _text("", f"{module}.{name}"[len(FACE) + 1 :], listed)
        frame = _caller()
        if frame.f_code.co_code[frame.f_lasti] == _FROM_IMPORT:  # which would replace an AttributeError by its own
            raise ImportError(text, name=module)
        raise AttributeError(text)

    return __getattr__


def _caller() -> FrameType:
    """Return the innermost frame outside the face."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(FACE):
        frame = frame.f_back
    return frame


def refuse_missing_modules() -> None:
    """Let imports of modules that the face does not have say so by name."""
    if not any(isinstance(finder, _Refusal) for finder in sys.meta_path):
        sys.meta_path.append(_Refusal())


class _Refusal(MetaPathFinder):
    """The last finder: it is asked for what no other has found."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(FACE + ".") or fullname.rpartition(".")[2].startswith("__"):
            return None
        name = fullname[len(FACE) + 1 :]
        # The name is Caffe2's, so that `from package import module` passes this error on instead of its own.
        raise ModuleNotFoundError(_text("module ", name, _modules()), name=f"caffe2.{name}")


def _modules() -> list[str]:
    """Return the modules of the face, without its own name."""
    root = Path(__file__).parent
    found = []
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[0] in ("proto", "python") and not parts[-1].startswith("_"):
            found.append(".".join(parts))
    return sorted(found)


def _text(kind: str, name: str, present: Sequence[str]) -> str:
    reason = reason_of(name)
    last = name.rpartition(".")[2]
    by_last = {other.rpartition(".")[2]: other for other in present}
    near = [by_last[found] for found in difflib.get_close_matches(last, by_last, n=4, cutoff=0.7 if reason else 0.6)]
    text = f"netbuilder.caffe2 has no {kind}{name}" + (f": {reason}" if reason else "")
    if near:
        text = f"{text}; nearest: {', '.join(near)}"
    elif not reason:
        text = f"{text}; it has {', '.join(present)}"
    return f"{text} (see {PAGE})"
