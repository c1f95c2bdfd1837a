"""Benchmarks compared with peers: workers that run steps, a controller that alternates them, the machine."""
