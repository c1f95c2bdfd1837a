"""Operators that make values: constants, given values, random numbers and ranges."""
