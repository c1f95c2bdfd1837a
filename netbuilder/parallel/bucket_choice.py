"""The size of buckets that is chosen in the first steps of a training, by their times and those of the link."""

from __future__ import annotations

import dataclasses
import logging
import os
import platform
from collections.abc import Mapping
from weakref import WeakKeyDictionary

import numpy as np

from netbuilder.distributed.process_group import ProcessGroup
from netbuilder.distributed.strategies import Strategy
from netbuilder.distributed.worlds.session import HEADER_BYTES
from netbuilder.distributed.worlds.world import CommonWorld
from netbuilder.graph.net import Net
from netbuilder.graph.replicas import Replicas
from netbuilder.model import ModelHelper
from netbuilder.ops.core.operator import Exchange as Exchanges
from netbuilder.parallel.options import DataParallelOptions
from netbuilder.parallel.process_exchange import gradient_bytes
from netbuilder.parallel.same_state import made_equal
from netbuilder.parallel.simulation.allreduce import Cluster
from netbuilder.parallel.simulation.links import Link
from netbuilder.parallel.simulation.planning import choose_buckets
from netbuilder.parallel.simulation.simulate import Exchange
from netbuilder.parallel.simulation.step_times import StepTimes
from netbuilder.parallel.simulation.sweep import sweep_rounds
from netbuilder.passes.processes import AUTO
from netbuilder.passes.rebucket import rebucket_pass
from netbuilder.proto import PROTO_CPU, NetError
from netbuilder.proto.arguments import make_device_option
from netbuilder.proto.cores import core_count
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute.net import RuntimeNet
from netbuilder.runtime.plan.options import NET_OPTIONS
from netbuilder.runtime.profile.call import CallProfile
from netbuilder.runtime.profile.profiling import profile_of
from netbuilder.runtime.profile.record import Profile
from netbuilder.runtime.profile.timing import Recorder

__all__ = ["WARM_UP", "add_bucket_size", "check_auto", "run_first_steps"]

WARM_UP, RECORDED = 3, 3
"""Steps before those that are timed, and those."""

_SIZES = tuple(1 << bits for bits in (10, 15, 18, 20, 22))  # bytes of the sums that measure the link
_ROUNDS, _CALLS = 5, 3  # of each: 20 ms and 100 Mbit/s take some five seconds

_log = logging.getLogger("netbuilder")
_courses: WeakKeyDictionary[Net, _Course] = WeakKeyDictionary()


def check_auto(options: DataParallelOptions, strategy: Strategy, *, on_cpu: bool) -> None:
    """Raise NetError if the size of buckets cannot be chosen by measuring."""
    if options.bucket_bytes != AUTO:
        return
    reason = ""
    if not on_cpu:
        reason = "gradients of GPUs are not exchanged by operators that can be timed one by one"
    elif not strategy.sums_gradients or strategy.blocks or strategy.has_owners:
        reason = f"strategy={str(strategy)!r} does not exchange gradients in buckets that can be changed"
    elif options.accumulate_steps > 1:
        reason = "with accumulate_steps gradients are exchanged after the last micro-batch, where no size hides more"
    if reason:
        raise NetError(f"bucket_bytes={AUTO!r}: {reason}; give a number of bytes")
    Exchange(strategy=strategy)


def add_bucket_size(model: ModelHelper) -> str:
    """Let the init net fill the blob with the size of buckets, 0 until it is chosen; return its name.

    One process has it too, so that the checkpoints of any number of processes have the same blobs.
    """
    name = f"{model.net.Name()}_bucket_bytes"
    place = make_device_option(PROTO_CPU, 0)
    model.param_init_net.ConstantFill([], name, shape=[1], value=0, dtype="int64", device_option=place)
    return name


@dataclass
class _Course:
    """The first steps of a net in this process."""

    net: RuntimeNet
    recorder: Recorder
    ran: int = 0


def run_first_steps(model: ModelHelper, record: Replicas, count: int, workspace: Workspace) -> int:
    """Run as many of the next steps as are needed to choose the size of buckets; return how many that were.

    Where the size is known, by a checkpoint for example, the net gets it at once. All processes call it.
    """
    net = workspace.net(model.net.Name())
    if chosen := int(workspace.fetch(record.bucket_size)[0]):
        if chosen != record.bucket_bytes:
            _set_buckets(model, record, net, chosen, workspace)
        return 0
    course = _courses.get(model.net)
    if course is None or course.net is not net:
        course = _courses[model.net] = _Course(net, Recorder(net))
    steps = min(count, WARM_UP + RECORDED - course.ran)
    for _ in range(steps):
        if course.ran < WARM_UP:
            net.run()
        else:
            course.recorder.run()
        course.ran += 1
    if course.ran == WARM_UP + RECORDED:
        del _courses[model.net]
        size = _best_size(model, record, course, workspace)
        workspace.feed(record.bucket_size, np.array([size], np.int64))
        made_equal(record, [record.bucket_size], workspace)
        if size != record.bucket_bytes:
            _set_buckets(model, record, net, size, workspace)
    return steps


def _set_buckets(model: ModelHelper, record: Replicas, net: RuntimeNet, size: int, workspace: Workspace) -> None:
    """Divide the gradients of the main net into buckets of another size, and create it anew."""
    sizes = gradient_bytes(model, record)
    made = rebucket_pass(model.net, worlds=record.world.common, sizes=sizes, bucket_bytes=size).net
    dataclasses.replace(record, bucket_bytes=size).store(made)
    model.net.replace_message(made)
    options = {name: getattr(net.options, name) for name in NET_OPTIONS}
    shared = model.net.shares_counters
    workspace.create_net(model.net, overwrite=True, clock=net.clock, shares_counter=shared, **options)


def _best_size(model: ModelHelper, record: Replicas, course: _Course, workspace: Workspace) -> int:
    """Return the size with the shortest step, as rank 0 predicts it: the same in all processes."""
    world = np.asarray(workspace.fetch(record.world.common[0])).item()
    assert isinstance(world, CommonWorld)
    group = ProcessGroup.over(world)
    call = world.call("the sweep that measures the link", "")
    rounds = world.run(
        call, lambda communicator, _: sweep_rounds(communicator, _SIZES, repeats=_ROUNDS, most_calls=_CALLS)
    )
    on_host = group.gather(platform.node()).count(platform.node())
    cores = min(core_count(), max(1, (os.cpu_count() or 1) // on_host))
    size = record.bucket_bytes
    if group.is_first:
        steps = _computing(profile_of(course.net, course.recorder), course.net, gradient_bytes(model, record))
        cluster = Cluster(1, world.size, Link(0, 1), cores=cores, threads=course.net.options.threads)
        exchange = Exchange(bucket_bytes=size, strategy=Strategy.of(record.strategy), header_bytes=HEADER_BYTES)
        choice = choose_buckets(steps, rounds, cluster, exchange)
        size = max(1, choice.nbytes)
        _log.info(
            "net %r: buckets of %d bytes; predicted is a step of %.4g ms, and %.4g ms with %d bytes, %.4g ms without "
            "any exchange, over a link of %s; bucket_bytes=%d repeats this%s",
            course.net.name, size, 1e3 * choice.step, 1e3 * choice.present, exchange.bucket_bytes,
            1e3 * min(times.seconds for times in steps), choice.link, size,
            "" if choice.refused is None else f" (not all measurements agree that {choice.refused} bytes are faster)",
        )  # fmt: skip
    return group.broadcast(size)


def _computing(profile: Profile, net: RuntimeNet, gradients: Mapping[str, int]) -> list[StepTimes]:
    """Return the times of each recorded step without its collectives, whose lanes compute one replica after another."""
    exchanges = {each.op_def.type for each in net.program if each.op.exchanges is Exchanges.BETWEEN_PROCESSES}
    calls = [call for call in profile.calls if call.kind not in exchanges]
    found = []
    for run, _, _ in profile.runs:
        timed = tuple(dataclasses.replace(call, seconds=_seconds_in(run, call)) for call in calls)
        seconds = sum(call.seconds for call in timed) / net.options.lanes
        found.append(StepTimes.of(dataclasses.replace(profile, calls=timed, plain_seconds=seconds), gradients))
    return found


def _seconds_in(run: int, call: CallProfile) -> float:
    return sum(ended - began for number, began, ended in call.spans if number == run) / 1e9
