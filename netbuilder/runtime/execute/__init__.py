"""Workspaces, created nets, and the execution of compiled plans over lanes."""
