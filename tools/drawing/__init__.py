"""Drawings of nets: where operators stand, and the page that shows them."""
