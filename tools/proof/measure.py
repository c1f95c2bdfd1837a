"""Training on a number of devices, and the difference between parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from netbuilder import parallel
from netbuilder.graph.block_updates import BlockRule
from netbuilder.graph.net_names import reset_names
from netbuilder.graph.replicas import Replicas
from netbuilder.model import ModelHelper
from netbuilder.parallel.compare import distance
from netbuilder.proto import PROTO_CPU, PROTO_CUDA
from netbuilder.runtime import Workspace
from netbuilder.tools.proof.models import ProofModel

__all__ = ["BLOCK", "METHODS", "Method", "Values", "block_rule", "difference", "has_options", "supports", "trained"]

Values = dict[str, Any]
Optimizer = Callable[[ModelHelper], Any]

BLOCK = 2
"""Iterations of a block of the method "BMUF"."""


def trained(
    model: ProofModel,
    optimizer: Optimizer,
    devices: int,
    *,
    steps: int = 10,
    threads: int = 1,
    method: str = "Parallelize",
) -> Values:
    """Train a model on several devices; return its parameters by name, and the averages of combined BN.

    Args:
        model: what to train; its batches come from a fixed seed. It is trained on GPUs if its options have
            ``cpu_device=False``.
        optimizer: adds the updates.
        devices: number of devices, a divisor of ``SAMPLES``.
        steps: number of batches.
        threads: of the workspace.
        method: how the model is distributed, one of ``METHODS``.
    """
    reset_names()
    made = METHODS[method](model, optimizer, devices)
    workspace = Workspace(threads=threads, seed=1)
    for step, batch in enumerate(model.batches(steps)):
        made.feed(workspace, batch)
        if step == 0:
            made.initialize(workspace)
        made.run(workspace)
    return {name: workspace.fetch(blob) for name, blob in sorted(made.parameters.items())}


class Method(NamedTuple):
    """A model distributed over devices.

    Args:
        initialize: runs the init net, once inputs are fed.
        feed: feeds the whole batch, of all processes.
        run: trains one step.
        parameters: name -> blob, once a step has run.
    """

    initialize: Callable[[Workspace], object]
    feed: Callable[[Workspace, Values], object]
    run: Callable[[Workspace], object]
    parameters: dict[str, str]


def _with_place(model: ProofModel) -> dict[str, Any]:
    """Return the options of a model, with the kind of its devices."""
    return {"cpu_device": True, **model.options}


def _parallelize(model: ProofModel, optimizer: Optimizer, devices: int) -> Method:
    """Distribute a model by Parallelize: each device has a replica."""
    helper = ModelHelper("proof")
    outside = None if model.outside is None else model.outside(helper)
    record = parallel.Parallelize(
        helper,
        lambda helper: None,
        lambda helper, loss_scale: model.build(helper, loss_scale, outside),
        optimizer_builder_fun=optimizer,
        devices=list(range(devices)),
        **_with_place(model),
    )

    return _of_replicas(model, helper, record)


def _of_replicas(model: ProofModel, helper: ModelHelper, record: Replicas) -> Method:
    def feed(workspace: Workspace, batch: Values) -> None:
        if record.weighted_shares:
            list(parallel.feed_shares(helper, batch, workspace=workspace))
            return
        first = record.world.first_replica
        for name, whole in batch.items():
            shares = np.split(whole, record.world.size, model.axes.get(name, 0))
            for blob, share, place in zip(record.devices.copies(name), shares[first:], record.devices.options):
                workspace.feed(blob, np.ascontiguousarray(share), place)

    return Method(
        lambda workspace: parallel.RunInitNet(helper, workspace=workspace),
        feed,
        lambda workspace: parallel.RunNet(helper, workspace=workspace),
        _blobs(model, record),
    )


def _blobs(model: ProofModel, record: Replicas) -> dict[str, str]:
    """Return name -> blob of the parameters, and of the running averages if they are those of all devices."""
    averages = record.computed if "combine_spatial_bn" in model.options else ()
    found = {name: record.blobs(name)[0] for name in (*record.parameters, *averages)}
    found.update((name.rpartition("/")[2], name) for name in record.outside)
    return found


def _parallel_do(model: ProofModel, optimizer: Optimizer, devices: int) -> Method:
    """Distribute a model by ParallelDo; inputs are fed with the samples first, and transposed on the devices."""
    helper = ModelHelper("proof")
    if "dtype" in model.options:
        helper.net.set_activation_dtype(model.options["dtype"])
    if "memory_budget" in model.options:
        helper.net.set_memory_budget(model.options["memory_budget"])
    outside = None if model.outside is None else model.outside(helper)
    before = {str(param) for param in helper.params}
    inputs = model.batch(np.random.default_rng(0))
    kind = PROTO_CPU if _with_place(model)["cpu_device"] else PROTO_CUDA
    with parallel.ParallelDo(helper, range(devices), device_type=kind) as block:
        for name, whole in inputs.items():
            axes = list(range(whole.ndim))
            axes.insert(model.axes.get(name, 0), axes.pop(0))
            helper.net.Transpose(block.read_input(f"{name}_by_sample"), name, axes=axes)
        losses = [block.write_output(loss, merge="mean") for loss in model.build(helper, 1.0, outside)]
    helper.AddGradientOperators(losses)
    optimizer(helper)

    def initialize(workspace: Workspace) -> None:
        workspace.run_net_once(helper.param_init_net)
        workspace.create_net(helper.net)

    def feed(workspace: Workspace, batch: Values) -> None:
        for name, whole in batch.items():
            by_sample = np.moveaxis(whole, model.axes.get(name, 0), 0)
            workspace.feed(f"{name}_by_sample", np.ascontiguousarray(by_sample))

    names = {name.rpartition("/")[2] if name in before else name: name for name in map(str, helper.params)}
    return Method(initialize, feed, lambda workspace: workspace.run_net(helper.net.Name()), names)


def _data_parallel(model: ProofModel, optimizer: Optimizer, devices: int) -> Method:
    """Distribute a model by DataParallel, which is called with whole batches."""
    given: Values = {}
    names: dict[str, str] = {}
    made: list[parallel.DataParallel] = []

    def run(workspace: Workspace) -> None:
        if not made:
            net = parallel.DataParallel(
                lambda helper, **inputs: model.build(helper, 1.0, None),
                range(devices),
                loss=lambda helper, losses: losses,
                optimizer=optimizer,
                batch_axes=model.axes,
                workspace=workspace,
                **_with_place(model),
            )
            made.append(net)
        net = made[0]
        net(**given)
        net.loss()
        net.backward()
        net.step()
        names.update(_blobs(model, net.record))

    return Method(lambda workspace: None, lambda workspace, batch: given.update(batch), run, names)


def block_rule(devices: int) -> BlockRule:
    """Return the rule of the method "BMUF": Nesterov's block momentum, blocks of two steps."""
    momentum = 1 - 1 / devices
    return BlockRule(momentum, lookahead=momentum, iterations=BLOCK)


def _bmuf(model: ProofModel, optimizer: Optimizer, devices: int) -> Method:
    place = model.options.get("rendezvous")
    everywhere = devices * (1 if place is None else place.num_shards)
    return _in_blocks(model, optimizer, block_rule(everywhere), devices)


def _local_sgd(model: ProofModel, optimizer: Optimizer, devices: int) -> Method:
    return _in_blocks(model, optimizer, BlockRule(0.0, iterations=1), devices)


def _in_blocks(model: ProofModel, optimizer: Optimizer, rule: BlockRule, devices: int) -> Method:
    """Distribute a model, without parameters outside, by Parallelize_BMUF: each device trains on its own in a block."""
    helper = ModelHelper("proof")
    record = parallel.Parallelize_BMUF(
        helper,
        lambda helper: None,
        lambda helper, loss_scale: model.build(helper, 1.0, None),
        optimizer,
        devices=list(range(devices)),
        block_momentum=rule.momentum,
        nesterov=rule.lookahead > 0,
        block_iterations=rule.iterations,
        **_with_place(model),
    )
    return _of_replicas(model, helper, record)


METHODS: dict[str, Callable[[ProofModel, Optimizer, int], Method]] = {
    "Parallelize": _parallelize,
    "ParallelDo": _parallel_do,
    "DataParallel": _data_parallel,
    "local SGD": _local_sgd,
    "BMUF": _bmuf,
}
"""Name -> how a model is distributed over devices."""


_OPTIONS = {
    "ParallelDo": frozenset({"cpu_device", "dtype", "memory_budget"}),
    "local SGD": frozenset({"cpu_device", "dtype", "memory_budget", "rendezvous"}),
    "BMUF": frozenset({"cpu_device", "dtype", "memory_budget", "rendezvous"}),
}
"""Methods that have only some options of Parallelize."""


def supports(method: str, model: ProofModel) -> bool:
    """Whether a model can be distributed so.

    ParallelDo and block-wise updates have few options of Parallelize; a DataParallel and block-wise updates have no
    parameters that are made before the replicas, and a DataParallel has a sample for each device. GPUs do not
    share parameters. Sparse gradients cannot be scaled. The average of steps over separate means over weights is no
    step over their common mean. Models with a table on the host, outside of the replicas, look it up on the replicas'
    devices; on GPUs they would need copies.
    """
    if model.outside is not None and "cpu_device" in model.options:
        return False
    if model.options.get("shared_model") and "cpu_device" in model.options:
        return False
    if model.weighs and method == "local SGD":
        return False
    if model.looks_up and "gradient_scaling" in model.options:
        return False
    return has_options(method, model.options) and (model.outside is None or method in ("Parallelize", "ParallelDo"))


def has_options(method: str, options: Iterable[str]) -> bool:
    """Whether a method has these options of Parallelize."""
    if method == "DataParallel":
        return {"rendezvous", "weighted_shares"}.isdisjoint(options)
    return _OPTIONS.get(method, frozenset(options)).issuperset(options)


def difference(got: Sequence[Any], want: Sequence[Any]) -> float:
    """Return ||got - want|| / max(||want||, 1e-6 sqrt(n)) over all arrays together, n being the number of elements.

    It is infinite if an element is not finite.

    >>> difference([np.array([3.0, 4.5])], [np.array([3.0, 4.0])])
    0.1
    """
    a, b = (np.concatenate([np.ravel(x).astype(np.float64) for x in arrays]) for arrays in (got, want))
    return distance(b, a)[1] if np.isfinite(a).all() and np.isfinite(b).all() else float("inf")
