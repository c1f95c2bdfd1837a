"""Failure: what ends a job, and names the rank, where one of its processes fails, hangs or does not come."""
