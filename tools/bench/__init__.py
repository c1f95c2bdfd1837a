"""Benchmarks against peers: worker processes that run steps, a controller that alternates them, the machine."""
