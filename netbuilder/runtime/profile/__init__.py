"""Profiles of nets: timed calls, memory, and the machine's limits."""
