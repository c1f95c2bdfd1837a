"""Drawings of nets: what they show, and the page that lays it out and shows it."""
