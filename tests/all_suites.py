"""Every operator's test class, found in tests/ops."""

from __future__ import annotations

import functools
import importlib.util
import inspect
from pathlib import Path

import pytest

from suite import OperatorSuite

__all__ = ["all_suites"]

_FOLDER = Path(__file__).parent / "ops"
_WALKS = {"test_registry.py", "test_golden.py", "test_signatures.py"}


@functools.cache
def all_suites() -> dict[str, type[OperatorSuite]]:
    """Return the suite of each operator that has one, by the operator's name."""
    found: dict[str, type[OperatorSuite]] = {}
    for path in sorted(_FOLDER.rglob("test_*.py")):
        text = path.read_text()
        if path.name in _WALKS or ("OperatorSuite" not in text and "    operator = " not in text):
            continue
        spec = importlib.util.spec_from_file_location(f"walked_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except pytest.skip.Exception:  # it needs a library that is not here
            continue
        for name, cls in inspect.getmembers(module, inspect.isclass):
            if name.startswith("Test") and issubclass(cls, OperatorSuite) and hasattr(cls, "operator"):
                found[cls.operator.__name__] = cls
    return found
