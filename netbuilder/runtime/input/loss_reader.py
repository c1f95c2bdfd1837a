"""LossReader: losses and measures of a training loop, read one run later, so that no run waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.graph.blob import blob_name
from netbuilder.ops.engines.upload import Downloader
from netbuilder.proto import BlobError, NetError
from netbuilder.proto.errors import counted
from netbuilder.runtime.execute.workspace import Workspace

__all__ = ["LossReader"]

Ending = Callable[[], dict[str, float]]


class LossReader:
    """Reads small blobs after each run; what was read comes one call later, when it is there anyway.

    On GPUs a call has the values kept aside, in the order of the GPU's work, and returns those of the call before; it
    waits for the run before alone, while the GPU works at the one just given to it. On the CPU a value is copied when
    the run is over, which takes some millionths of a second.

    Args:
        workspace: where the blobs are.
        blobs: names of blobs with one element each; or a mapping from names to the blobs of the replicas, whose mean
            is told. The blobs need not be there yet.
        weights: blobs with what each replica's value weighs in the mean; None: all weigh the same. Where all weigh
            nothing, the mean is nan.

    Raises:
        NetError: there is no name, or no blob for one, or not as many as there are weights.

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

    def __init__(
        self,
        workspace: Workspace,
        blobs: Iterable[Any] | Mapping[str, Sequence[Any]],
        *,
        weights: Sequence[Any] | None = None,
    ) -> None:
        if isinstance(blobs, (str, bytes)):
            raise NetError(f"LossReader: blobs must be a list of names or a mapping, got the string {blobs!r}")
        pairs = blobs.items() if isinstance(blobs, Mapping) else [(blob_name(blob), [blob]) for blob in blobs]
        self._names = {str(name): [blob_name(part) for part in parts] for name, parts in pairs}
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
        """Note the values that the run before this call leaves; return those noted by the last call.

        Returns:
            A number for each name, the mean over its blobs; None at the first call, and at the first one after
            ``last``.

        Raises:
            BlobError: a blob is not there, holds no value, or not one number.
        """
        before, self._pending = self._pending, self._begin()
        return before() if before is not None else None

    def last(self) -> dict[str, float] | None:
        """Return the values noted by the last call of ``read``, when they are there; None: they have been told."""
        before, self._pending = self._pending, None
        return before() if before is not None else None

    def _begin(self) -> Ending:
        """Note the values of all blobs; return what tells them."""
        found: dict[str, Any] = {}  # NumPy's numbers: the mean is taken in their own type
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
    # What weighs nothing was computed from no sample of the batch, and may be anything.
    return sum(float(value) * float(weight) for value, weight in zip(values, weights) if weight) / total
