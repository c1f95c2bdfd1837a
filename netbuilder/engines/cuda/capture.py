"""CUDA graphs: calls that add work to a GPU are captured once, and repeated on the same memory by one launch."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from netbuilder.data.forking import new_lock
from netbuilder.data.gc_paused import collection_paused
from netbuilder.engines.captures import CaptureError
from netbuilder.engines.gpu import GPU, StreamRole, Streams, gpu
from netbuilder.proto import DeviceError

__all__ = ["Graph", "between_captures", "capture", "keep_for_graph", "streams_of"]

_ROLES = (StreamRole.COMPUTE, StreamRole.EXCHANGE)  # that captured calls may use
_INVALIDATED = 901  # cudaErrorStreamCaptureInvalidated


class Graph:
    """Captured work of one GPU. The memory that it uses must exist for as long as it is launched."""

    __slots__ = ("_gpu", "_kept", "raw_graph")

    def __init__(self, here: GPU, raw: Any, kept: Collection[object]) -> None:
        self._gpu = here
        self.raw_graph = raw
        self._kept = kept  # what the work uses

    def launch(self) -> None:
        """Add the work to what the GPU computes."""
        with self._gpu as here:
            self.raw_graph.launch(here.stream().raw)


def _not_captured(index: int | None, error: BaseException) -> CaptureError:
    of_library = isinstance(error, DeviceError)  # it does not tell the cause
    return CaptureError(index, error, broken=of_library or getattr(error, "status", None) == _INVALIDATED)


class _CaptureStreams:
    """The streams on which one thread at a time captures for a GPU.

    Other threads may record events on the GPU's own streams meanwhile, which must not become part of the capture.
    """

    def __init__(self, here: GPU) -> None:
        self.gpu = here
        self.lock = new_lock()
        self._streams: Streams | None = None

    def get(self) -> Streams:
        if self._streams is None:
            self._streams = self.gpu.new_streams(*_ROLES)
        return self._streams

    def renew(self) -> None:
        """Use other streams for the next capture: those of one that failed may be left in any state."""
        self._streams = None


class _OfThread(threading.local):
    kept: dict[int, object] | None = None  # for the graph that it captures; None: it captures none


_of_thread = _OfThread()
_of_gpu: dict[int, _CaptureStreams] = {}
_lock = new_lock()


def streams_of(here: GPU) -> _CaptureStreams:
    """Return the streams on which a GPU's work is captured."""
    with _lock:
        found = _of_gpu.get(here.id)
        if found is None or found.gpu is not here:  # after a fork
            found = _of_gpu[here.id] = _CaptureStreams(here)
    return found


def capture(number: int, calls: Sequence[Callable[[], object]]) -> Graph | None:
    """Capture calls, which are made once but whose work is not done before the graph is launched.

    A call must not allocate memory of the GPU, read a value or wait on the host, or wait for work outside the capture.
    What streams for exchange do must be waited for by the last call.

    Args:
        number: the GPU.
        calls: in order.

    Returns:
        The graph; None if another thread is capturing for this GPU.

    Raises:
        CaptureError: a call does what cannot be captured.
    """
    streams = streams_of(gpu(number))
    if not streams.lock.acquire(False):
        return None
    try:
        return _capture(streams, calls)
    except BaseException:
        streams.renew()
        raise
    finally:
        streams.lock.release()


@contextlib.contextmanager
def between_captures(here: GPU, *, wait: bool = False) -> Iterator[bool]:
    """Keep captures away from a GPU; yields False, and keeps none away, if one goes on, or this thread captures.

    Args:
        here: the GPU.
        wait: for the end of one that goes on.
    """
    lock = streams_of(here).lock
    free = _of_thread.kept is None and lock.acquire(wait)
    try:
        yield free
    finally:
        if free:
            lock.release()


def _capture(streams: _CaptureStreams, calls: Sequence[Callable[[], object]]) -> Graph:
    here, own = streams.gpu, streams.get()
    stream, runtime = own[StreamRole.COMPUTE].raw, here.xp.cuda.runtime
    with here.using(own), _no_allocation(here.xp), collection_paused(), _noted() as kept:
        try:
            stream.begin_capture(runtime.streamCaptureModeThreadLocal)
        except Exception as error:
            raise _not_captured(None, error) from error
        index = 0
        try:
            for index, call in enumerate(calls):  # noqa: B007
                call()
        except BaseException as error:
            with contextlib.suppress(Exception):  # it says once more that the capture is not valid
                stream.end_capture()
            if isinstance(error, Exception):
                raise _not_captured(index, error) from error
            raise
        try:
            return Graph(here, stream.end_capture(), tuple(kept.values()))
        except Exception as error:
            raise _not_captured(len(calls), error) from error


@contextlib.contextmanager
def _noted() -> Iterator[dict[int, object]]:
    """Note that this thread captures; yields what is to be kept for the graph."""
    kept: dict[int, object] = {}
    _of_thread.kept = kept
    try:
        yield kept
    finally:
        _of_thread.kept = None


def keep_for_graph(used: object) -> None:
    """Keep an object for as long as the graph, if this thread captures one: the captured work uses it."""
    if _of_thread.kept is not None:
        _of_thread.kept[id(used)] = used


class _Refused(MemoryError):
    """An allocation during a capture."""


@contextlib.contextmanager
def _no_allocation(xp: Any) -> Iterator[None]:
    """Refuse this thread's allocations: a graph would go on using memory that is given to others after the capture."""

    def refuse(nbytes: int) -> Any:
        raise _Refused(f"it allocates {nbytes:,} bytes of the GPU's memory")

    with xp.cuda.using_allocator(refuse):
        yield
