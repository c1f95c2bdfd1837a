"""Parts of the trainer: options, data, nets by name, the run, and its reports."""
