"""Random damage: files and one-operator nets that nobody would write, run in processes that may die of them."""
