"""The two sides of a comparison: training runs, or stored nets, that are stepped together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from netbuilder.graph.defuse import undefined_inputs
from netbuilder.graph.net_names import reset_names
from netbuilder.graph.replicas import Replicas
from netbuilder.optimizers import reset_optimizer_instance_count
from netbuilder.parallel.shares import SHARE_WEIGHT, Share, share_sizes
from netbuilder.parallel.step_divisors import StepDivisors
from netbuilder.proto import NetDef, NetError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute.net import RuntimeNet
from netbuilder.runtime.execute.recorded_run import RecordedRun, recorded
from netbuilder.tools.profiling.ready import value_of
from netbuilder.tools.stored_nets import read_nets, replicas_in, start_nets, unknown_input
from netbuilder.tools.training.decoded import DecodedImages
from netbuilder.tools.training.images import Images
from netbuilder.tools.training.run import Run
from netbuilder.tools.training.settings import Options

__all__ = ["Side", "StoredNet", "StoredSide", "TrainerSide"]


class Side(Protocol):
    """A run that is compared with another."""

    record: Replicas | None

    def step(self) -> RecordedRun:
        """Run a training step; return its values."""

    def feed(self, values: Mapping[str, Any]) -> None:
        """Replace the values of blobs before the next step."""


class TrainerSide:
    """A run of netbuilder-train.

    Args:
        options: of the run.
        train, test: the data.
        steps: how many there will be.
    """

    def __init__(
        self, options: Options, train: Images | DecodedImages, test: Images | DecodedImages, steps: int
    ) -> None:
        reset_optimizer_instance_count()
        reset_names()  # names, and with them random numbers, are those of the other side
        run = Run(options, train, test)
        self.record: Replicas | None = run.model.record
        self._nets = run.model.nets
        self._steps = run.first_steps(steps)

    def step(self) -> RecordedRun:
        run = next(self._steps)
        with recorded(self._nets) as found:
            run()
        return found

    def feed(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            self._nets[0].workspace.feed(name, value)


@dataclass(frozen=True)
class StoredNet:
    """A net in a file, and how to run it.

    Args:
        net, init: files of the net and of its init net; None: there is none.
        without: groups of optimizations that are off.
        dtype: how activations are stored; None: as the net says.
        memory_budget: of a run; None: as the net says.
        numpy: only NumPy's kernels.
        seed: of the workspace.
        trusted: allow all operators.
    """

    net: str
    init: str | None = None
    without: frozenset[str] = frozenset()
    dtype: str | None = None
    memory_budget: str | None = None
    numpy: bool = False
    seed: int = 0
    trusted: bool = False


class StoredSide:
    """A stored net, run on the same inputs in each step.

    Args:
        stored: the net.
        given: inputs, as arrays or specs of random ones; an input of each replica is given as the whole batch, without
            the replicas' scopes.

    Raises:
        BlobError: an input is not given, or the net does not have it.
        NetError: a file is damaged, or holds operators that are allowed only if trusted.
    """

    def __init__(self, stored: StoredNet, given: Mapping[str, Any]) -> None:
        net, init = read_nets(stored.net, stored.init, trusted=stored.trusted)
        self.record = replicas_in(net)
        self._workspace = Workspace(seed=stored.seed, engines=() if stored.numpy else None, without=stored.without)
        start_nets(self._workspace, net, init, _split(given, net, self.record))
        self._name = self._workspace.create_net(net, dtype=stored.dtype, memory_budget=stored.memory_budget)

    def step(self) -> RecordedRun:
        net: RuntimeNet = self._workspace.net(self._name)
        with recorded([net]) as found:
            net.run()
        return found

    def feed(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            self._workspace.feed(name, value)


def _split(given: Mapping[str, Any], net: NetDef, record: Replicas | None) -> dict[str, Any]:
    """Return the inputs by full name, batches split over the replicas."""
    reads = set(undefined_inputs(net.op))
    found: dict[str, Any] = {}
    batch: dict[str, Any] = {}
    for name, spec in given.items():
        value = value_of(spec)
        copies = record.devices.copies(name) if record is not None else ()
        if name in reads:
            found[name] = value
        elif copies and reads.issuperset(copies):
            found.update(zip(copies, _shares(value, len(copies), name)))
            batch[name] = np.asarray(value)
        else:
            raise unknown_input(name, net, sorted(reads))
    if record is not None and record.weighted_shares:
        weight = np.array([1 / record.accumulate_steps], np.float32)
        weights = dict.fromkeys(record.devices.copies(SHARE_WEIGHT), weight)
        found.update({blob: weight for blob, weight in weights.items() if blob in reads})
    if record is not None and record.step_divisors:
        found.update(_step_divisors(net, record, batch))
    return found


def _step_divisors(net: NetDef, record: Replicas, batch: dict[str, Any]) -> dict[str, Any]:
    """Return the divisors of the means of a step, by blob; all of its micro-batches have the same samples."""
    share = Share()
    share.own, share.sizes = batch, share_sizes(len(next(iter(batch.values()), ())), len(record))
    found = StepDivisors(net, record).of_step([share] * record.accumulate_steps)
    return {
        blob: np.array([value])
        for name, values in found.items()
        for blob, value in zip(record.devices.copies(name), values)
    }


def _shares(value: Any, count: int, name: str) -> Sequence[Any]:
    array = np.asarray(value)
    if not array.ndim or len(array) % count:
        raise NetError(f"input {name!r} of shape {array.shape} cannot be split evenly over {count} replicas")
    return np.split(array, np.cumsum(share_sizes(len(array), count))[:-1])
