"""Loader threads that call a fetch function and fill the input blobs of a net, under Caffe2's names.

Fetcher threads put the arrays that the function returns (a chunk) into one bounded queue per source. An enqueuer thread
per device splits the chunks, in their order, into batches and puts these into blob queues, from which the net reads.
"""

from __future__ import annotations

import logging
import queue as queues
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.python.parallel_workers import (
    LOG_INT_SECS,
    GlobalWorkerCoordinator,
    Metrics,
    State,
    Worker,
    WorkerCoordinator,
    _check_threads,
    run_worker,
)
from netbuilder.data import BlobsQueue, QueueClosedError
from netbuilder.graph import BlobReference, DeviceScope
from netbuilder.graph.scope import CurrentDeviceScope, CurrentNameScope
from netbuilder.proto import DeviceOption, NetError
from netbuilder.runtime.execute import default

__all__ = [
    "BatchFeeder",
    "DataWorker",
    "GlobalCoordinator",
    "enqueuer",
    "get_worker_ids",
    "global_coordinator",
    "init_data_input_workers",
]

__getattr__ = names_of(__name__)

log = logging.getLogger("netbuilder.input")

_CAPACITY = 4  # batches in the queue of a blob
_SLOW_SHARE, _SLOW_SECONDS = 0.5, 5.0  # warn if the net has waited for more than both
_POLL_SECONDS = 0.1  # a waiting thread checks this often whether it must stop


def init_data_input_workers(
    net: Any,
    input_blob_names: Sequence[Any],
    fetch_fun: Callable[[int, int], Any],
    batch_size: int,
    num_worker_threads: int = 2,
    input_source_name: str = "train",
    max_buffered_batches: int = 800,
    init_fun: Callable[[Any, Any], object] | None = None,
    external_loggers: Iterable[Any] | None = None,
    dont_rebatch: bool = False,
    batch_columns: Sequence[int] | None = None,
    timeout: float = 600,
) -> GlobalCoordinator:
    """Add operators to a net that read its input from loader threads; call ``start`` of the result to start them.

    The blobs are those of the current device and name scope. Calls with the same ``input_source_name`` share the data
    of their fetchers.

    Args:
        net: a net or model.
        input_blob_names: the blobs, in the order of the arrays.
        fetch_fun: ``fetch_fun(worker id, batch_size)`` returns an array per blob, all with the same number of samples,
            which may be any number; None is logged and ignored. An exception stops the loaders, and is raised by the
            run that misses a batch.
        batch_size: samples per batch.
        num_worker_threads: threads that call ``fetch_fun``.
        input_source_name: name of the source.
        max_buffered_batches: maximum number of chunks in the queue.
        init_fun: called once before the threads start, with their coordinator and the global one.
        external_loggers: their ``log`` is called with a dict of counts and times, once a minute and at the end.
        dont_rebatch: use every chunk as a batch.
        batch_columns: for each blob the axis of the samples; None: axis 0.
        timeout: seconds that the net waits for a batch.

    Raises:
        NetError: a number is out of range, or ``batch_columns`` does not have one for each blob.
    """
    _check_threads(num_worker_threads)
    metrics = Metrics(external_loggers)
    feeder = BatchFeeder(
        net,
        input_blob_names,
        batch_size,
        CurrentDeviceScope() or DeviceOption(),
        CurrentNameScope(),
        input_source_name,
        global_coordinator.get_queue(input_source_name, max_buffered_batches),
        metrics,
        dont_rebatch,
        batch_columns,
        timeout,
    )
    ids = [global_coordinator.get_new_worker_id() for _ in range(num_worker_threads)]
    coordinator = WorkerCoordinator(input_source_name, ids, init_fun, feeder)
    feeder.coordinator = coordinator
    for number in ids:
        worker = DataWorker(coordinator, number, fetch_fun, metrics, batch_size, feeder)
        coordinator.add_thread(run_worker, f"data_workers fetcher id {number}", worker)
    coordinator.add_thread(enqueuer, f"Enqueuer {input_source_name} {CurrentNameScope()}", feeder)
    global_coordinator.add(coordinator)
    return global_coordinator


class BatchFeeder(State):
    """Splits the chunks of the fetchers into batches, and puts them into the queues of a net's blobs."""

    def __init__(
        self,
        net: Any,
        input_blob_names: Sequence[Any],
        batch_size: int,
        device_option: DeviceOption,
        namescope: str,
        input_source_name: str,
        queue: queues.Queue[Any],
        metrics: Metrics,
        dont_rebatch: bool,
        batch_columns: Sequence[int] | None,
        timeout: float = 600,
    ) -> None:
        names = [str(name) for name in input_blob_names]
        columns = [0] * len(names) if batch_columns is None else list(batch_columns)
        if not names or len(columns) != len(names):
            raise NetError(
                f"data_workers: batch_columns must have one axis for each of the blobs {names}, got {columns}"
            )
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise NetError(f"data_workers: batch_size must be a whole number, 1 or greater, got {batch_size!r}")
        self._names, self._columns, self._batch_size = names, columns, batch_size
        self._device, self._namescope, self._source = device_option, namescope, input_source_name
        self._chunks, self._metrics = queue, metrics
        self._dont_rebatch, self._timeout = dont_rebatch, timeout
        self._rest: list[np.ndarray[Any, Any]] = []  # samples of a chunk that are left for the next batch
        self.coordinator: WorkerCoordinator | None = None
        self._queues: list[BlobsQueue] = []
        for name in names:
            full = f"{namescope}{name}_c2queue_{input_source_name}"
            self._queues.append(BlobsQueue(1, _CAPACITY, full))
            default.workspace().feed(full, self._queues[-1])
        self._since, self._inputs = time.perf_counter(), 0
        self._began, self._warned = self._since, False
        self._add_operators(net)

    def _add_operators(self, net: Any) -> None:
        net = getattr(net, "net", net)
        with DeviceScope(self._device):
            for name, source in zip(self._names, self._queues):
                net.DequeueBlobs([BlobReference(source.name)], [name], timeout_secs=float(self._timeout))

    def start(self) -> None:
        """Start the counters."""
        self._since = self._began = time.perf_counter()

    def stop(self) -> None:
        """Close the queues of the net's blobs: a run that would have to wait fails, with the loaders' error if any."""
        for queue in self._queues:
            queue.close(self.coordinator.error if self.coordinator is not None else None)

    def cleanup(self) -> None:
        """Log the counters."""
        self._log_inputs(0, force=True)

    def put(self, chunk: Any, data_input_coordinator: WorkerCoordinator) -> None:
        """Add a chunk of a fetcher, once the queue has space for it.

        Raises:
            NetError: the chunk is not an array per blob, all with the same number of samples.
        """
        arrays = self._checked(chunk)
        while arrays is not None and data_input_coordinator.is_active():
            try:
                return self._chunks.put(arrays, timeout=_POLL_SECONDS)
            except queues.Full:
                continue

    def _checked(self, chunk: Any) -> list[np.ndarray[Any, Any]] | None:
        if chunk is None:
            log.warning("data_workers: the fetch function of source %r returned None", self._source)
            time.sleep(0.001)  # do not call it in a busy loop
            return None
        arrays = [chunk] if isinstance(chunk, np.ndarray) and len(self._names) == 1 else list(chunk)
        if len(arrays) != len(self._names) or not all(isinstance(array, np.ndarray) for array in arrays):
            raise NetError(
                f"data_workers: the fetch function must return an array for each of {self._names}, got "
                f"{[type(array).__name__ for array in arrays]}"
            )
        if any(array.ndim <= column for array, column in zip(arrays, self._columns)):
            raise NetError(
                f"data_workers: arrays of shapes {[a.shape for a in arrays]} lack the axes {self._columns} of samples"
            )
        counts = [array.shape[column] for array, column in zip(arrays, self._columns)]
        if len(set(counts)) > 1:
            raise NetError(f"data_workers: {self._names} must all have the same number of samples, got {counts}")
        return arrays

    def _get(self, data_input_coordinator: WorkerCoordinator) -> list[np.ndarray[Any, Any]] | None:
        """Return the next chunk; None: stop."""
        while data_input_coordinator.is_active():
            try:
                chunk: list[np.ndarray[Any, Any]] = self._chunks.get(timeout=_POLL_SECONDS)
                return chunk
            except queues.Empty:
                continue
        return None

    def _next_batch(self, coordinator: WorkerCoordinator) -> list[np.ndarray[Any, Any]] | None:
        if self._dont_rebatch:
            return self._get(coordinator)
        parts, count = ([self._rest], self._samples(self._rest)) if self._rest else ([], 0)
        while count < self._batch_size:
            chunk = self._get(coordinator)
            if chunk is None:
                return None
            parts.append(chunk)
            count += self._samples(chunk)
        batch, self._rest = [], []
        for arrays, column in zip(zip(*parts), self._columns):
            whole = np.concatenate(arrays, column) if len(arrays) > 1 else arrays[0]
            first, rest = np.split(whole, [self._batch_size], column)
            batch.append(first)
            if count > self._batch_size:
                self._rest.append(rest)
        return batch

    def _samples(self, arrays: Sequence[np.ndarray[Any, Any]]) -> int:
        return int(arrays[0].shape[self._columns[0]])

    def _enqueue_batch(self, data_input_coordinator: WorkerCoordinator) -> None:
        batch = self._next_batch(data_input_coordinator)
        if batch is None:
            return
        began = time.perf_counter()
        for queue, array in zip(self._queues, batch):
            queue.write([np.array(array)])
        self._metrics.put_metric("enqueue_time", time.perf_counter() - began)
        self._log_inputs(self._samples(batch))

    def _log_inputs(self, inputs: int, force: bool = False) -> None:
        """Count samples; call the loggers once a minute."""
        self._inputs += inputs
        self._warn_of_slow_fetchers()
        passed = time.perf_counter() - self._since
        if not force and passed < LOG_INT_SECS:
            return
        rate = int(self._inputs / max(passed, 1e-9))
        waited = sum(queue.state().read_wait for queue in self._queues)
        log.info(
            "%s/%s: %d inputs/s; %d chunks and %s batches are queued; the net has waited %.1f s",
            self._source, self._namescope, rate, self._chunks.qsize(), [len(q) for q in self._queues], waited,
        )  # fmt: skip
        for key, value in {"inputs_per_sec": rate, "queue_size": self._chunks.qsize(), "time_elapsed": passed}.items():
            self._metrics.put_metric(key, value, count=False)
        self._metrics.log_metrics()
        self._since, self._inputs = time.perf_counter(), 0

    def _warn_of_slow_fetchers(self) -> None:
        """Warn once if the net waits for its input most of the time."""
        passed = time.perf_counter() - self._began
        waited = max(queue.state().read_wait for queue in self._queues)
        if not self._warned and waited > max(_SLOW_SECONDS, _SLOW_SHARE * passed):
            self._warned = True
            log.warning(
                "data_workers: the net has waited for the input of source %r %.0f%% of the time so far (%.1f s); more "
                "num_worker_threads, or a faster fetch function, would help",
                self._source, 100 * waited / passed, waited,
            )  # fmt: skip


class DataWorker(Worker):
    """A fetcher thread's work."""

    def __init__(
        self,
        coordinator: WorkerCoordinator,
        worker_id: int,
        worker_fun: Callable[[int, int], Any],
        metrics: Metrics,
        batch_size: int,
        batch_feeder: BatchFeeder,
    ) -> None:
        super().__init__(coordinator, worker_id, worker_fun, metrics)
        self._feeder = batch_feeder

    def run(self) -> None:
        """Fetch one chunk and pass it on."""
        assert self._worker_fun is not None
        given = self._worker_fun(self._worker_id, self._feeder._batch_size)
        self._feeder._metrics.put_metric("fetcher_time", time.perf_counter() - self._began)
        self._feeder.put(given, self._coordinator)

    def finish(self) -> None:
        """Do nothing: ``run`` counts the time of a call."""


class GlobalCoordinator(GlobalWorkerCoordinator):
    """All loaders of the process that have not been stopped."""

    def __init__(self) -> None:
        super().__init__()
        self._queues: dict[str, queues.Queue[Any]] = {}

    def get_queue(self, queue_name: str, max_buffered_batches: int) -> queues.Queue[Any]:
        """Return the chunk queue of a source; the first call creates it with this capacity.

        Raises:
            NetError: the capacity is out of range.
        """
        if isinstance(max_buffered_batches, bool) or not isinstance(max_buffered_batches, int):
            raise NetError(f"max_buffered_batches must be a whole number, got {max_buffered_batches!r}")
        if max_buffered_batches < 1:
            raise NetError(f"max_buffered_batches must be at least 1, got {max_buffered_batches}")
        with self._lock:
            if queue_name not in self._queues:
                self._queues[queue_name] = queues.Queue(maxsize=max_buffered_batches)
            return self._queues[queue_name]

    def reset_data_input(self, namescope: str, name: str, net: Any, batch_size: int) -> None:
        """Make a net read its input from existing loaders, in batches of another size.

        Args:
            namescope: of the loaders.
            name: of their source.
            net: gets the operators.
            batch_size: samples per batch from now on.
        """
        log.info("data_workers: source %r, batch size %d", name, batch_size)
        for coordinator in self._coordinators:
            feeder = coordinator._state
            if isinstance(feeder, BatchFeeder) and (feeder._namescope, feeder._source) == (namescope, name):
                feeder._batch_size = batch_size
                feeder._add_operators(net)

    def _forked(self) -> None:
        super()._forked()
        if not self._coordinators:
            self._queues = {}

    def stop(self) -> bool:
        """Stop all loaders and drop what they have fetched. Return whether all stopped within a few seconds."""
        ended = super().stop()
        self._queues.clear()
        return ended


def get_worker_ids(num_workers: int) -> list[int]:
    """Return the numbers from 0 to ``num_workers`` - 1."""
    return list(range(num_workers))


def enqueuer(coordinator: WorkerCoordinator, batch_feeder: BatchFeeder) -> None:
    """Put batches into the queues of the net's blobs until the coordinator is stopped."""
    try:
        while coordinator.is_active():
            batch_feeder._enqueue_batch(coordinator)
    except QueueClosedError:
        pass  # stopped while the queue was full
    except BaseException as error:
        coordinator._fail(error)


global_coordinator = GlobalCoordinator()
