"""Control flow, Python and ONNX operators, and operators that count, check, print and time."""

__all__: list[str] = []
