"""A double of NCCL between processes with emulated GPUs: the one that makes an id computes for all that have it."""

from __future__ import annotations

import ctypes
import dataclasses
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import Any

import numpy as np

from emulated_gpu import machine
from nccl_double import Call, Clique, Given, NcclDouble, NcclError

__all__ = ["NcclOfProcesses"]

_KEY = b"double of NCCL"

_Peers = dict[Connection, list[int]]  # with the ranks of each


class _Server:
    """Computes the collectives of an id, in a thread of the process that has made it."""

    def __init__(self) -> None:
        self._listener = Listener(authkey=_KEY)  # a file or a pipe: small messages over TCP would wait for one another
        self.address = str(self._listener.address)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        peers: _Peers = {}
        size = 1
        while sum(map(len, peers.values())) < size:
            peer = self._listener.accept()
            size, peers[peer] = peer.recv()
        try:
            for peer in peers:
                peer.send(None)  # all have come
            while True:
                _do_round(peers, size)
        except (EOFError, OSError):  # a process has ended
            for peer in peers:
                peer.close()


def _do_round(peers: _Peers, size: int) -> None:
    """Do one group of calls of all ranks, in memory of the server."""
    given: dict[int, list[Call]] = {}
    taken: dict[int, list[Any]] = {}
    kept, waiting = [], set(peers)
    while waiting:
        for peer in wait(list(waiting)):
            waiting.discard(peer)  # type: ignore[arg-type]
            for rank, items in peer.recv().items():  # type: ignore[union-attr]
                given[rank], taken[rank] = [], []
                for call, sent, nbytes in items:
                    source, target = np.frombuffer(sent, np.uint8), np.zeros(nbytes, np.uint8)
                    kept.append(source)
                    taken[rank].append(target)
                    given[rank].append(dataclasses.replace(call, send=source.ctypes.data, receive=target.ctypes.data))
    error: BaseException | None = None
    try:
        _CliqueOfServer(NcclDouble(), [None] * size, False).run(given)
    except BaseException as raised:
        error = raised
    for peer, ranks in peers.items():
        peer.send(error or {rank: [target.tobytes() for target in taken[rank]] for rank in ranks})


class _CliqueOfServer(Clique):
    def start(self, calls: Mapping[int, Call], do: Callable[[], object]) -> None:
        do()


class _CliqueOfProcess(Clique):
    """The ranks of an id that belong to this process."""

    def __init__(self, nccl: NcclDouble, size: int, address: str) -> None:
        super().__init__(nccl, [None] * size, False)
        self._address = address
        self._server: Connection | None = None

    def submit(self, given: Given) -> None:
        if self._server is None:
            self._server = Client(self._address, authkey=_KEY)
            self._server.send((len(self.devices), list(given)))
            self._receive()
            return
        errors: list[BaseException] = []

        def exchange() -> None:
            try:
                self._exchange(given)
            except BaseException as error:
                errors.append(error)

        calls = [(rank, call) for rank, of_rank in given.items() for call in of_rank]
        touches = [call.touches(rank, len(self.devices)) for rank, call in calls]
        streams = [call.stream for _, call in calls]
        machine.collective(streams, f"nccl.{calls[0][1].what}", exchange, touches)
        for stream in streams:  # now, so that what goes wrong is an error of this call
            machine.finish(stream)
        if errors:
            raise errors[0]

    def _exchange(self, given: Given) -> None:
        assert self._server is not None
        touches = {rank: [call.touches(rank, len(self.devices)) for call in calls] for rank, calls in given.items()}
        self._server.send(
            {
                rank: [
                    (call, b"".join(map(_bytes, each.reads)), sum(nbytes for _, nbytes in each.writes))
                    for call, each in zip(calls, touches[rank])
                ]
                for rank, calls in given.items()
            }
        )
        for rank, results in self._receive().items():
            for each, result in zip(touches[rank], results):
                for start, nbytes in each.writes:
                    ctypes.memmove(start, result, nbytes)

    def _receive(self) -> Any:
        assert self._server is not None
        try:
            if not self._server.poll(self.nccl.patience):
                raise NcclError("NCCL_ERROR_REMOTE_ERROR: other processes do not come")
            found = self._server.recv()
        except (EOFError, OSError) as error:
            raise NcclError("NCCL_ERROR_REMOTE_ERROR: remote process exited or there was a network error") from error
        if isinstance(found, BaseException):
            raise found
        return found


def _bytes(part: tuple[int, int]) -> bytes:
    return ctypes.string_at(*part)


class NcclOfProcesses(NcclDouble):
    """The double of NCCL whose ids can be given to other processes of this machine."""

    def get_unique_id(self) -> bytes:
        return _Server().address.encode().ljust(128, b"\0")

    def new_clique(self, key: bytes, size: int) -> Clique:
        return _CliqueOfProcess(self, size, key.rstrip(b"\0").decode())
