"""Our side of the benchmark of GPUs: ``python -m netbuilder.tools.bench.our_gpu WARMUP WORK``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

import netbuilder
from netbuilder import Parallelize_GPU
from netbuilder.engines.gpu_info import gpu_memory_in_use
from netbuilder.parallel import Replicas, prefetch
from netbuilder.runtime.profile.profiling import profile
from netbuilder.tools.bench.our_nets import add_loss
from netbuilder.tools.bench.ours import Training
from netbuilder.tools.bench.work import Work
from netbuilder.tools.bench.worker import serve_gpu, show_stacks, timed_together

__all__ = ["GpuTraining", "main"]

_PROFILED = 3  # runs of a profile
_FED_WARMUP = 20
"""Steps before fed ones are timed. Input is prefetched into up to four buffers; a step runs twice for each of them
before it is captured into a CUDA graph."""


class GpuTraining(Training):
    """A net on GPUs with its data, ready to train; ``work.devices`` GPUs share the batch."""

    def _build(self) -> Replicas | None:
        several = self._work.devices > 1
        return Parallelize_GPU(
            self.model,
            input_builder_fun=lambda model: None,
            forward_pass_builder_fun=lambda model, scale: [
                model.net.Scale(add_loss(model, self._work), "scaled_loss", scale=scale)
            ],
            optimizer_builder_fun=self._update,
            devices=list(range(self._work.devices)),
            use_nccl=several,
            dynamic_memory_management=True,
            blobs_to_keep=["loss"],
            allow_tf32=self._work.tf32,
        )

    def _feed(self, batch: Mapping[str, np.ndarray]) -> None:
        assert self._record is not None
        self._batch = batch
        for name, whole in batch.items():
            # Words are (length, batch).
            axis = 1 if self._work.reads_words and name == "data" else 0
            for blob, part, place in zip(
                self._copies(name), np.split(whole, self._work.devices, axis), self._record.devices.options
            ):
                self.workspace.feed(blob, np.ascontiguousarray(part), place)

    def step(self) -> None:
        """Start one step: forward, backward, update; it may still run when this returns."""
        self.workspace.run_net(self._name, wait=False)

    def finish(self) -> None:
        """Wait for all steps."""
        self.workspace.net(self._name).finish()

    def fed_seconds(self, steps: int, *, warmup: int = _FED_WARMUP) -> float:
        """Return the mean seconds of steps that each get a batch from the memory of the host, while others run.

        Args:
            steps: number of them.
            warmup: number of such steps before them, which are not timed.
        """
        source = iter([self._batch] * (warmup + steps))
        names = list(self._batch)
        with prefetch(self.model, source, blobs=names, look=False, workspace=self.workspace) as batches:
            ready = iter(batches)

            def step() -> None:
                next(ready)
                self.step()

            for _ in range(warmup):
                step()
            return timed_together(step, self.finish, steps)

    def shares(self) -> list[dict[str, Any]]:
        """Return, for each kind of operator, seconds of a step, the least possible ones, and the number of calls."""
        found = profile(self.workspace, self._name, runs=_PROFILED)
        kinds = [
            {"kind": kind.kind, "calls": kind.calls, "seconds": kind.seconds, "limit": kind.limit_seconds}
            for kind in found.kinds()
        ]
        return [{"kind": "all", "calls": 0, "seconds": found.plain_seconds, "limit": found.limit_seconds}, *kinds]


def main(arguments: list[str]) -> None:
    """Serve the steps of one piece of work (see ``worker.serve_gpu``)."""
    show_stacks()
    warmup, work = int(arguments[0]), Work.from_text(arguments[1])
    training = GpuTraining(work)
    serve_gpu(
        training.step,
        training.finish,
        warmup=warmup,
        peak=lambda: gpu_memory_in_use(0),
        loss=training.loss,
        info={"version": netbuilder.__version__},
        others={
            "fed": lambda steps: {"seconds": [training.fed_seconds(steps, warmup=2 * warmup)]},
            "shares": lambda steps: {"kinds": training.shares()},
        },
    )


if __name__ == "__main__":
    main(sys.argv[1:])
