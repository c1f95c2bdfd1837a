"""Engine preferences of scripts: they are stored but have no effect, since plans choose the kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from netbuilder.proto import NetError

__all__ = ["SetEnginePref", "SetGlobalEnginePref", "SetOpEnginePref", "SetPerOpEnginePref", "engine_preferences"]

_by_operator: dict[int, dict[str, list[str]]] = {}
_for_all: dict[int, list[str]] = {}


def SetPerOpEnginePref(per_op_engine_pref: Mapping[int, Mapping[str, Sequence[str]]]) -> None:
    """Set preferred engines: device type -> operator type -> engines, the best first; earlier settings are replaced.

    This has no effect: the plan uses the fastest kernel, unless the operator names an ``engine``.

    Raises:
        NetError: the engines of an operator are not a list of strings.
    """
    checked = {
        device: {op: _engines(given, op) for op, given in by_op.items()} for device, by_op in per_op_engine_pref.items()
    }
    _by_operator.clear()
    _by_operator.update(checked)


def SetGlobalEnginePref(global_engine_pref: Mapping[int, Sequence[str]]) -> None:
    """Set preferred engines of all operators: device type -> engines; see ``SetPerOpEnginePref``."""
    checked = {device: _engines(given, "all operators") for device, given in global_engine_pref.items()}
    _for_all.clear()
    _for_all.update(checked)


def SetEnginePref(
    per_op_engine_pref: Mapping[int, Mapping[str, Sequence[str]]], global_engine_pref: Mapping[int, Sequence[str]]
) -> None:
    """Call ``SetPerOpEnginePref`` and ``SetGlobalEnginePref``."""
    SetPerOpEnginePref(per_op_engine_pref)
    SetGlobalEnginePref(global_engine_pref)


def SetOpEnginePref(op_type: str, op_pref: Mapping[int, Sequence[str]]) -> None:
    """Set preferred engines of one operator: device type -> engines; see ``SetPerOpEnginePref``."""
    for device, given in op_pref.items():
        _by_operator.setdefault(device, {})[op_type] = _engines(given, op_type)


def engine_preferences(op_type: str, device_type: int) -> list[str]:
    """Return the engines that scripts prefer for an operator on a device, its own before those for all.

    >>> SetEnginePref({0: {"Conv": ["NNPACK"]}}, {0: ["EIGEN"]})
    >>> engine_preferences("Conv", 0)
    ['NNPACK', 'EIGEN']
    >>> SetEnginePref({}, {})
    """
    return [*_by_operator.get(device_type, {}).get(op_type, ()), *_for_all.get(device_type, ())]


def _engines(given: Sequence[str], what: str) -> list[str]:
    if isinstance(given, str) or not all(isinstance(engine, str) for engine in given):
        raise NetError(f"engines preferred for {what} must be a list of names, got {given!r}")
    return list(given)
