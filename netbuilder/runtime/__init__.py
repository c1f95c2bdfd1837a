"""Workspaces, the plan compiler and the executors."""

from netbuilder.runtime.net import NET_TYPES
from netbuilder.runtime.workspace import Workspace

__all__ = ["NET_TYPES", "Workspace"]
