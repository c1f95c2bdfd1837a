"""Operators, declared once: arguments, in-place rules, shapes, gradient, cost and kernels."""

from netbuilder._lazy import names_on_first_use as _names_on_first_use

if __name__ != "netbuilder.ops":
    raise ImportError("import this package as netbuilder.ops: a second copy would register every operator twice")

__all__: list[str] = []

__getattr__, __dir__ = _names_on_first_use(__name__, {})
