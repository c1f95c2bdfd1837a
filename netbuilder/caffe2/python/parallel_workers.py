"""Worker threads that call a function repeatedly until they are stopped, under Caffe2's names."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from netbuilder.caffe2.missing import names_of
from netbuilder.data.forking import after_fork, new_lock
from netbuilder.proto import NetError
from netbuilder.proto.threads import Thread

__all__ = [
    "GlobalWorkerCoordinator",
    "Metrics",
    "State",
    "Worker",
    "WorkerCoordinator",
    "global_coordinator",
    "init_workers",
    "run_worker",
]

__getattr__ = names_of(__name__)

log = logging.getLogger("netbuilder.input")
LOG_INT_SECS = 60

_JOIN_SECONDS = 5.0  # for all threads of a coordinator together


def init_workers(
    worker_fun: Callable[[int], object],
    num_worker_threads: int = 2,
    worker_name: str = "train",
    init_fun: Callable[[Any, Any], object] | None = None,
    external_loggers: Iterable[Any] | None = None,
    shutdown_fun: Callable[[], object] | None = None,
) -> GlobalWorkerCoordinator:
    """Create workers that call ``worker_fun(worker id)`` repeatedly; call ``start`` of the result to start them.

    Args:
        worker_fun: an exception in it stops all workers of this name.
        num_worker_threads: number of workers.
        worker_name: name for ``stop_coordinator``.
        init_fun: called once before they start, with their coordinator and the global one.
        external_loggers: their ``log`` is called with a dict of counts and times.
        shutdown_fun: called when they are stopped.
    """
    _check_threads(num_worker_threads)
    metrics = Metrics(external_loggers)
    ids = [global_coordinator.get_new_worker_id() for _ in range(num_worker_threads)]
    coordinator = WorkerCoordinator(worker_name, ids, init_fun, shutdown_fun=shutdown_fun)
    for number in ids:
        worker = Worker(coordinator, number, worker_fun, metrics)
        coordinator.add_thread(run_worker, f"parallel_workers worker id {number}", worker)
    global_coordinator.add(coordinator)
    return global_coordinator


def _check_threads(count: Any) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise NetError(f"num_worker_threads must be a whole number, 1 or greater, got {count!r}")


class Metrics:
    """Sums of measurements of threads, passed to loggers.

    Args:
        external_loggers: objects whose ``log`` takes a dict.
    """

    def __init__(self, external_loggers: Iterable[Any] | None) -> None:
        self._loggers = list(external_loggers or ())
        self._lock = new_lock()
        self.reset_metrics()

    def reset_metrics(self) -> None:
        """Reset the sums to zero."""
        self._metrics: dict[str, float] = defaultdict(lambda: 0)

    def log_metrics(self) -> None:
        """Pass the sums to the loggers and reset them."""
        with self._lock:
            metrics = self._metrics
            self.reset_metrics()
        for logger in self._loggers:
            try:
                logger.log(metrics)
            except Exception as error:
                log.warning("a logger failed: %s: %s", type(error).__name__, error)

    def put_metric(self, key: str, value: float, count: bool = True) -> None:
        """Add a value to a sum, and, with ``count``, one to ``<key>_count``."""
        with self._lock:
            self._metrics[key] += value
            if count:
                self._metrics[f"{key}_count"] += 1


class State:
    """State that workers share; ``start``, ``stop`` and ``cleanup`` are called when they start, stop and have ended."""

    def start(self) -> None:
        """Start."""

    def stop(self) -> None:
        """Wake waiting threads."""

    def cleanup(self) -> None:
        """Release resources."""


class WorkerCoordinator:
    """The workers of one call of ``init_workers``; the first error stops them.

    Attributes:
        error: the error that stopped them, or None.
    """

    def __init__(
        self,
        worker_name: str,
        worker_ids: list[int],
        init_fun: Callable[[Any, Any], object] | None,
        state: State | None = None,
        shutdown_fun: Callable[[], object] | None = None,
    ) -> None:
        self._worker_name = worker_name
        self._worker_ids = worker_ids
        self._init_fun = init_fun
        self._state = state
        self._shutdown_fun = shutdown_fun
        self._threads: list[Thread] = []
        self._lock = new_lock()
        self._active = self._started = False
        self.error: BaseException | None = None

    def add_thread(self, target: Callable[..., object], name: str, *args: Any) -> None:
        """Add a thread that will run ``target(coordinator, *args)``."""
        self._threads.append(Thread(target=target, args=(self, *args), name=name, daemon=True))

    def is_active(self) -> bool:
        """Whether the workers should continue."""
        return self._active

    def init(self, global_coordinator: GlobalWorkerCoordinator) -> None:
        """Call ``init_fun``."""
        if self._init_fun is not None and not self._started:
            self._init_fun(self, global_coordinator)

    def get_worker_ids(self) -> list[int]:
        """Return the ids of the workers."""
        return list(self._worker_ids)

    def _start(self) -> None:
        if self._started:
            return
        self._started = self._active = True
        if self._state is not None:
            self._state.start()
        for thread in self._threads:
            thread.start()

    def _fail(self, error: BaseException) -> None:
        """Stop all workers after an error; keep the first error."""
        with self._lock:
            self.error = self.error or error
        self._stop(f"{type(error).__name__}: {error}")

    def _stop(self, reason: Any = None) -> None:
        if reason is not None:
            log.error("workers %r stop: %s", self._worker_name, reason)
        with self._lock:
            ending, self._active = self._active, False
        if ending and self._shutdown_fun is not None:
            self._shutdown_fun()
        if self._state is not None:
            self._state.stop()

    def _orphan(self) -> None:
        """After a fork the threads do not exist in the child: give threads that wait for them an error."""
        self._active = False
        self.error = NetError(
            f"the threads of workers {self._worker_name!r} exist only in the parent process; create and start workers "
            "after the fork"
        )
        if self._state is not None:
            self._state.stop()

    def _wait_finish(self, cleanup: Callable[[], object] | None = None) -> bool:
        """Wait for the threads to end; return whether all have."""
        alive = [thread for thread in self._threads if thread.is_alive()]
        end = time.monotonic() + _JOIN_SECONDS
        for thread in alive:
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - time.monotonic()))
        late = [thread.name for thread in alive if thread.is_alive()]
        if late:
            log.error("workers %r: still running after %g seconds: %s", self._worker_name, _JOIN_SECONDS, late)
        if self._state is not None:
            self._state.cleanup()
        if cleanup is not None:
            cleanup()
        return not late


class GlobalWorkerCoordinator:
    """All coordinators of the process that have not been stopped."""

    def __init__(self) -> None:
        self._coordinators: list[WorkerCoordinator] = []
        self._fetcher_id_seq = 0  # Caffe2's name; scripts read it to count the workers
        self._worker_ids: list[int] = []
        self._lock = threading.RLock()
        self._registered = False
        self.register_shutdown_handler()
        after_fork(self._forked)

    def _forked(self) -> None:
        self._lock = threading.RLock()
        orphans = [coordinator for coordinator in self._coordinators if coordinator._started]
        self._coordinators = [coordinator for coordinator in self._coordinators if not coordinator._started]
        for coordinator in orphans:
            coordinator._orphan()

    def add(self, coordinator: WorkerCoordinator) -> None:
        """Add a coordinator, for ``start``."""
        with self._lock:
            self._coordinators.append(coordinator)

    def get_new_worker_id(self) -> int:
        """Return a new worker id."""
        with self._lock:
            self._fetcher_id_seq += 1
            self._worker_ids.append(self._fetcher_id_seq - 1)
            return self._fetcher_id_seq - 1

    def get_worker_ids(self) -> list[int]:
        """Return the ids of workers created since the last ``stop``."""
        return list(self._worker_ids)

    def start(self) -> None:
        """Start all workers that have not started."""
        for coordinator in list(self._coordinators):
            coordinator.init(self)
            coordinator._start()

    def stop(self) -> bool:
        """Stop all workers; return whether all stopped within a few seconds."""
        with self._lock:
            ending, self._coordinators, self._worker_ids = self._coordinators, [], []
        for coordinator in ending:
            coordinator._stop()
        ended = [coordinator._wait_finish() for coordinator in ending]
        return all(ended)

    def stop_coordinator(self, worker_name: str) -> None:
        """Stop the workers of this name."""
        with self._lock:
            ending = [c for c in self._coordinators if c._worker_name == worker_name]
            self._coordinators = [c for c in self._coordinators if c._worker_name != worker_name]
        for coordinator in ending:
            coordinator._stop()
        for coordinator in ending:
            coordinator._wait_finish()

    def register_shutdown_handler(self) -> None:
        """Stop all workers when the process exits."""
        if not self._registered:
            self._registered = True
            atexit.register(self.stop)


class Worker:
    """The work of one worker thread: ``run`` is called repeatedly."""

    def __init__(
        self,
        coordinator: WorkerCoordinator,
        worker_id: int,
        worker_fun: Callable[..., Any] | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._worker_id = worker_id
        self._worker_fun = worker_fun
        self._metrics = metrics

    def start(self) -> None:
        """Record the start time of a call."""
        self._began = time.perf_counter()

    def run(self) -> None:
        """Call the function once."""
        if self._worker_fun is not None:
            self._worker_fun(self._worker_id)

    def handle_exception(self, e: BaseException) -> None:
        """Stop all workers of the coordinator, because this one failed."""
        if hasattr(e, "add_note"):
            e.add_note(f"(in worker {self._worker_id}, thread {threading.current_thread().name!r})")
        self._coordinator._fail(e)

    def finish(self) -> None:
        """Record the time of a call."""
        if self._metrics is not None:
            self._metrics.put_metric("worker_time", time.perf_counter() - self._began)
            self._metrics.log_metrics()


def run_worker(coordinator: WorkerCoordinator, worker: Worker) -> None:
    """Run a worker until its coordinator is stopped or it fails."""
    while coordinator.is_active():
        worker.start()
        try:
            worker.run()
            worker.finish()
        except BaseException as error:  # including SystemExit: threads that wait for the worker must get it
            worker.handle_exception(error)


global_coordinator = GlobalWorkerCoordinator()
