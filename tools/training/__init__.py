"""The parts of the trainer: options, data, nets by name, the run, and what it shows."""
