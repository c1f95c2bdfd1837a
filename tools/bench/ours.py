"""Our side of the benchmarks: ``python -m netbuilder.tools.bench.ours WARMUP WORK``."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import netbuilder
from netbuilder import ModelHelper, Parallelize_CPU, Workspace
from netbuilder.distributed import Rendezvous
from netbuilder.engines.engine import library_engines
from netbuilder.optimizers import add_weight_decay, build_sgd
from netbuilder.parallel import Replicas
from netbuilder.proto import PROTO_CPU, ArgumentError
from netbuilder.runtime.profile.memory import Memory, planned_memory
from netbuilder.tools.bench.draw import draw
from netbuilder.tools.bench.our_nets import add_loss, add_scores
from netbuilder.tools.bench.work import Work
from netbuilder.tools.bench.worker import resident, serve
from netbuilder.tools.common_options import split_problem

__all__ = ["Training", "before", "main"]


class Training:
    """A net with its data in a workspace, ready to train.

    Args:
        work: what to train, on one device or several.
        rendezvous: of the processes that share the batch; each trains on ``work.devices`` devices. None: there is one.

    Raises:
        ArgumentError: the batch cannot be split evenly over the devices, or a net in test mode has several.
    """

    def __init__(self, work: Work, rendezvous: Rendezvous | None = None) -> None:
        count = rendezvous.num_shards if rendezvous else 1
        if work.test and work.devices * count > 1:
            raise ArgumentError(f"{work.net}: in test mode it runs on one device only, got {work.devices * count}")
        if problem := split_problem(work.batch, work.devices * count):
            raise ArgumentError(f"{work.net}: {problem}")
        work = dataclasses.replace(work, batch=work.batch // count)
        self._work, self._rendezvous = work, rendezvous if count > 1 else None
        scope = {"order": "NCHW", "cudnn_exhaustive_search": work.exhaustive}
        self.model = ModelHelper(name=work.net, arg_scope=scope, dtype=work.dtype)
        self.workspace = Workspace(threads=work.threads)
        self._record = self._build()
        self._feed(draw(work))
        self.workspace.run_net_once(self.model.param_init_net)
        self.workspace.create_net(self.model.net, **_creation(work))
        self._name = self.model.net.Name()

    def _build(self) -> Replicas | None:
        """Add the net to the model; return its record of replicas if there are several devices."""
        if self._work.test:
            self.model.net.AddExternalOutput(self.model.net.Softmax(add_scores(self.model, self._work), "softmax"))
            return None
        if self._work.devices == 1 and self._rendezvous is None:
            loss = add_loss(self.model, self._work)
            self.model.net.AddExternalOutput(loss)
            self.model.AddGradientOperators([loss])
            self._update(self.model)
            return None
        return Parallelize_CPU(
            self.model,
            input_builder_fun=lambda model: None,
            forward_pass_builder_fun=lambda model, scale: [
                model.net.Scale(add_loss(model, self._work), "scaled_loss", scale=scale)
            ],
            optimizer_builder_fun=self._update,
            devices=list(range(self._work.devices)),
            combine_spatial_bn=self._work.combine_bn,
            rendezvous=self._rendezvous,
            bucket_bytes=self._work.bucket,
        )

    def _update(self, model: ModelHelper) -> Any:
        if self._work.decay:
            add_weight_decay(model, self._work.decay)
        return build_sgd(model, self._work.rate, momentum=self._work.momentum, nesterov=0)

    def _feed(self, batch: Mapping[str, np.ndarray]) -> None:
        for name, whole in batch.items():
            copies = self._copies(name)
            for blob, part in zip(copies, np.split(whole, len(copies))):
                self.workspace.feed(blob, part)

    def _copies(self, name: str) -> Sequence[str]:
        return [name] if self._record is None else self._record.devices.copies(name)

    def planned(self) -> Memory:
        """Return the memory that a step is planned to take, before it runs."""
        return planned_memory(self.workspace, self._name, self.model.GetParams())

    def measure_choices(self) -> None:
        """Measure, if they are not known, which kernels are the fastest, so that the steps are not interrupted."""
        self.workspace.net(self._name).measure_choices()

    def step(self) -> None:
        """Run one step: forward, backward, update."""
        self.workspace.run_net(self._name)

    def loss(self) -> float:
        """Return the loss of the last step, the mean over the devices."""
        return float(np.mean([self.workspace.fetch(blob) for blob in self._copies("loss")]))

    def write_nets(self, folder: Path) -> None:
        """Write what another executor needs for the same steps: ``init.pb``, ``net.pb``, and ``blobs.npz``.

        The blobs are the data, the labels and the parameters as they are now.
        """
        for name, net in (("init", self.model.param_init_net), ("net", self.model.net)):
            (folder / f"{name}.pb").write_bytes(net.Proto().SerializeToString())
        names = ["data", "label", *self.parameters()]
        np.savez(folder / "blobs.npz", **{name: self.workspace.fetch(name) for name in names})

    def parameters(self) -> list[str]:
        """Return the names of the parameters, layer by layer, of all devices."""
        return [str(parameter) for parameter in self.model.GetParams()]

    def start_from(self, parameters: Sequence[np.ndarray]) -> None:
        """Feed the parameters of the other side.

        Args:
            parameters: in the order of ``parameters()``.

        Raises:
            ArgumentError: the number of parameters or a shape differs.
        """
        names = self.parameters()
        shapes = [self.workspace.fetch(name).shape for name in names]
        given = [array.shape for array in parameters]
        if shapes != given:
            raise ArgumentError(
                f"{self._work.net}: {len(shapes)} parameters in netbuilder, {len(given)} in the peer: "
                + "; ".join(f"{name} {a} and {b}" for name, a, b in zip(names, shapes, given) if a != b)
            )
        for name, array in zip(names, parameters):
            self.workspace.feed(name, array)


def before(state: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the parameters that a peer has written before its first step."""
    return [state[f"before_{i}"] for i in range(sum(name.startswith("before_") for name in state))]


def _creation(work: Work) -> dict[str, Any]:
    """Return the options with which the net is created."""
    options: dict[str, Any] = {}
    if work.observable:
        options["observable"] = work.observable
    if work.budget is not None:
        options["memory_budget"] = work.budget
    return options


def main(arguments: list[str]) -> None:
    """Serve the steps of one piece of work (see ``worker.serve``)."""
    for engine in library_engines(lambda name: True, PROTO_CPU):
        engine.describe()  # loads its library before what is measured, as the peer loads its compiler
    start, work = resident(), Work.from_text(arguments[1])
    training = Training(work)
    if work.start:
        with np.load(work.start) as state:
            training.start_from(before(state))
    training.measure_choices()
    memory = training.planned()
    serve(
        training.step,
        warmup=int(arguments[0]),
        loss=None if work.test else training.loss,
        info={
            "version": netbuilder.__version__,
            "start": start,
            "planned": memory.total,
            "expected": memory.expected_peak,
        },
    )


if __name__ == "__main__":
    main(sys.argv[1:])
