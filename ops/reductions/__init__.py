"""Reductions over axes: sums, norms, moments, extremes, quantiles and histograms."""
