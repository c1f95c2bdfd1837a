"""Operators that create tensors: constants, given values, random numbers and ranges."""
