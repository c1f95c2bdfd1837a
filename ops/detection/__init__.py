"""Object detection: boxes, proposals, pooling of regions, and losses."""
