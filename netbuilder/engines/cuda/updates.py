"""Updates of all parameters as one kernel: a table in the GPU's memory says where each parameter's tensors are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from netbuilder.engines.cuda.gpu_layout import as_read, elements_of, in_order, order_of
from netbuilder.engines.cuda.many_tensors import ManyTensors, Part
from netbuilder.engines.joined_updates import JoinedUpdates
from netbuilder.engines.traced import trace_update_chain
from netbuilder.engines.tracing import HostNumber, NotTraced
from netbuilder.ops.core.contexts import PlanContext, Prepared
from netbuilder.ops.core.extensions import Capturable
from netbuilder.ops.core.operator import TensorSpec

__all__ = ["join_updates"]


def join_updates(ctx: PlanContext, updates: JoinedUpdates) -> Prepared | None:
    """Return the kernel of many updates; None if one of them cannot be traced."""
    try:
        chains = [trace_update_chain(ctx, chain, updates, is_gpu=True) for chain in updates.chains]
    except NotTraced:
        return None
    expected = [spec.plain for spec in updates.specs]
    written: dict[int, TensorSpec] = {}
    pairs: list[tuple[int, int]] = []
    for chain in chains:
        orders = (order_of(updates.specs[i]) for i in chain.tensors)
        order = next((order for order in orders if order is not None), None)
        if any(spec.shape != chain.shape for spec in (*(updates.specs[i] for i in chain.tensors), *chain.made)):
            order = None
        for i in chain.tensors:
            expected[i] = as_read(updates.specs[i], order)
        written |= {j: in_order(spec, order, spec.dtype.name) for j, spec in zip(chain.writes, chain.made)}
        pairs += [(i, j) for i in chain.tensors for j in chain.writes if expected[i] == written[j]]
    kernel = ManyTensors(
        "updates",
        [
            Part(
                each.program,
                each.reads,
                each.writes,
                [elements_of(expected[i]) for i in each.reads],
                math.prod(each.shape),
            )
            for each in chains
            if each.writes
        ],
    )

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Callable[[], object]:
        return kernel.bind(inputs, outputs)

    return Prepared(
        expected,
        [written[j] for j in range(len(updates.outputs))],
        bind,
        inplace=pairs,
        name=f"cuda {kernel.kernel.name}",
        extensions=(
            Capturable(frozenset(number.input for number in kernel.numbers if isinstance(number, HostNumber))),
        ),
    )
