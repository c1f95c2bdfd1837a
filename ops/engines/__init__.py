"""Interfaces to libraries and devices: array modules, GPUs, oneDNN, random streams, allocation."""
