"""What the examples of sequence models are made of."""
