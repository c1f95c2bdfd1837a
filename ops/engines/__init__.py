"""All that talks to a library or a device: array modules, oneDNN, random streams, allocation."""
