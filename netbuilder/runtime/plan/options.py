"""PlanOptions: everything that can be chosen about how a net is planned and run, in one place."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import field, fields, replace
from typing import Any, Literal

from netbuilder.engines.engine import engine_names
from netbuilder.graph.memory_budget import BUDGET_ARGUMENT, parse_budget
from netbuilder.graph.observability import ACTIVATIONS, OUTPUTS
from netbuilder.ops.core.precision import (
    DETERMINISTIC_ARGUMENT,
    PRECISION_ARGUMENT,
    PRECISIONS,
    TF32_ARGUMENT,
    check_precision,
    check_switch,
)
from netbuilder.proto import NetDef, NetError
from netbuilder.proto.arguments import arguments
from netbuilder.proto.call_checks import is_flag, is_whole
from netbuilder.proto.cores import core_count
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.plan.observable import check_constants
from netbuilder.runtime.plan.optimizations import (
    OPTIMIZATIONS,
    Optimization,
    Switch,
    check_without,
    from_environment,
    members,
    optimization,
)

__all__ = ["NET_OPTIONS", "FindNan", "PlanOptions", "check_find_nan", "default_threads"]

FindNan = bool | Literal["nan"]
"""True: find NaN and infinities; "nan": only NaN; False: nothing."""

_STORED = {
    "dtype": PRECISION_ARGUMENT,
    "allow_tf32": TF32_ARGUMENT,
    "deterministic": DETERMINISTIC_ARGUMENT,
    "memory_budget": BUDGET_ARGUMENT,
}
"""The options that a net can store, with the argument of each."""

_VARYING = members([OPTIMIZATIONS["atomic_sums"], OPTIMIZATIONS["measured_choices"]])
"""The optimizations with which two runs may differ."""

_HIDING = members(["fusion", OPTIMIZATIONS["unread_outputs"]])
"""The optimizations that leave out values in which the first NaN may be."""


def default_threads() -> int:
    """Return the default number of threads: OMP_NUM_THREADS, or the number of cores that this process may use."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    if text.isdigit() and int(text) > 0:
        return int(text)
    return core_count()


def check_find_nan(value: Any, where: str) -> FindNan:
    """Return ``value``.

    Raises:
        NetError: it is not one of the values of ``FindNan``.
    """
    if not (is_flag(value) or isinstance(value, str) and value == "nan"):
        raise NetError(f"{where}: find_nan must be True, False or 'nan' (for NaN only), got {value!r}")
    found: FindNan = value
    return found


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """How a net is planned and run: the options of ``Workspace.create_net``, and what the plan compiler reads.

    A workspace has options; those of a net are made from them by ``of_net``.

    Args:
        engines: names of the library engines that may be used; None: all that are available, (): NumPy alone.
        threads: number of threads of all compute lanes together.
        without: groups of optimizations that are off, see ``runtime.plan.optimizations``: a list, or a string of names
            separated by commas.
        dtype: how activations are stored between operators, "float32", "bfloat16" or "float16".
        allow_tf32: whether products of float32 values on GPUs may use TF32, which rounds the factors to 10 bits.
        deterministic: whether two runs must be equal to the bit, see ``Net.set_deterministic``.
        observable: the blobs that can be fetched after a run: "all"; "activations", all but the gradients that only
            operators of the backward pass read; "outputs", external inputs (parameters, moments, statistics) and
            outputs, losses, metrics and learning rates; or a list of names, for "outputs" and these. None: what the net
            stores (``Net.set_observable``), or ``observable_default``. Other blobs may be fused away or share memory;
            the first fetch of one is an error, and from the next run on it is kept.
        observable_default: which they are if the net stores nothing; with a memory budget, always "outputs".
        constants: external inputs that seldom change, such as the parameters of a predictor: they are converted to the
            layouts that kernels read once, and again when the blob gets another value. Blobs that the net writes are
            not treated as constant.
        memory_budget: the memory that a run may take, in bytes, as text such as "4GiB", or as a fraction of what it
            would take; values are computed again to keep to it. None: no limit.
        find_nan: raise an error at the first operator whose result is NaN or infinite ("nan": only NaN). Every operator
            is looked at by itself, those of step nets and other subgraphs too, so that nothing is fused and the lanes
            run one after the other: a run takes several times as long.
        lanes: number of compute lanes, to which devices are assigned; the net's type and devices tell it.
        exchange_lane: whether one more lane runs the operators that exchange values between devices; likewise.
        largest_plan: with a fraction as budget, the most bytes that an earlier plan of the net would have needed.
        owner: whose options they are, for messages.

    Raises:
        NetError: an engine, a group in ``without`` or ``dtype`` is unknown, a value is out of range, or there is a
            budget while values may not share memory.
    """

    engines: tuple[str, ...] | None = None
    threads: int = 1
    without: frozenset[Switch] = frozenset()
    dtype: str = PRECISIONS[0]
    allow_tf32: bool = False
    deterministic: bool = False
    observable: str | Iterable[Any] | None = None
    observable_default: str = ACTIVATIONS
    constants: frozenset[str] = frozenset()
    memory_budget: int | float | None = None
    find_nan: FindNan = False
    lanes: int = 1
    exchange_lane: bool = False
    largest_plan: int = 0
    owner: str = field(default="PlanOptions", compare=False)
    off: frozenset[Optimization] = field(init=False, compare=False, repr=False)
    """The optimizations that are off: those of ``without``, and those that other options exclude."""

    def __post_init__(self) -> None:
        known, where = engine_names(), self.owner
        named = isinstance(self.engines, (tuple, list, set))
        if self.engines is not None and not (named and all(each in known for each in self.engines)):
            raise NetError(f"{where}: engines must be a tuple of names among {', '.join(known)}, got {self.engines!r}")
        if not is_whole(self.threads) or self.threads < 1:
            raise NetError(f"{where}: threads must be a whole number, 1 or more, got {self.threads!r}")
        checked: dict[str, Any] = {
            "without": check_without(self.without, where),
            "dtype": check_precision(self.dtype, where),
            "allow_tf32": check_switch(self.allow_tf32, "allow_tf32", where),
            "deterministic": check_switch(self.deterministic, "deterministic", where),
            "find_nan": check_find_nan(self.find_nan, where),
        }
        excluded = members(checked["without"])
        excluded |= _VARYING if checked["deterministic"] else frozenset()
        excluded |= _HIDING if checked["find_nan"] else frozenset()
        if self.memory_budget is not None:
            checked["memory_budget"] = parse_budget(self.memory_budget, where)
            if OPTIMIZATIONS["reuse"] in excluded:
                raise NetError(
                    f"{where}: a memory_budget needs values that share memory, and the optimizations of the group "
                    "'memory' are off; switch them on, or omit the budget"
                )
            checked["observable_default"] = OUTPUTS
        for name, value in (*checked.items(), ("off", excluded)):
            object.__setattr__(self, name, value)

    def of_net(self, net: NetDef, **given: Any) -> PlanOptions:
        """Return the options of a net in a workspace that has these.

        Each is what is given, else what the net stores, else the workspace's; ``NETBUILDER_WITHOUT`` switches off more.

        Args:
            net: the net.
            given: options by name (``NET_OPTIONS``); None stands for one that is not given.

        Raises:
            NetError: as the constructor, or for a name in ``NETBUILDER_WITHOUT``.
            BlobError: the net has no blob of a name in ``constants``.
        """
        own, stored = {name: value for name, value in given.items() if value is not None}, arguments(net)
        for name, argument in _STORED.items():
            if argument in stored:
                value = stored[argument]
                own.setdefault(name, value.decode(errors="replace") if isinstance(value, bytes) else value)
        owner = f"net {net.name!r}"
        own["without"] = check_without(own.get("without", self.without), owner) | from_environment()
        own["constants"] = check_constants(net, own.get("constants", ()))
        return replace(self, **own, owner=owner)

    def of_subgraph(self, observable: str | None) -> PlanOptions:
        """Return the options of a net inside an operator of a net with these; its results are looked at by the net's.

        Args:
            observable: which of its blobs can be fetched; None: what it stores.
        """
        return replace(
            self, without=self.off, observable=observable, constants=frozenset(), memory_budget=None, find_nan=False
        )

    @property
    def lane_threads(self) -> int:
        """Number of threads of a compute lane."""
        return max(1, self.threads // self.lanes)

    @property
    def lane_count(self) -> int:
        """Number of lanes of all roles; the exchange lane is the last one."""
        return self.lanes + self.exchange_lane

    def threads_of(self, lane: int) -> int:
        """Return how many threads a lane has; the exchange lane waits most of the time and has one."""
        return self.lane_threads if lane < self.lanes else 1

    def enabled(self, name: str) -> bool:
        """Whether an optimization is on, by its name in ``runtime.plan.optimizations``.

        Raises:
            NetError: there is no such optimization.
        """
        return optimization(name, "PlanOptions.enabled") not in self.off

    def uses_engine(self, engine: str) -> bool:
        """Whether kernels of an engine may be used; "" stands for NumPy and CuPy, which always may."""
        return engine == "" or self.engines is None or engine in self.engines


NET_OPTIONS = tuple(
    each.name
    for each in fields(PlanOptions)
    if each.init and each.name not in ("threads", "lanes", "exchange_lane", "largest_plan", "owner")
)
"""The options that one can give for a net, see ``PlanOptions.of_net``."""
