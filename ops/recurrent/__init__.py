"""RecurrentNetwork, its gradient, and steps of recurrent cells."""
