"""The optimizations of plans, by name: what each one does, and how much it can change results.

Each can be switched off, by its name or that of a group: ``create_net(net, without=[...])``,
``Workspace(without=[...])``, or ``NETBUILDER_WITHOUT=name,name`` in the environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from netbuilder.proto import NetError
from netbuilder.proto.numbers import listed
from netbuilder.proto.suggestions import did_you_mean

__all__ = [
    "FUSIONS",
    "GROUPS",
    "OPTIMIZATIONS",
    "VARIABLE",
    "VARYING",
    "Optimization",
    "check_optimization",
    "check_without",
    "from_environment",
]

VARIABLE = "NETBUILDER_WITHOUT"
"""The environment variable that names the optimizations which are off for all nets of the process."""

ROUNDING = 1e-3
"""``Optimization.bound`` where terms of a sum may be added in another order."""


@dataclass(frozen=True)
class Optimization:
    """One optimization.

    Args:
        what: what it does, in one line.
        bound: how far results can be from those without it, with the same number of threads. 0: bit-identical. Else
            the distance between all parameters of a net in float32 after a few steps, relative to how far they have
            moved, for nets that do not amplify rounding (as deep nets do that normalize over few values).
        joins: whether it fuses or removes operators.
    """

    what: str
    bound: float = 0.0
    joins: bool = False


OPTIMIZATIONS: Mapping[str, Optimization] = MappingProxyType({
    "bn_relu": Optimization(
        "SpatialBN, or on a GPU SpatialBN with a Sum, and the Relu after it run as one kernel", joins=True
    ),
    "bn_relu_gradient": Optimization(
        "ReluGradient and the SpatialBNGradient after it run as one kernel, on a GPU with the Sum before them; the "
        "gradient between them, if it can be fetched, is computed then", joins=True,
    ),
    "relu_gradient_stats": Optimization(
        "ReluGradient and the ChannelBackpropStats after it, of a SpatialBN over several devices, run as one kernel",
        ROUNDING, joins=True,
    ),
    "early_relu_gradients": Optimization(
        "ReluGradient after the gradient of MaxPool, or of Concat, runs before it, on what was pooled or joined, so "
        "that the output of the Relu need not be kept"
    ),
    "sum_relu": Optimization("a Sum of two values and the Relu after it run as one kernel", joins=True),
    "fc_relu": Optimization("FC and the Relu after it run as one kernel", joins=True),
    "conv_relu": Optimization(
        "Conv, or Conv with a Sum, and the Relu after it run as one kernel", ROUNDING, joins=True
    ),
    "conv_sum": Optimization(
        "Conv adds its result to a value computed earlier, which replaces the Sum after it", ROUNDING, joins=True
    ),
    "engine_fusions": Optimization(
        "adjacent operators for which an engine of another package has one kernel are fused", ROUNDING, joins=True
    ),
    "dropout_in_test_mode": Optimization("a Dropout in test mode is removed", joins=True),
    "joined_updates": Optimization(
        "the operators that update parameters, and the weight decay before them, run as few calls, each over many "
        "parameters, on all threads of the lane", joins=True,
    ),
    "elementwise_chains": Optimization(
        "elementwise operators that read one another's results run as one kernel", ROUNDING, joins=True
    ),
    "joined_small_kernels": Optimization(
        "on a GPU, the copies of parameters to the layouts in which kernels read them are one kernel, before the first "
        "of them is read, and the running averages of all SpatialBN are one kernel, at the end", joins=True,
    ),
    "atomic_sums": Optimization(
        "on a GPU, rows with the same index are added in any order, and cuDNN and NCCL may add in any order; without "
        "it, the order is fixed, so that two runs are equal to the bit", ROUNDING,
    ),
    "early_updates": Optimization(
        "large parameters are updated during the backward pass, each group as soon as its gradients are there, if "
        "these are not observable"
    ),
    "updates_in_parts": Optimization(
        "the gradient of an FC's weights, if these are large and it is not observable, is computed some rows at a "
        "time, each time followed by the update of these rows"
    ),
    "joined_exchanges": Optimization(
        "the collectives that NCCL makes over the GPUs of a process, one per gradient, are started in groups of some "
        "megabytes, in the order in which gradients become ready", ROUNDING, joins=True,
    ),
    "buckets_in_place": Optimization(
        "the gradients of a bucket that processes exchange are stored next to each other, so that one call sums them "
        "where they are, if that takes hardly any more memory; sums over two processes, and deterministic ones, are "
        "equal to the bit", ROUNDING,
    ),
    "unread_outputs": Optimization(
        "an output that no operator reads, such as the gradient of the images, is computed when it is fetched, and "
        "not at all if it is not observable", ROUNDING,
    ),
    "blocked_layouts": Optimization(
        "values stay in the layout in which the library's kernels write them; without it they are row-major, and in "
        "float32, between operators", ROUNDING,
    ),
    "owned_layouts": Optimization(
        "a blob that is read and written in each run, such as a parameter, keeps the layout in which it is written; "
        "without it, it is copied back"
    ),
    "shared_copies": Optimization(
        "a copy of a value in another layout or on another device is made once for all readers"
    ),
    "constants": Optimization("copies of blobs that are declared constant are made once, not in each run"),
    "inplace": Optimization("a kernel overwrites its input where it can and the input is not needed any more"),
    "reuse": Optimization("values that nobody can fetch share memory when they are not needed at the same time"),
    "cheap_recomputation": Optimization(
        "outputs of normalizations, and copies in other layouts, are not kept for the backward pass but made again "
        "before it reads them, where that lowers the peak of memory, for at most 0.75 % of the plan's estimated work"
    ),
    "kept_for_gradients": Optimization(
        "intermediate results of a kernel (a variance, a scale) are kept for the kernel of its gradient", ROUNDING
    ),
    "kept_maxima": Optimization(
        "MaxPool after a Relu stores the position of each maximum in its window, and only that element gets the "
        "gradient; without it, every element equal to the maximum does, so results differ where positive elements of "
        "a window are equal", ROUNDING,
    ),
    "known_extents": Optimization(
        "shapes and extents that operators pass on as values are known when the plan is compiled; without it such an "
        "operator runs by itself, between two plans", ROUNDING,
    ),
    "bound_kernels": Optimization(
        "small operators run NumPy kernels that are bound to their memory in advance; without it, the plain ones",
        ROUNDING,
    ),
    "wide_products": Optimization(
        "in bfloat16, convolutions convert their inputs to float32 and multiply those where that is measured to be "
        "faster", ROUNDING,
    ),
    "winograd": Optimization(
        "convolutions of 3x3 with strides of 1 are computed by Winograd's minimal filtering where that is measured to "
        "be faster", ROUNDING,
    ),
    "measured_choices": Optimization(
        "of several suitable kernels, the one that was fastest when timed on this machine is used; without it, the "
        "one that is fastest on most machines", ROUNDING,
    ),
    "step_products": Optimization(
        "the gradient of a weight that a step net uses once is one matrix product over all steps of a recurrent net, "
        "not a sum of one product per step", ROUNDING,
    ),
    "step_projections": Optimization(
        "matrix products of a sequence's rows with weights, in a step net, are one product over all steps, computed "
        "before the steps", ROUNDING,
    ),
    "step_copies": Optimization(
        "the weights of a step net are copied, once per run, into the layout that is fastest for matrix products",
        ROUNDING,
    ),
    "threads_by_work": Optimization(
        "a plan whose operators take microseconds each runs on one thread per lane, however many it may use", ROUNDING,
    ),
    "cuda_graphs": Optimization(
        "consecutive calls on a GPU that can be captured become a CUDA graph after two runs, which one launch repeats"
    ),
    "kept_plans": Optimization("plans for earlier input shapes are kept; without it, only the last plan is"),
})  # fmt: skip
"""The optimizations by name, in the order of docs/optimizations.md."""

FUSIONS = frozenset(name for name, each in OPTIMIZATIONS.items() if each.joins)
"""The names of the optimizations that ``fuse=False`` switches off."""

VARYING = frozenset({"atomic_sums", "measured_choices"})
"""The names of the optimizations with which two runs may differ; they are off in a net that must be deterministic."""

GROUPS: Mapping[str, frozenset[str]] = MappingProxyType({"all": frozenset(OPTIMIZATIONS), "fusion": FUSIONS})
"""Names that stand for several optimizations."""


def check_without(names: str | Iterable[str], where: str) -> frozenset[str]:
    """Return the names of optimizations, with groups replaced by their members.

    Args:
        names: an iterable of names, or one string of names separated by commas.
        where: who gives them, for messages.

    Raises:
        NetError: a name is neither an optimization nor a group.

    >>> sorted(check_without("inplace, sum_relu", "here"))
    ['inplace', 'sum_relu']
    """
    found: set[str] = set()
    for name in _split(names) if isinstance(names, str) else listed(f"{where}: without", "optimizations", names):
        if name in GROUPS:
            found |= GROUPS[name]
        else:
            check_optimization(name, where)
            found.add(name)
    return frozenset(found)


def check_optimization(name: object, where: str) -> None:
    """Raise NetError unless ``name`` is the name of an optimization.

    Args:
        name: the name.
        where: who gives it, for the message.
    """
    if name not in OPTIMIZATIONS:
        known = [*OPTIMIZATIONS, *GROUPS]
        raise NetError(
            f"{where}: no optimization is called {name!r}; the names are {', '.join(known)}"
            f"{did_you_mean(str(name), known)}"
        )


def from_environment() -> frozenset[str]:
    """Return the optimizations that ``NETBUILDER_WITHOUT`` switches off at present.

    Raises:
        NetError: a name in it is neither an optimization nor a group.
    """
    return check_without(os.environ.get(VARIABLE, ""), VARIABLE)


def _split(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
