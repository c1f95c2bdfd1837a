"""LossReader: reads losses and metrics of a training loop one run later, so that no run waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.engines.upload import Downloader
from netbuilder.graph.blob import blob_name
from netbuilder.proto import BlobError, NetError
from netbuilder.proto.call_checks import checked
from netbuilder.proto.errors import counted
from netbuilder.proto.numbers import listed
from netbuilder.runtime.execute.workspace import Workspace

__all__ = ["LossReader"]

Ending = Callable[[], dict[str, float]]


class LossReader:
    """Reads small blobs after each run, and returns their values one call later, when they have arrived.

    On GPUs a call queues copies of the values after the run just started, and returns the values of the previous call;
    it waits only for the previous run, while the GPU works on the present one. On the CPU a value is copied when the
    run has ended, which takes some microseconds.

    Args:
        workspace: where the blobs are.
        blobs: names of blobs with one element each; or a mapping from names to the blobs of the replicas, of which the
            mean is returned. The blobs need not exist yet.
        weights: blobs with the weight of each replica's value in the mean; None: all have the same weight. If all
            weights are 0, the mean is nan.

    Raises:
        NetError: there is no name, a name has no blob, or the number of its blobs is not that of the weights.

    >>> workspace = Workspace()
    >>> losses = LossReader(workspace, ["loss"])
    >>> for k in range(3):
    ...     workspace.feed("loss", np.float32(k))  # stands for a run
    ...     print(losses.read())
    None
    {'loss': 0.0}
    {'loss': 1.0}
    >>> losses.last()
    {'loss': 2.0}
    """

    @checked()
    def __init__(
        self,
        workspace: Workspace,
        blobs: Iterable[Any] | Mapping[str, Sequence[Any]],
        *,
        weights: Sequence[Any] | None = None,
    ) -> None:
        pairs = blobs.items() if isinstance(blobs, Mapping) else [(blob_name(blob), [blob]) for blob in blobs]
        self._names = {
            str(name): [blob_name(part) for part in listed(f"LossReader: blobs[{name!r}]", "blobs", parts)]
            for name, parts in pairs
        }
        if not self._names or not all(self._names.values()):
            raise NetError(f"LossReader: blobs must name at least one blob for each name, got {self._names}")
        self._weights = None if weights is None else [blob_name(blob) for blob in weights]
        if self._weights is not None and any(len(parts) != len(self._weights) for parts in self._names.values()):
            raise NetError(
                f"LossReader: got {counted(len(self._weights), 'weight')} for the blobs {self._names}; give one for "
                "each blob of a name"
            )
        self._workspace = workspace
        self._downloaders: dict[int, Downloader] = {}
        self._pending: Ending | None = None

    def read(self) -> dict[str, float] | None:
        """Begin to read the present values; return those of the previous call.

        Returns:
            A number for each name, the mean over its blobs; None at the first call, and at the first one after
            ``last``.

        Raises:
            BlobError: a blob does not exist, holds no value, or does not hold one number.
        """
        before, self._pending = self._pending, self._begin()
        return before() if before is not None else None

    def last(self) -> dict[str, float] | None:
        """Wait for the values of the last call of ``read``, and return them; None if they were returned before."""
        before, self._pending = self._pending, None
        return before() if before is not None else None

    def _begin(self) -> Ending:
        """Begin to read the values of all blobs; return a function that returns them."""
        found: dict[str, Any] = {}  # NumPy scalars: the mean is computed in their own type
        on_gpu: dict[int, list[str]] = {}
        for blobs in [*self._names.values(), self._weights or []]:
            for name in blobs:
                blob = self._workspace.get(name)
                if blob.is_empty:
                    raise BlobError(f"LossReader: blob {name!r} {blob.why_empty()}")
                if blob.spec is None or blob.spec.size != 1 or blob.spec.dtype.kind not in "biuf":
                    what = f"shape {blob.spec.shape} of {blob.spec.dtype}" if blob.spec is not None else "no tensor"
                    raise BlobError(f"LossReader: blob {name!r} must hold one number, got {what}")
                if blob.location[0] == 0 or blob.lazy is not None:
                    found[name] = self._workspace.fetch(name).reshape(())[()]
                else:
                    on_gpu.setdefault(blob.location[1], []).append(name)
        endings = [(names, self._reading(number, names)) for number, names in on_gpu.items()]

        def end() -> dict[str, float]:
            for names, ending in endings:
                found.update((name, value.reshape(())[()]) for name, value in zip(names, ending()))
            weights = None if self._weights is None else [found[blob] for blob in self._weights]
            return {name: _mean([found[blob] for blob in blobs], weights) for name, blobs in self._names.items()}

        return end

    def _reading(self, number: int, names: Sequence[str]) -> Callable[[], list[Any]]:
        downloader = self._downloaders.get(number)
        if downloader is None:
            downloader = self._downloaders[number] = Downloader(number)
        return downloader.begin([self._workspace.get(name).buffer for name in names])


def _mean(values: Sequence[Any], weights: Sequence[Any] | None) -> float:
    if weights is None:
        return float(np.mean(values))
    total = float(np.sum(weights, dtype=np.float64))
    if total <= 0:
        return float("nan")
    # A value of weight 0 was computed from no sample of the batch; it may be nan.
    return sum(float(value) * float(weight) for value, weight in zip(values, weights) if weight) / total
