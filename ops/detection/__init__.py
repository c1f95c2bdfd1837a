"""Boxes, proposals, pooling of regions, and the losses of detectors."""
