"""Batches prepared while a net runs, and losses read without waiting."""
