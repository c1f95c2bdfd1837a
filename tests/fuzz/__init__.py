"""Random damage: files and one-operator nets that no user would write, run in processes that may die of them."""
