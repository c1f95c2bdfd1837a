"""Errors for names and modules that the compatibility layer lacks: with the reason and similar names."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from netbuilder._modules import TextFinder
from netbuilder.caffe2.missing_names import REASONS, reason_of
from netbuilder.caffe2.reexports import MODULES, module_text, source_module
from netbuilder.proto.suggestions import similar

__all__ = ["find_modules", "names_of"]

PACKAGE = "netbuilder.caffe2"
PAGE = "docs/caffe2.md"
_FROM_IMPORT = dis.opmap["IMPORT_FROM"]


def names_of(
    module: str, lazy: Mapping[str, Callable[[], Any]] | None = None, others: Callable[[], Sequence[str]] | None = None
) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a module: it raises an error with the reason for names that the module lacks.

    The modules of a package are imported on first use.

    Args:
        module: the module's ``__name__``.
        lazy: functions that compute values at their first access, by name.
        others: returns names that the module has besides its own, for suggestions.
    """
    made = lazy or {}

    def __getattr__(name: str) -> Any:
        if name in made:
            value = vars(sys.modules[module])[name] = made[name]()
            return value
        if (home := source_module(module.removeprefix(f"{PACKAGE}.python."), name)) is not None:
            value = vars(sys.modules[module])[name] = getattr(import_module(f"{PACKAGE}.python.{home}"), name)
            return value
        if name.startswith("__") and f"{module}.{name}"[len(PACKAGE) + 1 :] not in REASONS:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        loaded = sys.modules[module]
        if hasattr(loaded, "__path__") and not name.startswith("_"):
            try:
                return import_module(f"{module}.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"{module}.{name}".removeprefix("netbuilder."):  # a library that it needs
                    raise
        listed = getattr(loaded, "__all__", None) or [n for n in vars(loaded) if not n.startswith("_")]
        present = list(dict.fromkeys([*listed, *(others() if others else ())]))
        text = _text("", f"{module}.{name}"[len(PACKAGE) + 1 :], present)
        frame = _caller()
        # `from module import name` replaces an AttributeError by an ImportError without the reason. One class cannot be
        # both: ImportError and AttributeError have fields in C ("multiple bases have instance lay-out conflict").
        if frame.f_code.co_code[frame.f_lasti] == _FROM_IMPORT:
            raise ImportError(text, name=module)
        raise AttributeError(text)

    return __getattr__


def _caller() -> FrameType:
    """Return the innermost frame outside the compatibility layer."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(PACKAGE):
        frame = frame.f_back
    return frame


def find_modules() -> None:
    """Make the modules of ``MODULES`` importable, and imports of missing modules fail with the reason."""
    if _FINDERS[0] not in sys.meta_path:
        sys.meta_path.extend(_FINDERS)


class _Refusal(MetaPathFinder):
    """The last import finder: Python asks it for modules that no other finder has found."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        name = fullname.removeprefix(PACKAGE + ".")
        if name == fullname or name.rpartition(".")[2].startswith("__") and name not in REASONS:
            return None
        # The name is Caffe2's, so that `from package import module` passes this error on instead of its own.
        raise ModuleNotFoundError(_text("module ", name, _modules()), name=f"caffe2.{name}")


def _text_of(name: str) -> str | None:
    return module_text(name[len(PACKAGE) + 1 :]) if name.startswith(f"{PACKAGE}.") else None


_FINDERS = (TextFinder(_text_of), _Refusal())


def _modules() -> list[str]:
    """Return the modules of the compatibility layer, without the name of its package."""
    root = Path(__file__).parent
    found = list(MODULES)
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[0] in ("proto", "python") and not parts[-1].startswith("_"):
            found.append(".".join(parts))
    return sorted(found)


def _text(kind: str, name: str, present: Sequence[str]) -> str:
    if reason := reason_of(name):
        return f"netbuilder.caffe2 has no {kind}{name}: {reason} (see {PAGE})"
    last = name.rpartition(".")[2]
    by_last = {other.rpartition(".")[2]: other for other in present}
    near = [by_last[found] for found in similar(last, by_last, 4)]
    what = f"nearest: {', '.join(near)}" if near else f"it has {', '.join(present)}"
    return f"netbuilder.caffe2 has no {kind}{name}; {what} (see {PAGE})"
