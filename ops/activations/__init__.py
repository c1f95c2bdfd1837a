"""Activations, Softmax and Dropout."""

from netbuilder._renamed import moved_names

__all__: list[str] = []

# Operators of the module that had the name of this package.
_MOVED = [
    "Elu",
    "EluGradient",
    "LeakyRelu",
    "LeakyReluGradient",
    "Relu",
    "ReluGradient",
    "Sigmoid",
    "SigmoidGradient",
    "Tanh",
    "TanhGradient",
]

__getattr__ = moved_names(__name__, dict.fromkeys(_MOVED, f"{__name__}.activations"))
