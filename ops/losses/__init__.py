"""Losses, and metrics computed inside a net."""

from netbuilder._renamed import moved_names

__all__: list[str] = []

# Operators of the module that had the name of this package.
_MOVED = [
    "AveragedLoss",
    "AveragedLossGradient",
    "CrossEntropy",
    "CrossEntropyGradient",
    "LabelCrossEntropy",
    "LabelCrossEntropyGradient",
]

__getattr__ = moved_names(__name__, dict.fromkeys(_MOVED, f"{__name__}.losses"))
