"""Checks over a store, before the first step, that the processes of a run agree; one error on all of them if not."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import socket
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import google.protobuf
import numpy as np

from netbuilder import __version__
from netbuilder.distributed.rendezvous import Rendezvous
from netbuilder.distributed.stores import Store
from netbuilder.distributed.transport.launchers import ended_ranks
from netbuilder.distributed.transport.start import QUIET
from netbuilder.distributed.transport.start_over_store import ended_over_store
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.random_streams import RANDOM_FIRST_SAMPLE, RANDOM_REPLICA
from netbuilder.proto import DistributedError, NetDef, NetError, OperatorDef, StoreTimeoutError
from netbuilder.proto.errors import counted

__all__ = ["fingerprint", "preflight", "preflight_by", "refuse"]

_PREFIX = "preflight/"  # of the keys of a check
_log = logging.getLogger("netbuilder")
_LOOK = 0.25  # seconds between two looks at which processes have ended
_WRITING = 2.0  # seconds that a process that has come has to write its record
_DECIDING = 10.0  # seconds that the process that judges has to write the verdict
_IDENTITY = frozenset(
    {
        *(RANDOM_FIRST_SAMPLE, RANDOM_REPLICA),
        *("first_replica", "num_shards", "process_rank", "rank", "shard_id", "size", "world_size"),
    }
)
_REMEDIES = {
    "devices": "give Parallelize as many in all processes",
    "num_shards": "start all processes with the same number",
    "netbuilder": "install the same version everywhere",
    "Python": "use the same version everywhere",
    "NumPy": "install the same version everywhere",
    "steps": "give all shards the same number of steps, or let the input repeat samples or leave some out",
}


def preflight(
    rendezvous: Rendezvous,
    facts: Mapping[str, Any] | None = None,
    *,
    nets: Sequence[NetDef] = (),
    shapes: Mapping[str, TensorSpec] | None = None,
    store: Store | None = None,
    name: str = "start",
    timeout: float = 10.0,
) -> None:
    """Return when all processes are there and agree; otherwise raise the same error on each of them.

    They must have different shard ids and the same number of shards, versions, nets, shapes and facts.

    Args:
        rendezvous: of this process. With one shard nothing is checked.
        facts: further values that must be equal, such as {"steps": 500}; JSON must be able to hold them.
        nets: compared operator by operator, without what belongs to a rank.
        shapes: of the nets' inputs, those of one process.
        store: None: that of the rendezvous.
        name: of this check; checks of one run need different names.
        timeout: seconds to wait for processes that are missing.

    Raises:
        DistributedError: the processes disagree; the message says in what, and which shards have which value.
        StoreTimeoutError: processes are missing; the message names their shard ids.
        NetError: there is no store.
    """
    if rendezvous.num_shards == 1:
        return
    store = store if store is not None else rendezvous.shared_store()
    if store is None:
        raise NetError("preflight: the rendezvous has no store; give store=, or start with netbuilder-launch")
    found = _Check(store.with_prefix(_PREFIX + name), rendezvous, timeout)
    found.enter(_facts(rendezvous, facts or {}, nets, shapes or {}), nets)
    found.judge()


def refuse(store: Store, name: str, text: str) -> None:
    """Let a check fail on all processes that take part in it.

    Args:
        store, name: of the check, as for ``preflight``.
        text: what is wrong.
    """
    check = store.with_prefix(_PREFIX + name)
    if check.add("judges") == 1:
        check.set("verdict", f"preflight: {text}".encode())


def preflight_by(
    exchange: Callable[[bytes], list[bytes]],
    rendezvous: Rendezvous,
    facts: Mapping[str, Any],
    *,
    nets: Sequence[NetDef],
) -> None:
    """Compare all processes as ``preflight`` does, without a store.

    Args:
        exchange: gives all processes a text of this one, and returns those of all, in the same order in all of them.
        rendezvous: of this process.
        facts, nets: as in ``preflight``.

    Raises:
        DistributedError: the processes disagree.
    """
    every = _facts(rendezvous, facts, nets, {})
    records = [json.loads(text) for text in exchange(_record(rendezvous.shard_id, every, nets))]
    if problem := _problem(records, nets):
        raise DistributedError(f"preflight: {exchange(problem.encode())[0].decode()}")


def fingerprint(net: NetDef) -> str:
    """Return a text that is the same for equal nets on all ranks.

    The order of operators and arguments' values count; where operators were made (``debug_info``) and arguments that
    number a process do not.
    """
    digest = hashlib.sha256()
    for op in net.op:
        digest.update(_operator_bytes(op))
    digest.update("\0".join([*net.external_input, "", *net.external_output]).encode())
    return digest.hexdigest()[:16]


def _operator_bytes(op: OperatorDef) -> bytes:
    copy = OperatorDef()
    copy.CopyFrom(op)
    copy.ClearField("debug_info")
    kept = sorted((arg for arg in copy.arg if arg.name not in _IDENTITY), key=lambda arg: arg.name)
    plain = [arg for arg in kept if not (arg.HasField("n") or arg.nets)]
    parts = [arg.SerializeToString(deterministic=True) for arg in plain]
    for arg in kept:
        nets = [*([arg.n] if arg.HasField("n") else []), *arg.nets]
        parts += [f"{arg.name} {fingerprint(net)}".encode() for net in nets]
    copy.ClearField("arg")
    return b"\0".join([copy.SerializeToString(deterministic=True), *parts])


def _operators(net: NetDef) -> list[int]:
    return [zlib.crc32(_operator_bytes(op)) for op in net.op]


def _facts(
    rendezvous: Rendezvous, facts: Mapping[str, Any], nets: Iterable[NetDef], shapes: Mapping[str, TensorSpec]
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "num_shards": rendezvous.num_shards,
        "engine": rendezvous.engine,
        "netbuilder": __version__,
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "NumPy": np.__version__,
        "protobuf": google.protobuf.__version__,
    }
    found.update({str(key): value for key, value in facts.items()})
    for number, net in enumerate(nets):
        found[f"net {number}"] = f"{fingerprint(net)}, {counted(len(net.op), 'operator')}"
    for blob, spec in shapes.items():
        found[f"input {blob!r}"] = f"{tuple(spec.shape)} {spec.dtype}"
    return found


def _record(shard: int, facts: Mapping[str, Any], nets: Sequence[NetDef]) -> bytes:
    """Return what the others learn of a process, as JSON."""
    record = {"shard": shard, "where": f"{socket.gethostname()}, process {os.getpid()}", "facts": facts}
    try:
        return json.dumps({**record, "operators": [_operators(net) for net in nets]}).encode()
    except (TypeError, ValueError) as error:
        raise NetError(f"preflight: facts must be values that JSON can hold: {error}") from None


def _problem(records: list[dict[str, Any]], nets: Sequence[NetDef]) -> str:
    """Return in what the processes disagree; "" if they do not."""
    by_shard = defaultdict(list)
    for record in records:
        by_shard[record["shard"]].append(record["where"])
    for shard, places in sorted(by_shard.items()):
        if len(places) > 1:
            return (
                f"shard id {shard} is used {len(places)} times, by {' and by '.join(places)}; give each process "
                "its own shard_id, or each run its own run_id if an earlier one has left this in the store"
            )
    names = dict.fromkeys(name for record in records for name in record["facts"])
    for name in names:
        shards = defaultdict(list)
        for record in records:
            shards[json.dumps(record["facts"].get(name), sort_keys=True)].append(record["shard"])
        if len(shards) > 1:
            return _difference(name, shards, records, nets)
    return ""


def _difference(
    name: str, shards: Mapping[str, list[int]], records: list[dict[str, Any]], nets: Sequence[NetDef]
) -> str:
    values = "; ".join(
        f"{'shard' if len(found) == 1 else 'shards'} {', '.join(map(str, sorted(found)[:8]))}"
        f"{' and more' if len(found) > 8 else ''}: {value}"
        for value, found in shards.items()
    )
    text = f"the shards differ in {name}: {values}"
    if name.startswith("net ") and name[4:].isdecimal():
        return text + _first_difference(int(name[4:]), records, nets)
    return f"{text}; {_REMEDIES.get(name, 'it must be the same on all')}"


class _Check:
    """One check: a record of each process in the store, and a verdict, which one of them writes for all.

    Counters tell how many have come, and how many of them have the same record, so that a process makes a few requests,
    however many there are; only the one that judges a difference reads the records of all.
    """

    def __init__(self, store: Store, rendezvous: Rendezvous, timeout: float) -> None:
        self.store, self.shard, self.count, self.timeout = store, rendezvous.shard_id, rendezvous.num_shards, timeout
        self._ended = set[int]()  # who had ended at the last look

    def enter(self, facts: Mapping[str, Any], nets: Sequence[NetDef]) -> None:
        """Put the record of this process into the store; judge if it is the last one, or another than an earlier one.

        Raises:
            DistributedError: the shard id is used twice, or too many processes have come.
        """
        own = _record(self.shard, facts, nets)
        uses = self.store.add(f"uses/{self.shard}")
        self.store.set(f"record/{self.shard}/{uses}", own)
        same = _digest(facts, nets)
        alike = self.store.add(f"same/{same}")
        kinds = self.store.add("kinds") if alike == 1 else 1
        come = self.store.add("come")
        if come > self.count:
            self._fail(
                f"{come} processes have come, and num_shards is {self.count} for shard {self.shard}: too many "
                "have been started, or the store holds what an earlier run has left; give each run its own run_id"
            )
        if uses > 1 or kinds > 1:
            self._fail(_problem(self._records(), nets))
        if alike == self.count:
            self._decide(b"")

    def judge(self) -> None:
        """Wait for the verdict, and judge that processes are missing, or have ended."""
        begin, said = time.monotonic(), False
        end = begin + self.timeout
        while (verdict := self._verdict(min(_LOOK, max(end - time.monotonic(), 0.0)))) is None:
            self._look_for_ended()
            if time.monotonic() >= end:
                self._fail_missing()
            if time.monotonic() > begin + QUIET and not said:
                _log.warning("preflight: waits for %s; it gives up after %g s", self._missing(), self.timeout)
                said = True
        if verdict:
            raise DistributedError(verdict.decode())

    def _verdict(self, seconds: float) -> bytes | None:
        """Return the verdict, "" for a good one; None: there is none after this time."""
        try:
            return self.store.get("verdict", seconds)
        except StoreTimeoutError:
            return None

    def _records(self) -> list[dict[str, Any]]:
        """Return the records of all that have come, by shard."""
        found = []
        for shard in range(max(self.count, self.shard + 1)):
            for use in range(1, int(self.store.peek(f"uses/{shard}") or 0) + 1):
                with suppress(StoreTimeoutError):  # it has ended in between
                    found.append(json.loads(self.store.get(f"record/{shard}/{use}", _WRITING)))
        return found

    def _decide(self, verdict: bytes) -> bytes:
        """Make this the verdict unless there is one; return that."""
        if self.store.add("judges") == 1:
            self.store.set("verdict", verdict)
        return self.store.get("verdict", _DECIDING)

    def _fail(self, text: str) -> NoReturn:
        """Raise the error, the same on all processes: that of the first one that failed."""
        text = f"preflight: {text}"
        raise DistributedError((self._decide(text.encode()) or text.encode()).decode())

    def _fail_missing(self) -> None:
        """Raise the error, unless the others have come meanwhile."""
        come = int(self.store.peek("come") or 0)
        text = (
            f"preflight: {self._missing()} did not come to {self.store} within {self.timeout:g} s; {come} did. Were "
            "they started, with the same run_id and store, and have they failed before?"
        )
        if verdict := self._decide(text.encode()):
            raise StoreTimeoutError(verdict.decode())

    def _missing(self) -> str:
        missing = [str(shard) for shard in range(self.count) if self.store.peek(f"uses/{shard}") is None]
        some = "shard" if len(missing) == 1 else "shards"
        return f"{some} {', '.join(missing[:16])}{' and more' if len(missing) > 16 else ''} of {self.count}"

    def _look_for_ended(self) -> None:
        """Fail if a process that is missing has ended, as far as its launcher tells, or its process manager."""
        ended: dict[int, int | str] = dict.fromkeys(ended_over_store(self.count), "unknown")
        ended.update(ended_ranks(os.environ, self.shard, self.count))
        missing = {shard: status for shard, status in ended.items() if self.store.peek(f"uses/{shard}") is None}
        # what it wrote before its end may have been read too early: it counts if it is missing at the next look, too
        if lost := {shard: status for shard, status in missing.items() if shard in self._ended}:
            listed = ", ".join(f"{shard} (status {status})" for shard, status in sorted(lost.items())[:8])
            some = "rank" if len(lost) == 1 else "ranks"
            self._fail(f"{some} {listed} of {self.count} ended before having come to this check of all processes")
        self._ended.update(missing)


def _digest(facts: Mapping[str, Any], nets: Sequence[NetDef]) -> str:
    """Return a text that is the same for processes whose facts and nets are equal."""
    text = json.dumps([sorted((name, facts[name]) for name in facts), [_operators(net) for net in nets]])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _first_difference(number: int, records: list[dict[str, Any]], nets: Sequence[NetDef]) -> str:
    """Return where the nets of two shards begin to differ."""
    lists = [record["operators"][number] for record in records if number < len(record["operators"])]
    if len(lists) < len(records):
        return "; build the same nets on all shards"
    shortest = min(map(len, lists))
    index = next((i for i in range(shortest) if len({ops[i] for ops in lists}) > 1), shortest)
    if index == max(map(len, lists)):
        return "; they differ in their external inputs or outputs"
    net = nets[number]
    if index >= len(net.op):
        return f"; the first {counted(index, 'operator')} are equal, and only some shards have more"
    op = net.op[index]
    return (
        f"; the first operator that differs is number {index}, here {op.type} of {list(op.output)}; build the nets "
        "from the same arguments on all shards, and in the same order"
    )
