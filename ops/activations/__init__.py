"""Activations, Softmax and Dropout."""
