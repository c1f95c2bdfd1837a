"""Predictions of data-parallel training as text and as a figure, and the step of one device that they start from."""
