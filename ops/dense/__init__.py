"""Matrix products, tensor trains, and similarities and distances of samples."""
