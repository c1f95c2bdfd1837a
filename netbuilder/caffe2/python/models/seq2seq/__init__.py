"""Sequence-to-sequence nets."""
