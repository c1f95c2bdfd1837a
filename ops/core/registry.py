"""The registry of operators and of their kernels. The module of an operator is imported when it is first asked for."""

from __future__ import annotations

import functools
import importlib
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from netbuilder.data.forking import loading
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.unsupported import instead_of
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, NetError
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "CPU",
    "GPU",
    "declaring_modules",
    "find",
    "is_registered",
    "kernel",
    "operator_types",
    "plain_kernel",
    "prepare",
    "prepare_joined",
    "prepare_table",
    "prepared_joined",
    "prepared_kernels",
    "register",
]

CPU = PROTO_CPU
GPU = PROTO_CUDA

_DECLARATION = re.compile(rb"\n@register\w*\n(?:@.*\n)*class (\w+)")
_operators: dict[str, type[Operator]] = {}
_imported: set[str] = set()  # netbuilder's own operators that have been asked for
_plain: dict[tuple[str, int | None], Callable[..., Any]] = {}
_prepared: dict[tuple[str, int], list[PreparedKernel]] = {}
_joined: dict[tuple[str, int], Callable[..., Any]] = {}
_given: dict[tuple[str, int], set[str]] = {}  # by engine and device: the operators of its tables


@dataclass(frozen=True)
class PreparedKernel:
    """A registered prepared kernel: ``make(op, ctx, *specs)`` returns a ``Prepared``, or None if it does not apply."""

    make: Callable[..., Any]
    engine: str
    priority: int


@functools.cache
def declaring_modules() -> Mapping[str, str]:
    """Return, by operator type, the name of the module whose import registers the operator and its kernels.

    The files of the families say so, which are read and not imported.
    """
    modules = {}
    for family in os.scandir(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))):
        if not family.is_dir() or family.name == "core":
            continue
        for file in os.scandir(family.path):
            name, extension = os.path.splitext(file.name)
            if extension == ".py":
                with open(file.path, "rb") as text:
                    declared = _DECLARATION.findall(text.read())
                modules.update({each.decode(): f"netbuilder.ops.{family.name}.{name}" for each in declared})
    return modules


def register(cls: type[Operator]) -> type[Operator]:
    """Class decorator: register an operator under the name of its class.

    A class takes the place of the one that an interrupted import of the same module has left.

    Raises:
        NetError: the class is no dataclass, or another operator has its name.
    """
    name = cls.__name__
    known = _operators.get(name)
    module = declaring_modules().get(name, known.__module__ if known else cls.__module__)
    if module != cls.__module__ or (known and not _same_place(known, cls)):
        raise NetError(f"operator {name!r} is registered twice: {module} and {cls.__module__}")
    if "__dataclass_params__" not in vars(cls):
        raise NetError(f"operator {name!r} must be a dataclass: put @dataclass(frozen=True) below @register")
    _operators[name] = cls
    for gradient, forward in ((name, _forward_of(name)), (f"{name}Gradient", name), (f"{name}Grad", name)):
        if gradient != forward and gradient in _operators and forward in _operators:
            known = _operators[gradient].gradient_of  # its own or that of a base
            if known is None or issubclass(_operators[forward], known):
                _operators[gradient].gradient_of = _operators[forward]
    return cls


def _forward_of(name: str) -> str:
    return name.removesuffix("Gradient") if name.endswith("Gradient") else name.removesuffix("Grad")


def _same_place(one: Any, other: Any) -> bool:
    """Say whether two classes or functions are of the same lines of a module, which was imported again."""
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


def kernel(cls: type[Operator], *, device: int | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register ``fn(op, ctx, *inputs) -> tuple of arrays`` as the plain kernel of an operator.

    Args:
        cls: the operator.
        device: CPU or GPU if the kernel is for one only; None: both.

    Raises:
        NetError: ``cls`` is not registered.
    """
    if _operators.get(getattr(cls, "__name__", "")) is not cls:
        raise NetError(f"@kernel takes a class that is declared before, under @register, got {cls!r}")

    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        _plain[cls.__name__, device] = fn
        return fn

    return add


def prepare(
    cls: type[Operator], *, device: int, engine: str = "", priority: int = 0
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register ``fn(op, ctx, *specs) -> Prepared | None`` as a prepared kernel.

    Of several, the one with the highest ``priority`` that does not return None is used.

    Args:
        cls: the operator.
        device: CPU or GPU.
        engine: the name of the library ("ONEDNN", "CUDNN"), or "" for NumPy and CuPy.
        priority: kernels with a higher priority are tried first.
    """

    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        _add_prepared(cls.__name__, device, PreparedKernel(fn, engine, priority))
        return fn

    return add


def _add_prepared(op_type: str, device: int, added: PreparedKernel) -> None:
    rows = _prepared.setdefault((op_type, device), [])
    rows[:] = [row for row in rows if row.engine != added.engine or not _same_place(row.make, added.make)]
    rows.append(added)
    rows.sort(key=lambda row: -row.priority)


def prepare_joined(cls: type[Operator], *, device: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register ``fn(ops, ctx, *specs) -> Prepared | None`` as the prepared kernel of several operators of a type.

    Its inputs and outputs are those of the operators, one operator after another; the operators do not depend on one
    another.
    """

    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        _joined[cls.__name__, device] = fn
        return fn

    return add


def prepare_table(table: Mapping[str, Callable[..., Any]], *, device: int, engine: str, priority: int = 0) -> None:
    """Register an engine's prepared kernels, given by operator type; a later call adds none of them again.

    Arguments as for ``prepare``.
    """
    given = _given.setdefault((engine, device), set())
    if given.issuperset(table):  # as before all compilations but the first
        return
    for op_type, make in table.items():
        if all(row.engine != engine for row in _prepared.get((op_type, device), [])):
            _add_prepared(op_type, device, PreparedKernel(make, engine, priority))
    given.update(table)


def _declared(op_type: str) -> type[Operator] | None:
    """Return the class of an operator, whose module has been imported in full; None: it is not registered."""
    if op_type not in _imported and (module := declaring_modules().get(op_type)):
        with loading:
            importlib.import_module(module)
            _imported.add(op_type)
            _declared(_forward_of(op_type))  # its ``gradient_of``
    return _operators.get(op_type)


def find(op_type: str) -> type[Operator]:
    """Return the class of an operator.

    Raises:
        NetError: it is not registered; the message suggests a replacement for Caffe2's operators, else similar names.
    """
    cls = _declared(op_type)
    if cls is None:
        raise NetError(
            f"unknown operator {op_type!r}{instead_of(op_type, operator_types())}"
            " (netbuilder.ops.core.registry.operator_types() lists all)"
        )
    return cls


def is_registered(op_type: str) -> bool:
    """Whether an operator of this name is registered."""
    return op_type in declaring_modules() or op_type in _operators


def operator_types() -> list[str]:
    """Return the names of all operators, sorted."""
    return sorted({*declaring_modules(), *_operators})


def plain_kernel(op_type: str, device: int) -> Callable[..., Any] | None:
    """Return the plain kernel for a device: one for this device only, else one for both; None if there is none."""
    _declared(op_type)
    return _plain.get((op_type, device)) or _plain.get((op_type, None))


def prepared_joined(op_type: str, device: int) -> Callable[..., Any] | None:
    """Return the prepared kernel of several operators of a type on a device; None if there is none."""
    _declared(op_type)
    return _joined.get((op_type, device))


def prepared_kernels(op_type: str, device: int) -> list[PreparedKernel]:
    """Return the prepared kernels of an operator on a device, the preferred ones first."""
    _declared(op_type)
    return _prepared.get((op_type, device), [])
