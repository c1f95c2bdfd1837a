"""Batch, group, layer and local response normalization."""
