"""Branches and loops as execution steps: all that the library's own module has."""

from __future__ import annotations

from netbuilder.caffe2.absent import names_of
from netbuilder.jobs.control import (
    BoolNet,
    CombineConditions,
    Do,
    DoParallel,
    DoUntil,
    DoWhile,
    For,
    GetConditionBlobFromNet,
    If,
    IfNot,
    MergeConditionNets,
    NotNet,
    Switch,
    SwitchNot,
    Until,
    While,
)

__all__ = [
    "BoolNet",
    "CombineConditions",
    "Do",
    "DoParallel",
    "DoUntil",
    "DoWhile",
    "For",
    "GetConditionBlobFromNet",
    "If",
    "IfNot",
    "MergeConditionNets",
    "NotNet",
    "Switch",
    "SwitchNot",
    "Until",
    "While",
]

__getattr__ = names_of(__name__)
