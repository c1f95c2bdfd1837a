"""Control flow, Python and ONNX operators, and operators that count, check, print and time."""

from netbuilder._renamed import moved_names

__all__: list[str] = []

# Operators of the module that had the name of this package.
_MOVED = ["If", "While"]

__getattr__ = moved_names(__name__, dict.fromkeys(_MOVED, f"{__name__}.control"))
