"""Reductions of segments, by lengths, by segment ids and by ranges; padding and packing of sequences."""
