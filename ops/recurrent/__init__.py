"""RecurrentNetwork, its gradient, steps of recurrent cells, and whole recurrent layers for inference."""

from netbuilder._renamed import moved_names

__all__: list[str] = []

# Operators of the module that had the name of this package.
_MOVED = ["RecurrentNetwork", "RecurrentNetworkGradient"]

__getattr__ = moved_names(__name__, dict.fromkeys(_MOVED, f"{__name__}.network"))
