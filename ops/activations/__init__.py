"""Activations, Softmax and Dropout."""

__all__: list[str] = []
