"""Blobs, the buffers that their values are stored in, and worker threads."""
