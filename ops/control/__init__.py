"""Control flow, Python and ONNX operators, and operators that count, check, print and time."""
