"""What the profiler runs: nets from files, from predictors and from the zoo, fed and created in a workspace."""
