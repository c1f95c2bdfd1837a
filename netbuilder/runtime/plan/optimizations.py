"""The optimizations of plans, in six groups: what each one does, and how much it can change results.

A group can be switched off: ``create_net(net, without=["fusion"])``, ``Workspace(without=["fusion"])``, or
``NETBUILDER_WITHOUT=fusion,memory`` in the environment. Single ones are private: they come and go with the compiler.
What measures or tests one of them switches it off by its object, ``without=[OPTIMIZATIONS["reuse"]]``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import field
from types import MappingProxyType

from netbuilder.proto import NetError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.numbers import listed
from netbuilder.proto.suggestions import did_you_mean

__all__ = [
    "ALL",
    "GROUPS",
    "OPTIMIZATIONS",
    "VARIABLE",
    "Optimization",
    "Switch",
    "check_without",
    "from_environment",
    "members",
    "optimization",
]

VARIABLE = "NETBUILDER_WITHOUT"
"""The environment variable that names the groups which are off for all nets of the process."""

ROUNDING = 1e-3
"""``Optimization.bound`` where terms of a sum may be added in another order."""

ALL = "all"
"""Stands for all groups."""

GROUPS: Mapping[str, str] = MappingProxyType({
    "fusion": "neighboring operators, and the updates of many parameters, run as one kernel; operators that change "
    "nothing are removed",
    "memory": "values are kept only for as long as something reads them, share memory, or are computed again; what "
    "nobody reads is computed when it is fetched",
    "layouts": "values stay in the layout in which a library's kernels read and write them; a copy in another is made "
    "once for all readers",
    "threads": "a plan of small operators runs on one thread per lane, its kernels bound to their memory in advance; "
    "shapes that operators pass on as values are known when the plan is compiled",
    "gpu": "consecutive calls on a GPU become a CUDA graph; sums there are added in any order, so that two runs may "
    "differ",
    "measured": "of several suitable kernels, Winograd's filtering and products in a wider type among them, the one "
    "that was fastest when timed on this machine is used; without it, the one that is fastest on most machines",
})  # fmt: skip
"""What can be switched off, by name: what the plan does."""


@dataclass(frozen=True)
class Optimization:
    """One optimization.

    Args:
        name: by which the compiler and kernels ask whether it is on (``PlanOptions.enabled``).
        group: of ``GROUPS``.
        what: what it does, in one line.
        bound: how far results can be from those without it, with the same number of threads. 0: bit-identical. Else
            the distance between all parameters of a net in float32 after a few steps, relative to how far they have
            moved, for nets that do not amplify rounding (as deep nets do that normalize over few values).
    """

    name: str
    group: str = field(compare=False)
    what: str = field(compare=False, repr=False)
    bound: float = field(default=0.0, compare=False, repr=False)


_ALL = (
    Optimization("bn_relu", "fusion",
        "SpatialBN, or on a GPU SpatialBN with a Sum, and the Relu (on a GPU ReluN, too) after it run as one kernel"),
    Optimization("bn_relu_gradient", "fusion",
        "ReluGradient (on a GPU ReluNGradient, too) and the SpatialBNGradient after it run as one kernel, on a GPU "
        "with the Sum before them; "
        "the gradient between them, if it can be fetched, is computed then"),
    Optimization("relu_gradient_stats", "fusion",
        "ReluGradient and the ChannelBackpropStats after it, of a SpatialBN over several devices, run as one "
        "kernel", ROUNDING),
    Optimization("fc_relu", "fusion",
        "FC and the Relu after it run as one kernel"),
    Optimization("conv_relu", "fusion",
        "Conv, or Conv with a Sum or Add, and the Relu after it run as one kernel", ROUNDING),
    Optimization("conv_sum", "fusion",
        "Conv adds its result to a value computed earlier, which replaces the Sum or Add after it", ROUNDING),
    Optimization("conv_bn", "fusion",
        "on a GPU, where that was measured to be faster, Conv computes the sums for the statistics of the SpatialBN "
        "after it, and ConvGradient those for the gradient of the SpatialBN and the Relu before it", ROUNDING),
    Optimization("unstored_activations", "fusion",
        "on a CPU, the result of a SpatialBN is not stored if only an activation such as Swish and the gradients read "
        "it, which compute it; on a GPU, where that was measured to be faster, that of a SpatialBN and Relu or ReluN: "
        "the convolutions that read it, and their gradients, compute it; or only the gradient of these two does",
        ROUNDING),
    Optimization("engine_fusions", "fusion",
        "neighboring operators for which an engine has one kernel run as that kernel, where the fusion has no "
        "optimization of its own", ROUNDING),
    Optimization("dropout_in_test_mode", "fusion",
        "a Dropout in test mode is removed"),
    Optimization("gradients_of_add", "fusion",
        "the gradients of an Add of equal shapes are not copied from that of its result"),
    Optimization("zero_bias_gradients", "fusion",
        "on a GPU, the gradient of a convolution's bias before a SpatialBN, which is zero but for rounding, is not "
        "summed", ROUNDING),
    Optimization("joined_updates", "fusion",
        "the operators that update parameters, and the weight decay before them, run as few calls, each over "
        "many parameters, on all threads of the lane"),
    Optimization("elementwise_chains", "fusion",
        "elementwise operators that read one another's results run as one kernel", ROUNDING),
    Optimization("joined_small_kernels", "fusion",
        "on a GPU, the copies of parameters to the layouts in which kernels read them are one kernel, before the "
        "first of them is read, and the running averages of all SpatialBN are one kernel, at the end"),
    Optimization("joined_exchanges", "fusion",
        "the collectives that NCCL makes over the GPUs of a process, one per gradient, are started in groups of "
        "some megabytes, in the order in which gradients become ready", ROUNDING),
    Optimization("step_products", "fusion",
        "the gradient of a weight that a step net uses once is one matrix product over all steps of a recurrent "
        "net, not a sum of one product per step", ROUNDING),
    Optimization("step_projections", "fusion",
        "matrix products of a sequence's rows with weights, in a step net, are one product over all steps, "
        "computed before the steps", ROUNDING),
    Optimization("early_relu_gradients", "memory",
        "ReluGradient after the gradient of MaxPool, or of Concat, runs before it, on what was pooled or joined, "
        "so that the output of the Relu need not be kept"),
    Optimization("early_updates", "memory",
        "large parameters are updated during the backward pass, each group as soon as its gradients are there, "
        "if these are not observable"),
    Optimization("updates_in_parts", "memory",
        "the gradient of an FC's weights, if these are large and it is not observable, is computed some rows at "
        "a time, each time followed by the update of these rows"),
    Optimization("buckets_in_place", "memory",
        "the gradients of a bucket that processes exchange are stored next to each other, so that one call sums "
        "them where they are, if that takes hardly any more memory; sums over two processes, and deterministic "
        "ones, are equal to the bit", ROUNDING),
    Optimization("parts_in_place", "memory",
        "the parts of a Concat are stored where its result has them, so that nothing is copied, where each is one "
        "piece of it and that takes hardly any more memory"),
    Optimization("unread_outputs", "memory",
        "an output that no operator reads, such as the gradient of the images, is computed when it is fetched, "
        "and not at all if it is not observable", ROUNDING),
    Optimization("inplace", "memory",
        "a kernel overwrites its input where it can and the input is not needed any more"),
    Optimization("reuse", "memory",
        "values that nobody can fetch share memory when they are not needed at the same time"),
    Optimization("cheap_recomputation", "memory",
        "outputs of normalizations, and copies in other layouts, are not kept for the backward pass but made "
        "again before it reads them, where that lowers the peak of memory, for at most 0.75 % of the plan's "
        "estimated work"),
    Optimization("kept_for_gradients", "memory",
        "intermediate results of a kernel (a variance, a scale) are kept for the kernel of its gradient", ROUNDING),
    Optimization("kept_maxima", "memory",
        "MaxPool after a Relu stores the position of each maximum in its window, and only that element gets the "
        "gradient; without it, every element equal to the maximum does, so results differ where positive "
        "elements of a window are equal", ROUNDING),
    Optimization("kept_plans", "memory",
        "plans for earlier input shapes are kept; without it, only the last plan is"),
    Optimization("blocked_layouts", "layouts",
        "values stay in the layout in which the library's kernels write them; without it they are row-major, and "
        "in float32, between operators", ROUNDING),
    Optimization("owned_layouts", "layouts",
        "a blob that is read and written in each run, such as a parameter, keeps the layout in which it is "
        "written; without it, it is copied back"),
    Optimization("shared_copies", "layouts",
        "a copy of a value in another layout or on another device is made once for all readers"),
    Optimization("constants", "layouts",
        "copies of blobs that are declared constant are made once, not in each run"),
    Optimization("small_images", "layouts",
        "convolutions of small images, or of groups of few channels, with constant filters are machine code; without "
        "it, the library's kernels serve", ROUNDING),
    Optimization("step_copies", "layouts",
        "the weights of a step net are copied, once per run, into the layout that is fastest for matrix products",
        ROUNDING),
    Optimization("known_extents", "threads",
        "shapes and extents that operators pass on as values are known when the plan is compiled; without it "
        "such an operator runs by itself, between two plans", ROUNDING),
    Optimization("bound_kernels", "threads",
        "small operators run NumPy kernels that are bound to their memory in advance; without it, the plain ones",
        ROUNDING),
    Optimization("threads_by_work", "threads",
        "a plan whose operators take microseconds each runs on one thread per lane, however many it may use", ROUNDING),
    Optimization("atomic_sums", "gpu",
        "on a GPU, rows with the same index are added in any order, and cuDNN and NCCL may add in any order; "
        "without it, the order is fixed, so that two runs are equal to the bit", ROUNDING),
    Optimization("cuda_graphs", "gpu",
        "consecutive calls on a GPU that can be captured become a CUDA graph after two runs, which one launch "
        "repeats"),
    Optimization("wide_products", "measured",
        "in bfloat16, convolutions convert their inputs to float32 and multiply those where that is measured to "
        "be faster", ROUNDING),
    Optimization("winograd", "measured",
        "convolutions of 3x3 with strides of 1 are computed by Winograd's minimal filtering where that is "
        "measured to be faster", ROUNDING),
    Optimization("measured_choices", "measured",
        "of several suitable kernels, the one that was fastest when timed on this machine is used; without it, "
        "the one that is fastest on most machines", ROUNDING),
)  # fmt: skip

OPTIMIZATIONS: Mapping[str, Optimization] = MappingProxyType({each.name: each for each in _ALL})
"""The optimizations by name."""

Switch = str | Optimization
"""What is switched off: a group by its name, or one optimization."""


def members(switches: Iterable[Switch]) -> frozenset[Optimization]:
    """Return the optimizations that switches, as ``check_without`` returns them, stand for."""
    wanted = set(switches)
    return frozenset(each for each in _ALL if each in wanted or each.group in wanted) if wanted else frozenset()


def check_without(switches: str | Iterable[Switch], where: str) -> frozenset[Switch]:
    """Return what is switched off, with "all" replaced by the groups.

    Args:
        switches: an iterable of groups, or one string of groups separated by commas.
        where: who gives them, for messages.

    Raises:
        NetError: a name is that of no group.

    >>> sorted(check_without("memory, fusion", "here"))
    ['fusion', 'memory']
    """
    found: set[Switch] = set()
    given = _split(switches) if isinstance(switches, str) else listed(f"{where}: without", "optimizations", switches)
    for switch in given:
        if switch == ALL:
            found.update(GROUPS)
        elif switch in GROUPS if isinstance(switch, str) else isinstance(switch, Optimization):
            found.add(switch)
        else:
            raise NetError(
                f"{where}: no group of optimizations is called {switch!r}; the groups are {', '.join(GROUPS)}, and "
                f"{ALL} for all of them{_hint(switch)}"
            )
    return frozenset(found)


def _hint(name: object) -> str:
    single = OPTIMIZATIONS.get(name) if isinstance(name, str) else None
    return f"; {name} belongs to {single.group}" if single is not None else did_you_mean(str(name), [*GROUPS, ALL])


def optimization(name: str, where: str) -> Optimization:
    """Return the optimization of a name.

    Args:
        name: the name.
        where: who asks for it, for the message.

    Raises:
        NetError: there is none.
    """
    found = OPTIMIZATIONS.get(name)
    if found is None:
        raise NetError(
            f"{where}: no optimization is called {name!r}{did_you_mean(name, OPTIMIZATIONS)}; "
            "netbuilder.runtime.plan.optimizations lists them"
        )
    return found


def from_environment() -> frozenset[Switch]:
    """Return what ``NETBUILDER_WITHOUT`` switches off at present.

    Raises:
        NetError: a name in it is that of no group.
    """
    return check_without(os.environ.get(VARIABLE, ""), VARIABLE)


def _split(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
