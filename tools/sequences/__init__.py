"""Parts of the commands that train sequence models."""
