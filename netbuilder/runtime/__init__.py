"""Workspaces, the plan compiler, executors, input pipelines and profiling."""

import typing as _typing

from netbuilder._lazy import names_on_first_use as _names_on_first_use
from netbuilder.runtime.execute import default
from netbuilder.runtime.execute.net import NET_TYPES
from netbuilder.runtime.execute.random_state import RandomState, random_state, set_random_state
from netbuilder.runtime.execute.workspace import Workspace
from netbuilder.runtime.input.loss_reader import LossReader
from netbuilder.runtime.input.prefetch import Prefetch, PrefetchState

__all__ = [
    "NET_TYPES",
    "LossReader",
    "Prefetch",
    "PrefetchState",
    "RandomState",
    "Workspace",
    "default",
    "random_state",
    "set_random_state",
]

if not _typing.TYPE_CHECKING:  # for which all names are known
    __getattr__, __dir__ = _names_on_first_use(__name__, {})
