"""Workspaces, the plan compiler and the executors."""

from netbuilder.runtime.net import NET_TYPES
from netbuilder.runtime.random_state import RandomState, random_state, set_random_state
from netbuilder.runtime.workspace import Workspace

__all__ = ["NET_TYPES", "RandomState", "Workspace", "random_state", "set_random_state"]
