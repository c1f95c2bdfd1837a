"""Drawings of nets: their layout, and the page that shows them."""
