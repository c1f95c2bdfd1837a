"""Elementwise arithmetic, comparisons, roundings, casts, and sums of several inputs."""
