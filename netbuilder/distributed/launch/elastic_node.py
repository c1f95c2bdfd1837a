"""Elastic jobs: after a loss the processes that are left form a new world; those that come join at the next epoch."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from netbuilder.distributed.launch import node as timing
from netbuilder.distributed.launch.node import NODES, Node, Part, kill, say
from netbuilder.distributed.stores import Store
from netbuilder.distributed.stores.heartbeat import Heartbeat
from netbuilder.distributed.transport import launchers
from netbuilder.distributed.transport.launchers import MEMORY, REGROUP, WANTED
from netbuilder.proto.errors import DistributedError, StoreTimeoutError, counted

__all__ = ["ElasticNode"]

_LAST_CALL = 3.0  # seconds that others have to come at the beginning, once there are enough
_PAUSE = 0.1  # seconds between two looks at the store while there is nothing to run
_READING = 10.0  # seconds in which the other launchers read how the job has ended
_STARTING = "starts"  # key with the number of worlds so far
_OVER = "over"  # key with the status of the job, once it has ended


class ElasticNode(Node):
    """What the launcher of one host does for an elastic job.

    The first host leads: it says which processes form the next *world*, after a loss, and after an epoch if others
    wait. A rank that is lost leaves the world until the next epoch, if its host has others and enough are left. The
    processes of each world are new ones; they find the state in the memory of their hosts.
    """

    after_failure = 1.0
    harmless = (0, REGROUP)

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.kept_open = [os.memfd_create(f"netbuilder-state-{number}") for number in range(2)]  # see ``HostMemory``
        self.environment[MEMORY] = ",".join(map(str, self.kept_open))
        self.number = 0 if self.first else self.store.add("hosts")
        self._offers = dict[int, dict[str, Any]]()  # what is known of the hosts
        self._resting = dict[int, int]()  # host -> ranks that it has lost in this epoch
        self._left = False

    def run(self) -> int:
        """Run the job, until its processes have ended well or too many were lost; return its status."""
        begin = int(self.store.peek(_STARTING) or 0)
        with Heartbeat(self.store.with_prefix(NODES), self.number, interval=timing.SIGN):
            self.meet()
            offer = {"host": socket.gethostname(), "processes": self.job.processes}
            self.store.set(f"offer/{self.number}", json.dumps(offer).encode())
            try:
                return self._lead() if self.first else self._follow(begin)
            finally:
                for file in self.kept_open:
                    os.close(file)

    def meet(self) -> None:
        self.parts = {}
        self.set_run_id()

    def _host(self, number: int) -> str:
        return str(self._offers[number]["host"])

    def _lead(self) -> int:
        losses = 0
        for number in itertools.count():
            status = self._form(number)
            if status is None:
                status, lost = self._run_world(number)
                losses += lost
                again = lost or status == REGROUP
                if again and losses <= self.job.restarts and not self.signals:
                    if lost:
                        say(f"the others go on, {losses} of {counted(self.job.restarts, 'restart')}")
                    continue
                if lost and not self.signals:
                    say(f"more than {counted(self.job.restarts, 'restart')} (--restarts): the job ends")
            self.store.set(_OVER, str(status).encode())
            self._wait_until_read()
            return status
        raise AssertionError

    def _run_world(self, number: int) -> tuple[int, bool]:
        """Run a world to its end; return its status, and whether a loss has ended it."""
        store, begin, self.lost = self.store.with_prefix(str(number)), time.monotonic(), []
        status = self._run_part(number, store)
        status = self._judge(store, status, time.monotonic() - begin)
        if self.signals:
            return status or 128 + self.signals[0], False
        found = store.peek("failed")
        if found is None and not self.lost and status in self.harmless:
            self._resting.clear()
            return status, False
        if found is not None and not self.lost:
            rank = json.loads(found)["rank"]
            host = next(each for each, part in self.parts.items() if 0 <= rank - part.first < part.count)
            self._resting[host] = self._resting.get(host, 0) + 1
        return status, True

    def _run_part(self, number: int, store: Store) -> int:
        """Run the processes of this host in a world; return their status."""
        status = self._run(number, store)
        if status not in self.harmless and not self._left and store.peek(launchers.STOPPING) is None:
            self._note_failure(store, 0, status)
        return status

    def _note_failure(self, store: Store, local_rank: int, status: int) -> None:
        """Let all know which rank was lost, where what watches over it could not."""
        if store.add("failures") == 1:
            rank = self.parts[self.number].first + local_rank
            failure = {"rank": rank, "status": status, "host": socket.gethostname()}
            store.set("failed", json.dumps(failure).encode())

    def _form(self, number: int) -> int | None:
        """Say which processes form the next world, once there are enough; return a status if there never are."""
        begin, since, said = time.monotonic(), math.inf, False
        while True:
            if self.signals:
                return 128 + self.signals[0]
            offered, now = self._offered(), time.monotonic()
            waited = now - begin
            parts = self._chosen(offered, self._resting)
            if _size(parts) < self.job.at_least and self._resting:
                self._resting.clear()
                continue
            enough, all_come = _size(parts) >= self.job.at_least, _size(parts) >= self.job.at_most
            since = min(since, now) if enough else math.inf  # when there have been enough from
            if enough and (number or all_come or self.job.is_local or now - since > _LAST_CALL):
                break
            if not enough and (self.job.is_local or waited > self.job.start_timeout):
                say(
                    f"there are {counted(_size(parts), 'process', 'processes')}, and the job needs {self.job.at_least} "
                    f"(--min); none has come for {waited:.0f} s, so the job ends"
                )
                return 1
            if not enough and not said:
                said = True
                say(f"waiting for {self.job.at_least - _size(parts)} more (--min {self.job.at_least})")
            time.sleep(_PAUSE)
        self.parts = parts
        places = ", ".join(f"{part.count} on {self._host(each)}" for each, part in parts.items())
        say(f"world {number} has {counted(self.size, 'process', 'processes')}: {places}")
        self.store.set(f"world/{number}", json.dumps({each: [p.first, p.count] for each, p in parts.items()}).encode())
        self.store.set(_STARTING, str(number + 1).encode())
        return None

    def _offered(self) -> dict[int, int]:
        """Return the processes that the hosts offer: of those whose launchers run."""
        for each in range(int(self.store.peek("hosts") or 0) + 1):
            if each not in self._offers and (text := self.store.peek(f"offer/{each}")) is not None:
                self._offers[each] = json.loads(text)
        for each in [each for each in self._offers if self.store.peek(f"left/{each}") is not None]:
            self._offers[each]["processes"] = 0
        silent = self._life.silent(timing.SILENCE, [each for each in self._offers if each])
        return {
            each: offer["processes"]
            for each, offer in self._offers.items()
            if offer["processes"] and each not in silent and each not in self.lost
        }

    def _chosen(self, offered: Mapping[int, int], resting: Mapping[int, int]) -> dict[int, Part]:
        """Return the processes of the next world: at least one of each host, up to --max."""
        parts, first = dict[int, Part](), 0
        for each, count in sorted(offered.items()):
            chosen = min(max(count - resting.get(each, 0), 1), self.job.at_most - first)
            if chosen:
                parts[each] = Part(first, chosen)
                first += chosen
        return parts

    def _lost_nodes(self) -> list[int]:
        """Return the hosts of this world that are silent; and let the program know whether others wait."""
        if self.first and time.monotonic() > self._listen_at:
            self._listen_at = time.monotonic() + timing.SIGN
            offered = self._offered()
            self.lost = [each for each in self.parts if each not in offered]
            if not self.lost and _size(self._chosen(offered, {})) > self.size:
                self.store.with_prefix(self.environment[launchers.ATTEMPT]).set(WANTED, b"")
        return self.lost

    def _end_of(self, rank: int, store: Store, status: int) -> int:
        found = super()._end_of(rank, store, status)
        if rank not in self.lost and self.store.peek(f"left/{rank}") is not None:  # it was not looked at since
            self.lost = [*self.lost, rank]
            self._say_lost(rank)
        return found

    def _say_lost(self, number: int) -> None:
        if self.store.peek(f"left/{number}") is None:
            super()._say_lost(number)
        else:
            say(f"{self._host(number)} has left the job")

    def _follow(self, number: int) -> int:
        """Take part in each world that has processes of this host, until the job is over; return its status."""
        status = 0
        try:
            while (world := self._next_world(number)) is not None:
                self.parts = {int(each): Part(*part) for each, part in world.items()}
                if self.number in self.parts:
                    store = self.store.with_prefix(str(number))
                    status = self._run_part(number, store)
                    store.set(f"node_ended/{self.number}", str(status).encode())
                if self._left:
                    return 128 + self.signals[0]
                number += 1
            found = int(self.store.get(_OVER, 1))
            self.store.set(f"read/{self.number}", b"")
            return found
        except DistributedError as error:
            if status or not self.parts:
                raise
            say(f"the processes of this host have ended well; how those of the others have is not known: {error}")
            return 0

    def _next_world(self, number: int) -> dict[str, list[int]] | None:
        """Wait for a world; None: the job is over, or this host leaves it."""
        while True:
            text = self.store.peek(f"world/{number}")
            if text is not None:
                world: dict[str, list[int]] = json.loads(text)
                return world
            if self.store.peek(_OVER) is not None:
                return None
            if self.signals:
                self.store.set(f"left/{self.number}", b"")
                self._left = True
                return {}
            time.sleep(_PAUSE)

    def _stop(self, store: Store, processes: Sequence[subprocess.Popen[bytes]], number: int, grace: float) -> None:
        """Stop all processes; a signal to a host that has joined ends its own, and the others go on without them."""
        if self.first or not self.signals:
            for local_rank, process in enumerate(processes):
                if not self.signals and process.poll() not in (None, *self.harmless):
                    self._note_failure(store, local_rank, process.returncode)
            super()._stop(store, processes, number, grace)
            return
        self._stop_sent, self._left = len(self.signals), True
        self.store.set(f"left/{self.number}", b"")
        kill(processes, signal.SIGKILL)

    def _wait_until_read(self) -> None:
        """Wait until the launchers that run know how the job has ended, before the store goes."""
        end, asked = time.monotonic() + _READING, [each for each in self._offered() if each]
        for each in asked:
            with contextlib.suppress(StoreTimeoutError):
                self.store.get(f"read/{each}", max(0.0, end - time.monotonic()))


def _size(parts: Mapping[int, Part]) -> int:
    return sum(part.count for part in parts.values())
