"""Operators that rearrange values: shapes, joins, slices, gathers, scatters and copies."""
