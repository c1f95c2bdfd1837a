"""Resizing, padding and rearranging images."""
