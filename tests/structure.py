"""Comparing nets by their meaning: operators in order, with blobs, arguments, engine and device."""

from __future__ import annotations

import difflib
from typing import Any

from netbuilder.ops.core.random_streams import RANDOM_ARGUMENTS
from netbuilder.proto import DeviceOption, NetDef, OperatorDef
from netbuilder.proto.arguments import argument_value

__all__ = ["differences", "operator_text"]


def differences(got: NetDef, want: NetDef) -> list[str]:
    """Return one line for each operator that only one of two nets has; none if they do the same.

    Not compared: names of nets and operators, source lines, random streams (Caffe2 has none), the order
    of an operator's arguments, a CPU device written as absent, empty or zeros, and the order of Copy
    operators at a net's end.

    Returns:
        "- ..." for operators of ``want`` that are missing, "+ ..." for those of ``got`` that are too
        much, in the order of the nets; after them, in the same form, differences of external inputs.
    """
    lines = _difference([operator_text(op) for op in want.op], [operator_text(op) for op in got.op])
    missing = sorted(set(want.external_input) - set(got.external_input))
    extra = sorted(set(got.external_input) - set(want.external_input))
    lines += [f"- external input {name}" for name in missing] + [f"+ external input {name}" for name in extra]
    return lines


def _difference(want: list[str], got: list[str]) -> list[str]:
    want, got = _sorted_tail(want), _sorted_tail(got)
    if want == got:
        return []
    return [line for line in difflib.unified_diff(want, got, n=0, lineterm="") if line[:3] not in ("---", "+++", "@@ ")]


def _sorted_tail(lines: list[str]) -> list[str]:
    start = len(lines)
    while start and lines[start - 1].startswith("Copy("):
        start -= 1
    return lines[:start] + sorted(lines[start:])


def operator_text(op: OperatorDef) -> str:
    """Return an operator on one line; two with the same line do the same."""
    parts = [f"{op.type}({', '.join(op.input)}) -> {', '.join(op.output)}"]
    parts += sorted(f"{a.name}={_value_text(argument_value(a))}" for a in op.arg if a.name not in RANDOM_ARGUMENTS)
    if op.engine:
        parts.append(f"engine={op.engine}")
    if op.control_input:
        parts.append(f"after {', '.join(op.control_input)}")
    if op.is_gradient_op:
        parts.append("gradient")
    device = _device_text(op.device_option)
    return "; ".join([*parts, device] if device else parts)


def _value_text(value: Any) -> str:
    if isinstance(value, NetDef):
        return "{" + " | ".join(map(operator_text, value.op)) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value_text, value)) + "]"
    return repr(value)


def _device_text(device: DeviceOption) -> str:
    texts = [f"device {device.device_type}:{device.device_id}"] if device.device_type or device.device_id else []
    if device.node_name:
        texts.append(f"on {device.node_name}")
    return " ".join([*texts, *device.extra_info])
