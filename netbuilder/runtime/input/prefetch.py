"""Prefetch: a thread prepares the next batches while a net runs; they are swapped in between two runs."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import GeneratorType
from typing import Any

from netbuilder.data.forking import renew_after_fork
from netbuilder.graph.blob import blob_name
from netbuilder.proto import DeviceOption, NetError
from netbuilder.proto.call_checks import checked
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.numbers import listed
from netbuilder.proto.threads import Thread
from netbuilder.runtime.execute.workspace import Workspace
from netbuilder.runtime.input.batches import Batch, Splitter, warn_if_constant

__all__ = ["Prefetch", "PrefetchState"]

_log = logging.getLogger("netbuilder.input")

_SLOW_SHARE, _SLOW_SECONDS = 0.5, 5.0  # warn if waiting takes over half of the loop's time, and 5 s
_CLOSING_SECONDS = 10.0

_END: Any = object()

Source = Iterable[Mapping[str, Any]] | Callable[[], Mapping[str, Any] | None]


@dataclass(frozen=True)
class PrefetchState:
    """Statistics of a Prefetch; times are in seconds.

    Args:
        ready: number of batches that are ready for the loop now.
        batches: number of batches that the loop has taken.
        waits: number of steps at which the loop had to wait.
        wait: total time that the loop waited.
        source: total time that the source took.
        prepare: total time for converting, splitting and copying batches.
        idle: total time that the thread waited because ``depth`` batches were ready.
    """

    ready: int = 0
    batches: int = 0
    waits: int = 0
    wait: float = 0.0
    source: float = 0.0
    prepare: float = 0.0
    idle: float = 0.0


class Prefetch:
    """Pulls batches from a source in a thread of its own, and swaps them into blobs at each step of a loop.

    The thread converts, splits and copies a batch into buffers of the blobs; a step of the loop makes these the blobs'
    values without a copy, and nothing is compiled again while shapes and types stay the same, or alternate among a few.
    An error of the source is raised in the loop, at the step that has no batch, with the source's traceback. While the
    Prefetch is open, the blobs can also be fed by hand.

    Args:
        workspace: where the blobs are.
        source: batches, as mappings from names to arrays: an iterable, or a function that returns a batch, and None at
            the end. Only one thread reads it, at most ``depth`` batches ahead.
        blobs: the names to take from each batch, each the name of a blob; or a mapping from names to the blobs over
            which an array is split along its first axis.
        depth: number of batches that are ready or being prepared, besides the one in use.
        devices: where the parts are stored, one device for each blob of a split; None: on the host.
        dtypes: by name, the types that arrays are converted to.
        even: whether all parts must have the same size; if not, sizes differ by at most one sample.
        look: whether to log a warning if all values of an array of the first batch are equal.

    Raises:
        NetError: an argument is out of range, or ``source`` is neither an iterable nor a function.
        DeviceError: a device does not exist.

    >>> import numpy as np
    >>> from netbuilder.proto.arguments import make_op
    >>> workspace = Workspace()
    >>> def batches():
    ...     for k in range(3):
    ...         yield {"x": np.full(2, k, np.float32)}
    >>> with Prefetch(workspace, batches(), blobs=["x"]) as input:
    ...     for batch in input:
    ...         workspace.run_operator_once(make_op("Scale", ["x"], ["y"], scale=10.0))
    ...         print(workspace.fetch("y"))
    [0. 0.]
    [10. 10.]
    [20. 20.]
    """

    _same_length = True  # all split arrays must have the same number of samples

    @checked("source")
    def __init__(
        self,
        workspace: Workspace,
        source: Source,
        *,
        blobs: Iterable[Any] | Mapping[str, Sequence[Any]],
        depth: int = 2,
        devices: Sequence[DeviceOption] | None = None,
        dtypes: Mapping[str, Any] | None = None,
        even: bool = True,
        look: bool = True,
    ) -> None:
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
            raise NetError(f"Prefetch: depth must be a whole number, 1 or more, got {depth!r}")
        self._workspace = workspace
        self._pull, self._close_source = _puller(source)
        names = _blobs_of(blobs)
        made = {blob: workspace.make(blob) for group in names.values() for blob in group}
        self._splitter = Splitter(names, made, devices, dtypes or {}, even, same_length=self._same_length)
        self._depth, self._look = depth, look
        self._ready: deque[Batch] = deque()
        self.changed = threading.Condition()
        self._state = PrefetchState()
        self._ended = self._closing = self._warned = False
        self._error: BaseException | None = None
        self._began = time.perf_counter()
        self._thread: Thread | None = None
        renew_after_fork(self)

    def renew(self) -> None:
        """Raise an error after the batches that are ready: in a forked process the thread does not exist."""
        self.changed = threading.Condition()
        if self._thread is not None and not self._ended:
            self._ended = True
            self._error = NetError(
                "Prefetch: the thread that reads its source is in the parent process, not in this forked one; make the "
                "source and the Prefetch in this process"
            )

    def __enter__(self) -> Prefetch:
        self._start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return self

    def __repr__(self) -> str:
        return f"Prefetch({', '.join(self._splitter.names)}; {len(self._ready)} of {self._depth} batches ready)"

    def __next__(self) -> Mapping[str, Any]:
        """Make the next batch the blobs' values; return it as the source returned it.

        Raises:
            StopIteration: the source has ended, or the Prefetch is closed.
            Exception: an error of the source, or for a batch that is not valid.
        """
        self._start()
        batch = self._wait()
        if batch is None:
            if self._ended:
                self.close()
            if self._error is not None:
                raise self._error
            raise StopIteration
        batch.present(self._workspace)
        return batch.source

    def state(self) -> PrefetchState:
        """Return the statistics so far."""
        with self.changed:
            return replace(self._state, ready=len(self._ready))

    def close(self, timeout: float = _CLOSING_SECONDS) -> None:
        """Stop the thread; calling it again has no effect. The blobs keep their present values.

        Args:
            timeout: seconds to wait for the source to return; after that, a RuntimeWarning is given.
        """
        with self.changed:
            self._closing = True
            self.changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)
            if self._thread.is_alive():
                warnings.warn(
                    f"Prefetch: the source has not returned for {timeout:g} seconds; its thread ends when it does",
                    RuntimeWarning,
                    stacklevel=2,
                )
        with self.changed:
            while self._ready:
                self._ready.popleft().release()

    # Called in the loop's thread.

    def _start(self) -> None:
        if self._thread is None and not self._closing:
            self._began = time.perf_counter()
            thread = Thread(target=self._work, name="netbuilder-input", daemon=True)
            thread.start()
            self._thread = thread

    def _wait(self) -> Batch | None:
        with self.changed:
            if not self._ready and not self._ended and not self._closing:
                began = time.perf_counter()
                while not self._ready and not self._ended and not self._closing:
                    self.changed.wait()
                waited = time.perf_counter() - began
                self._count(waits=1 if self._state.batches else 0, wait=waited)
            if not self._ready or self._closing:
                return None
            batch = self._ready.popleft()
            self._count(batches=1)
            self.changed.notify_all()
        self._warn_if_source_is_slow()
        return batch

    def _warn_if_source_is_slow(self) -> None:
        passed = time.perf_counter() - self._began
        if not self._warned and self._state.wait > max(_SLOW_SECONDS, _SLOW_SHARE * passed):
            self._warned = True
            _log.warning(
                "the loop has waited for its input %.0f%% of the time so far (%.1f s, %d of %d steps); the source took "
                "%.1f s, preparing its batches %.1f s",
                100 * self._state.wait / passed, self._state.wait, self._state.waits, self._state.batches,
                self._state.source, self._state.prepare,
            )  # fmt: skip

    def _count(self, **more: float) -> None:
        self._state = replace(self._state, **{name: getattr(self._state, name) + more[name] for name in more})

    # Called in the Prefetch's thread.

    def _work(self) -> None:
        try:
            for number, given in enumerate(iter(self._next_from_source, _END)):
                began = time.perf_counter()
                batch = self._splitter.split(given)
                if number == 0 and self._look:
                    warn_if_constant(given, self._splitter.names)
                with self.changed:
                    self._count(prepare=time.perf_counter() - began)
                    self._ready.append(batch)
                    self.changed.notify_all()
        except BaseException as error:
            if hasattr(error, "add_note"):
                error.add_note("(in the thread 'netbuilder-input', which reads the source of a Prefetch)")
            self._error = error
        finally:
            try:
                self._close_source()
            except Exception as error:
                self._error = self._error or error
            with self.changed:
                self._ended = True
                self.changed.notify_all()

    def _next_from_source(self) -> Any:
        """Wait until fewer than ``depth`` batches are ready; return the source's next batch, ``_END`` at the end."""
        with self.changed:
            began = time.perf_counter()
            while len(self._ready) >= self._depth and not self._closing:
                self.changed.wait()
            self._count(idle=time.perf_counter() - began)
            if self._closing:
                return _END
        began = time.perf_counter()
        try:
            return self._pull()
        finally:
            with self.changed:
                self._count(source=time.perf_counter() - began)


def _puller(source: Any) -> tuple[Callable[[], Any], Callable[[], object]]:
    """Return a function that returns the next batch, or ``_END``, and one to be called at the end."""
    if callable(source):

        def call() -> Any:
            try:
                given = source()
            except StopIteration:
                return _END
            return _END if given is None else given

        return call, lambda: None
    if isinstance(source, (str, bytes, Mapping)) or not hasattr(source, "__iter__") or getattr(source, "ndim", 1) == 0:
        raise NetError(
            "Prefetch: source must be an iterable of mappings from names to arrays, or a function that returns one, "
            f"got {type(source).__name__}"
        )
    batches: Iterator[Any] | None = None

    def pull() -> Any:
        nonlocal batches
        if batches is None:
            batches = iter(source)  # in the thread, because it may take long
        return next(batches, _END)

    def close() -> None:
        if isinstance(batches, GeneratorType):  # release what it holds now, in the thread that ran it
            batches.close()

    return pull, close


def _blobs_of(blobs: Any) -> dict[str, tuple[str, ...]]:
    if isinstance(blobs, Mapping):
        names = {
            str(name): tuple(map(blob_name, listed(f"Prefetch: blobs[{name!r}]", "blobs", parts)))
            for name, parts in blobs.items()
        }
    else:
        given = list(map(blob_name, blobs))
        names = {name: (name,) * given.count(name) for name in given}
    flat = [blob for parts in names.values() for blob in parts]
    if not flat or not all(names.values()) or len(set(flat)) < len(flat) or not all(flat):
        raise NetError(f"Prefetch: blobs must name at least one blob for each name, and each once, got {names}")
    return names
