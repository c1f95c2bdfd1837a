"""Nets for the profiler, from files, predictors and the zoo, created in a workspace with their inputs fed."""
