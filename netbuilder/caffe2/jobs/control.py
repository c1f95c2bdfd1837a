"""Branches and loops as execution steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netbuilder.caffe2.records import data_type_for_dtype
from netbuilder.graph import BlobReference, ExecutionStep, Net, execution_step, to_execution_step
from netbuilder.proto import NetError

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

NetsOrSteps = Any
Condition = Any  # a blob, or a net whose last external output it is

_BOOL = data_type_for_dtype(bool)
_names: set[str] = set()
_next_number = [1]


def _unique(name: str) -> str:
    if name in _names:
        name = f"{name}_{_next_number[0]}"
        _next_number[0] += 1
    _names.add(name)
    return name


def _listed(nets_or_steps: NetsOrSteps) -> list[Any]:
    return list(nets_or_steps) if isinstance(nets_or_steps, (list, tuple)) else [nets_or_steps]


def _is_nets(nets_or_steps: NetsOrSteps) -> bool:
    return all(isinstance(part, Net) for part in _listed(nets_or_steps))


def _joined(first: NetsOrSteps, second: NetsOrSteps) -> list[Any]:
    """Return nets and steps in one list; nets are converted to steps unless all are nets."""
    parts = [*_listed(first), *_listed(second)]
    return parts if _is_nets(parts) else [to_execution_step(part) for part in parts]


def BoolNet(*blobs_with_bool_value: Any) -> Net:
    """Return a net that sets blobs to true or false.

    Args:
        blobs_with_bool_value: pairs (blob, value), or a list of pairs, or a single blob and value.
    """
    pairs: Sequence[Any] = blobs_with_bool_value
    if len(pairs) == 1 and isinstance(pairs[0], list):
        pairs = pairs[0]
    if len(pairs) == 2 and not isinstance(pairs[0], tuple):
        pairs = [pairs]
    net = Net("bool_net")
    for blob, value in pairs:
        net.AddExternalOutput(net.ConstantFill([], [blob], shape=[], value=bool(value), dtype=_BOOL))
    return net


def _condition(condition: Condition) -> BlobReference:
    return GetConditionBlobFromNet(condition) if isinstance(condition, Net) else BlobReference(str(condition))


def NotNet(condition_blob_or_net: Condition) -> tuple[Net, BlobReference]:
    """Return a net that negates a condition, and its result; if the condition is a net, it must run before."""
    net = Net("not_net")
    out = net.Not(_condition(condition_blob_or_net))
    net.AddExternalOutput(out)
    return net, out


def _copy_net(condition: Condition) -> tuple[Net, BlobReference]:
    """Return a net that copies a condition, so that steps may change the original, and the copy."""
    net = Net("copy_condition_blob_net")
    out = net.Copy(_condition(condition))
    net.AddExternalOutput(out)
    return net, out


def GetConditionBlobFromNet(condition_net: Net) -> BlobReference:
    """Return the condition that a net computes: its last external output.

    Raises:
        NetError: it has no external output.
    """
    outputs = condition_net.Proto().external_output
    if not outputs:
        raise NetError(f"net {condition_net}: a net that computes a condition must have it as its last external output")
    return BlobReference(outputs[-1])


def MergeConditionNets(name: str, condition_nets: Any, relation: str) -> Any:
    """Return a net with the operators of several nets, whose last output combines their conditions.

    Args:
        name: of the net.
        condition_nets: nets that compute conditions; a single one is returned unchanged.
        relation: "And" or "Or".
    """
    if not isinstance(condition_nets, list):
        return condition_nets
    if len(condition_nets) <= 1:
        return condition_nets[0] if condition_nets else None
    return _join(Net(name), condition_nets, relation, append=True)


def CombineConditions(name: str, condition_nets: Sequence[Net], relation: str) -> Net | None:
    """Return a net that combines conditions computed by several nets, which must run before; None for no nets.

    Args:
        name: of the net.
        condition_nets: those nets.
        relation: "And" or "Or".
    """
    if not condition_nets:
        return None
    if len(condition_nets) == 1:
        return _copy_net(condition_nets[0])[0]
    return _join(Net(name), condition_nets, relation, append=False)


def _join(net: Net, condition_nets: Sequence[Net], relation: str, *, append: bool) -> Net:
    """Add operators that combine the conditions of several nets, and, with ``append``, the nets themselves."""
    if relation not in ("And", "Or"):
        raise NetError(f"net {net}: relation must be 'And' or 'Or', got {relation!r}")
    last = None
    for other in condition_nets:
        if append:
            net.AppendNet(other)
        condition = GetConditionBlobFromNet(other)
        last = condition if last is None else getattr(net, relation)([last, condition])
    del net.Proto().external_output[:]
    net.AddExternalOutput(last)
    return net


def Do(name: str, *nets_or_steps: NetsOrSteps) -> ExecutionStep:
    """Return a step that runs nets or steps one after the other."""
    return execution_step(_unique(f"{name}/Do"), _grouped(nets_or_steps))


def DoParallel(name: str, *nets_or_steps: NetsOrSteps) -> ExecutionStep:
    """Return a step that runs nets or steps at the same time."""
    return execution_step(_unique(f"{name}/DoParallel"), _grouped(nets_or_steps), concurrent_substeps=True)


def _grouped(parts: Sequence[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    return list(parts) if _is_nets(parts) else [to_execution_step(part) for part in parts]


def _with_false(name: str, blob: BlobReference, step: ExecutionStep) -> ExecutionStep:
    """Return ``step`` after a net that sets its stop blob to false."""
    return Do(name, BoolNet((blob, False)), step)


def _inner(name: str, parts: Any, stop: BlobReference, only_once: bool | None = None) -> ExecutionStep:
    return execution_step(_unique(name + "-inner"), parts, should_stop_blob=stop, only_once=only_once)


def DoUntil(name: str, condition_blob_or_net: Condition, nets_or_steps: NetsOrSteps) -> ExecutionStep:
    """Return a step that runs nets or steps at least once, until a condition, evaluated after each run, holds.

    If the condition is a blob, it is checked after each net, so it must exist and be false beforehand.
    """
    if not isinstance(condition_blob_or_net, Net):
        return execution_step(_unique(f"{name}/DoUntil"), nets_or_steps, should_stop_blob=condition_blob_or_net)
    name = f"{name}/DoUntil"
    stop = GetConditionBlobFromNet(condition_blob_or_net)
    return _with_false(name, stop, _inner(name, _joined(nets_or_steps, condition_blob_or_net), stop))


def DoWhile(name: str, condition_blob_or_net: Condition, nets_or_steps: NetsOrSteps) -> ExecutionStep:
    """Return a step that runs nets or steps at least once, as long as a condition, evaluated after each run, holds."""
    name = f"{name}/DoWhile"
    opposite, stop = NotNet(condition_blob_or_net)
    checks = [condition_blob_or_net, opposite] if isinstance(condition_blob_or_net, Net) else [opposite]
    return _with_false(name, stop, _inner(name, _joined(nets_or_steps, checks), stop))


def Until(name: str, condition_blob_or_net: Condition, nets_or_steps: NetsOrSteps) -> ExecutionStep:
    """Return a step that runs nets or steps until a condition, evaluated before each run, holds.

    If the condition is a blob, it is checked after each net instead.
    """
    stop = _condition(condition_blob_or_net)
    parts = nets_or_steps
    if isinstance(condition_blob_or_net, Net):
        parts = _joined(condition_blob_or_net, nets_or_steps)
    return execution_step(_unique(f"{name}/Until"), parts, should_stop_blob=stop)


def While(name: str, condition_blob_or_net: Condition, nets_or_steps: NetsOrSteps) -> ExecutionStep:
    """Return a step that runs nets or steps as long as a condition, evaluated before each run, holds."""
    return _while(f"{name}/While", condition_blob_or_net, nets_or_steps)


def _while(name: str, condition: Condition, nets_or_steps: Any, only_once: bool | None = None) -> ExecutionStep:
    opposite, stop = NotNet(condition)
    checks = [condition, opposite] if isinstance(condition, Net) else [opposite]
    return _with_false(name, stop, _inner(name, _joined(checks, nets_or_steps), stop, only_once))


def For(name: str, nets_or_steps: NetsOrSteps, iter_num: int) -> ExecutionStep:
    """Return a step that runs nets or steps ``iter_num`` times."""
    init = Net("init-net")
    counter = init.CreateCounter([], init_count=iter_num)
    count = Net("For-iter")
    done = count.CountDown([counter])
    name = f"{name}/For"
    inner = _inner(name, _joined(count, nets_or_steps), done)
    return Do(name, Do(name + "-init-net", init), inner)


def _if(name: str, condition: Condition, nets_or_steps: NetsOrSteps) -> ExecutionStep:
    return _while(f"{name}/_RunOnceIf", condition, nets_or_steps, only_once=True)


def _if_not(name: str, condition: Condition, nets_or_steps: NetsOrSteps) -> ExecutionStep:
    if isinstance(condition, Net):
        net, stop = condition, GetConditionBlobFromNet(condition)
    else:
        net, stop = _copy_net(condition)
    parts = _joined(net, nets_or_steps)
    return execution_step(_unique(f"{name}/_RunOnceIfNot"), parts, should_stop_blob=stop, only_once=True)


def If(
    name: str,
    condition_blob_or_net: Condition,
    true_nets_or_steps: NetsOrSteps,
    false_nets_or_steps: NetsOrSteps | None = None,
) -> ExecutionStep:
    """Return a step that runs nets or steps if a condition holds, and others, if any, if not."""
    name = f"{name}/If"
    if not false_nets_or_steps:
        return _if(name, condition_blob_or_net, true_nets_or_steps)
    return Do(
        name,
        _if(name + "-true", condition_blob_or_net, true_nets_or_steps),
        _if_not(name + "-false", _condition(condition_blob_or_net), false_nets_or_steps),
    )


def IfNot(
    name: str,
    condition_blob_or_net: Condition,
    true_nets_or_steps: NetsOrSteps,
    false_nets_or_steps: NetsOrSteps | None = None,
) -> ExecutionStep:
    """Return a step that runs nets or steps if a condition does not hold, and others, if any, if it does."""
    name = f"{name}/IfNot"
    if not false_nets_or_steps:
        return _if_not(name, condition_blob_or_net, true_nets_or_steps)
    return Do(
        name,
        _if_not(name + "-true", condition_blob_or_net, true_nets_or_steps),
        _if(name + "-false", _condition(condition_blob_or_net), false_nets_or_steps),
    )


def Switch(name: str, *conditions: Any) -> ExecutionStep:
    """Return a step that goes through pairs (condition, nets or steps) and runs those whose condition holds."""
    steps = [_if(f"{name}/Switch", condition, parts) for condition, parts in conditions]
    return execution_step(_unique(f"{name}/Switch"), steps)


def SwitchNot(name: str, *conditions: Any) -> ExecutionStep:
    """Return a step that goes through pairs (condition, nets or steps) and runs those whose condition does not hold."""
    steps = [_if_not(f"{name}/SwitchNot", condition, parts) for condition, parts in conditions]
    return execution_step(_unique(f"{name}/SwitchNot"), steps)
