"""Tasks, groups of tasks, nodes."""

from __future__ import annotations

from netbuilder.caffe2.absent import names_of
from netbuilder.jobs.cluster import Cluster, Node
from netbuilder.jobs.outputs import TaskOutput, TaskOutputList
from netbuilder.jobs.task import Task, TaskGroup, WorkspaceType, final_output
from netbuilder.jobs.task_setup import SetupNets, add_setup_steps, get_setup_nets

__all__ = [
    "Cluster",
    "Node",
    "SetupNets",
    "Task",
    "TaskGroup",
    "TaskOutput",
    "TaskOutputList",
    "WorkspaceType",
    "add_setup_steps",
    "final_output",
    "get_setup_nets",
]

__getattr__ = names_of(__name__)
