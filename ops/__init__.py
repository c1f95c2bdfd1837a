"""Operators, declared once: arguments, in-place rules, shapes, gradient, cost and kernels."""

if __name__ != "netbuilder.ops":
    raise ImportError("import this package as netbuilder.ops: a second copy would register every operator twice")
