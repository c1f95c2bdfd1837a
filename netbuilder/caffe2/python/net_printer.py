"""Nets, steps, plans, tasks and groups of tasks as text; and checks of what they read."""

from __future__ import annotations

from netbuilder.caffe2.absent import names_of
from netbuilder.caffe2.analyzer import (
    Analyzer,
    analyze,
    analyze_job,
    analyze_net,
    analyze_op,
    analyze_step,
    analyze_task,
    analyze_task_group,
)
from netbuilder.caffe2.printer import (
    Printer,
    Text,
    call,
    commonprefix,
    debug_net,
    factor_prefix,
    format_device_option,
    format_value,
    print_job,
    print_net,
    print_net_def,
    print_op,
    print_step,
    print_task,
    print_task_group,
    to_string,
)
from netbuilder.caffe2.visitor import Visitor

__all__ = [
    "Analyzer",
    "Printer",
    "Text",
    "Visitor",
    "analyze",
    "analyze_job",
    "analyze_net",
    "analyze_op",
    "analyze_step",
    "analyze_task",
    "analyze_task_group",
    "call",
    "commonprefix",
    "debug_net",
    "factor_prefix",
    "format_device_option",
    "format_value",
    "print_job",
    "print_net",
    "print_net_def",
    "print_op",
    "print_step",
    "print_task",
    "print_task_group",
    "to_string",
]

__getattr__ = names_of(__name__)
