"""Benchmarks beside peers: workers that step a net, a controller that pairs them, a look at the machine."""
