"""Workspaces, the plan compiler and the executors; input beside the runs, and losses read without waiting."""

from netbuilder.runtime.loss_reader import LossReader
from netbuilder.runtime.net import NET_TYPES
from netbuilder.runtime.prefetch import Prefetch, PrefetchState
from netbuilder.runtime.random_state import RandomState, random_state, set_random_state
from netbuilder.runtime.workspace import Workspace

__all__ = [
    "NET_TYPES",
    "LossReader",
    "Prefetch",
    "PrefetchState",
    "RandomState",
    "Workspace",
    "random_state",
    "set_random_state",
]
