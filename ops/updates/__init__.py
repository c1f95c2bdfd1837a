"""Update rules of optimizers, learning-rate policies and the iteration counter."""
