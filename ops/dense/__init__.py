"""Products of matrices, similarities and distances of rows."""
