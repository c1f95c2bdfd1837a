"""Convolution and pooling: operators with windows that slide over images."""
