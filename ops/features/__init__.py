"""Sparse and categorical features: hashing, buckets, maps and lists."""
