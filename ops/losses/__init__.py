"""Losses, and metrics computed inside a net."""

__all__: list[str] = []
