"""An engine of another package; the entry point in pyproject.toml names its class."""
