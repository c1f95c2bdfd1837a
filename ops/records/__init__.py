"""Operators that read and write records: databases, images, files, queues and data sets."""
