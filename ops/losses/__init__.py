"""Losses, and metrics computed inside a net."""
