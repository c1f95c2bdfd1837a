"""A double of NCCL between processes with emulated GPUs: the one that makes an id computes for all that have it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import Any

import numpy as np

from emulated_gpu import machine
from nccl_double import DTYPES, Call, Clique, NcclDouble, NcclError

__all__ = ["NcclOfProcesses"]

_KEY = b"double of NCCL"


def _bytes(call: Call, size: int, *, received: bool) -> int:
    """Return the bytes of what a rank gives, or gets."""
    whole = call.what == ("allGather" if received else "reduceScatter")
    return call.count * np.dtype(DTYPES[call.dtype]).itemsize * (size if whole else 1)


class _Server:
    """Computes the collectives of an id, in a thread of the process that has made it."""

    def __init__(self) -> None:
        self._listener = Listener(authkey=_KEY)  # a file or a pipe: small messages over TCP would wait for one another
        self.address = str(self._listener.address)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        peers: dict[Connection, list[int]] = {}  # type: ignore[type-arg]
        while True:
            peer = self._listener.accept()
            size, ranks = peer.recv()
            peers[peer] = ranks
            if sorted(rank for of_peer in peers.values() for rank in of_peer) == list(range(size)):
                break
        try:
            while True:
                for peer in peers:
                    peer.send(None)
                self._round(peers, size)
        except (EOFError, OSError):  # a process has ended
            for peer in peers:
                peer.close()

    def _round(self, peers: dict[Any, list[int]], size: int) -> None:
        """Do one group of calls of all ranks."""
        waiting, given = set(peers), dict[int, list[tuple[Call, Any, Any]]]()
        while waiting:
            for peer in wait(list(waiting)):
                given |= peer.recv()  # type: ignore[union-attr]
                waiting.discard(peer)  # type: ignore[arg-type]
        calls: dict[int, list[Call]] = {}
        results: dict[int, list[Any]] = {}
        kept = []
        for rank, items in given.items():
            calls[rank], results[rank] = [], []
            for call, sent, room in items:
                source, target = (np.frombuffer(bytearray(sent or b""), np.uint8), np.zeros(room, np.uint8))
                kept.append(source)
                results[rank].append(target)
                pointers = {"send": source.ctypes.data if sent else 0, "receive": target.ctypes.data if room else 0}
                calls[rank].append(Call(**{**call.__dict__, **pointers}))
        error: BaseException | None = None
        try:
            _CliqueOfServer(NcclDouble(), [None] * size, False).run(calls)
        except BaseException as raised:
            error = raised
        for peer, ranks in peers.items():
            peer.send(error or {rank: [part.tobytes() for part in results[rank]] for rank in ranks})


class _CliqueOfServer(Clique):
    """All ranks, whose values lie in the server's memory."""

    def enqueue(self, name: str, calls: dict[int, Call], do: Callable[[], object]) -> None:
        do()


class _CliqueOfProcesses(Clique):
    """The ranks of an id that belong to this process."""

    def __init__(self, nccl: NcclDouble, devices: Sequence[int | None], address: str) -> None:
        super().__init__(nccl, devices, False)
        self._address, self._peer = address, None

    def submit(self, given: dict[int, list[Call]]) -> None:
        if self._peer is None:
            self._peer = Client(self._address, authkey=_KEY)
            self._peer.send((len(self.devices), list(given)))
            self._receive()
            return
        raised: list[BaseException] = []

        def exchange() -> None:
            try:
                self._exchange(given)
            except BaseException as error:
                raised.append(error)

        calls = [(rank, call) for rank, some in given.items() for call in some]
        touches = [self._touches(rank, call) for rank, call in calls]
        machine.collective([call.stream for _, call in calls], "nccl", exchange, touches)
        for _, call in calls:
            machine.finish(call.stream)
        if raised:
            raise raised[0]

    def _exchange(self, given: dict[int, list[Call]]) -> None:
        size = len(self.devices)
        payload = {
            rank: [
                (
                    call,
                    _at(call.send, _bytes(call, size, received=False)) if call.send else None,
                    _bytes(call, size, received=True) if call.receive else 0,
                )
                for call in calls
            ]
            for rank, calls in given.items()
        }
        assert self._peer is not None
        self._peer.send(payload)
        found = self._receive()
        for rank, calls in given.items():
            for call, data in zip(calls, found[rank]):
                if call.receive and self._gets(rank, call):
                    _view(call.receive, len(data))[:] = np.frombuffer(data, np.uint8)
        self._receive()  # the next round may begin

    def _gets(self, rank: int, call: Call) -> bool:
        return call.what != "reduce" or call.detail[1] == rank

    def _receive(self) -> Any:
        assert self._peer is not None
        try:
            if not self._peer.poll(self.nccl.patience):
                raise NcclError("NCCL_ERROR_REMOTE_ERROR: other processes do not come")
            found = self._peer.recv()
        except (EOFError, OSError) as error:
            raise NcclError("NCCL_ERROR_REMOTE_ERROR: remote process exited or there was a network error") from error
        if isinstance(found, BaseException):
            raise found
        return found


def _view(pointer: int, nbytes: int) -> Any:
    return np.frombuffer((ctypes.c_byte * nbytes).from_address(pointer), np.uint8)


def _at(pointer: int, nbytes: int) -> bytes:
    return bytes(_view(pointer, nbytes))


class NcclOfProcesses(NcclDouble):
    """The double of NCCL whose ids can be given to other processes of this machine."""

    def get_unique_id(self) -> bytes:
        return _Server().address.encode().ljust(128, b"\0")

    def clique(self, key: bytes, size: int) -> Clique:
        return _CliqueOfProcesses(self, [None] * size, key.rstrip(b"\0").decode())
