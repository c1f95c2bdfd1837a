"""Convolution and pooling: windows that slide over images."""
