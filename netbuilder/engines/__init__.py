"""Engines: what computes operators and where, with the libraries and devices that they use."""
