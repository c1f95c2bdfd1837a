"""Benchmarks against other libraries, on the same machine in the same run: ``netbuilder-benchmark TASK...``."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from netbuilder.engines.onednn.engine import OneDnnEngine
from netbuilder.proto import ArgumentError
from netbuilder.proto.whole_file import write_text
from netbuilder.runtime.plan.optimizations import VARIABLE
from netbuilder.runtime.plan.options import default_threads
from netbuilder.tools.bench.build import build_time
from netbuilder.tools.bench.busy import busy_rate
from netbuilder.tools.bench.check import check
from netbuilder.tools.bench.exchange import Exchanges, exchange_lines, predicted_lines
from netbuilder.tools.bench.gpu import LIMIT, PEER_MODES, GpuRun, gpu_lines, gpu_page, gpu_table, require_gpu
from netbuilder.tools.bench.growth import SWEEPS, Sweeps, growth
from netbuilder.tools.bench.input import Inputs, input_rates
from netbuilder.tools.bench.machine import busy_share, describe_machine
from netbuilder.tools.bench.memory import DEFAULT, PEERS, Ours, Point, depths_and_batches, memory_lines, sides_of
from netbuilder.tools.bench.ours import Training
from netbuilder.tools.bench.pairs import compare
from netbuilder.tools.bench.predict import BATCHES, SHARED, Predictors, predict
from netbuilder.tools.bench.processes import (
    BEST,
    caffe2_worker,
    gpu_peer_python,
    gpu_worker,
    modes_of,
    our_worker,
    peer_python,
    prediction_pythons,
    torch_worker,
)
from netbuilder.tools.bench.report import Line, compared, write_records
from netbuilder.tools.bench.sparse import Sums, sparse_sums
from netbuilder.tools.bench.strategies import DEFAULT_STRATEGIES, Trainings, strategy_lines
from netbuilder.tools.bench.work import TASKS, Task, Work
from netbuilder.tools.common_options import OBSERVABLE, check_outputs, count, size, without_option
from netbuilder.tools.options import OptionsParser, argument, option, switch
from netbuilder.tools.parser import Help
from netbuilder.tools.reporting import reporting

__all__ = ["main"]

_IDLE = 0.05  # share of the cores that other work may use before results are doubtful
_DTYPES = OneDnnEngine.precisions
_DEVICE_TASKS = ("resnet18", "resnet50")
_LAYERS = (18, 34, 50, 101, 152)  # of the residual nets that the peer has
_GROWTH_BATCH = 16
_OTHER_TASKS = (
    "predict", "sparse", "devices", "exchange", "exchange-predicted", "combine-bn", "growth", "build", "busy", "input",
    "gpu", "strategies", "wrapper",
)  # fmt: skip
_MEMORY_TASKS = ("memory", "memory-growth", "memory-predict")
_MEMORY_NETS = [name for name in TASKS if name != "attention"]

_TASKS_HELP = """tasks:
  a training step, compared with PyTorch:
    mlp, resnet18, resnet50, inception_v1, vgg16
    alexnet             two towers, with local response normalization
    alexnet_one_tower   the same net in one tower
    lstm                a language model over 35 words of a vocabulary of 10,000
    attention           a recurrent cell with attention over 20 words
  other comparisons:
    predict             an exported ResNet-50, batch 1 and 32, with onnxruntime
                        and OpenVINO; with --callers one predictor, called by
                        several threads, with a session of onnxruntime
    sparse              SparseLengthsSum and its gradient, with embedding_bag
    exchange            the gradients of ResNet-50 between processes, with
                        mpi4py; its step in two processes, with one process and
                        with PyTorch's DistributedDataParallel
    input               image input, with the libraries it uses in a bare loop
    gpu                 GPUs: ResNet-50 in bfloat16 and TF32, LSTM and MLP, with
                        PyTorch eager, compiled, and compiled with CUDA graphs;
                        memory, input, operators; two GPUs if there are
  memory, in a fresh process for each figure, with time:
    memory              a training step, with PyTorch eager and compiled
    memory-growth       the same by batch and by depth of a ResNet
    memory-predict      a net in test mode, with PyTorch
  only netbuilder:
    devices             two CPU devices, and one with the same threads and batch
    wrapper             the mlp on two CPU devices, fed in each step: by
                        DataParallel, and by RunNet with prefetch
    combine-bn          two CPU devices, with batch normalization over both, and
                        without
    exchange-predicted  its step in 1, 2 and 4 processes, predicted and measured
    strategies          accuracy and bytes with each strategy of the exchange
                        between processes
    growth              time per image by batch, depth, width and devices
    build               time that Parallelize takes for each operator
    busy                the mlp alone, and with a busy loop on each other core
"""


class _Help(Help, argparse.RawDescriptionHelpFormatter):
    """Leaves the list of tasks as it is."""


def _net(text: str) -> str:
    """Return the name of a net, for ``type=`` of an option."""
    if text not in _MEMORY_NETS and Work(text, 1).layers not in _LAYERS:
        raise argparse.ArgumentTypeError(
            f"must be one of {', '.join(_MEMORY_NETS)}, or resnet with {', '.join(map(str, _LAYERS))} layers, "
            f"got {text!r}"
        )
    return text


def _budget(text: str) -> float | str:
    """Return a memory budget, for ``type=`` of an option: a share, or a size as text."""
    try:
        share = float(text)
    except ValueError:
        return text  # the net checks sizes
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError(f"a share must be between 0 and 1, such as 0.65, got {text!r}")
    return share


@dataclass(frozen=True, kw_only=True)
class _Options:
    """The options of netbuilder-benchmark."""

    task: tuple[str, ...] = argument(
        "one of the tasks listed below", nargs="+", choices=[*TASKS, *_OTHER_TASKS, *_MEMORY_TASKS], metavar="TASK"
    )
    mode: str = option(
        f"how PyTorch runs (default: {BEST}: eager, channels last, and compiled, each measured)",
        default=BEST,
        choices=["eager", "compile", BEST],
    )
    dtype: str | None = option(
        "type of activations on both sides (default: float32; for memory, each of them)", choices=_DTYPES
    )
    threads: int = option("threads on each side", type=count, factory=default_threads, metavar="N")
    batch: int | None = option(
        "samples in each step (default: that of the task; 16 for growth, 32 for memory)", type=count, metavar="N"
    )
    pairs: int = option("how often each side is timed, alternately", type=count, default=5)
    steps: int | None = option(
        "steps in each timing; for growth, for each point (default: 5); for memory 3", type=count, metavar="N"
    )
    peer_python: str | None = option(
        "a Python interpreter that has the peer (default: the peer is installed)", metavar="FILE"
    )
    caffe2_python: str | None = option(
        "a Python interpreter that has Caffe2, such as one with torch 1.10: Caffe2 runs the net that netbuilder "
        "has built, as a further peer of training steps in float32",
        metavar="FILE",
    )
    check: bool = switch("compare losses and updates of both sides, in float32, instead of times")
    without: frozenset[str] = without_option()
    json: str | None = option("also write all results as JSON", metavar="FILE")
    sweep: tuple[str, ...] = option(
        f"what growth varies (default: all): {', '.join(SWEEPS)}; for memory-growth batch and depth",
        default=tuple(SWEEPS),
        choices=SWEEPS,
        metavar="NAME,NAME",
        group="growth and build",
    )
    batches: tuple[int, ...] = option("for growth: samples in each step", type=count, default=(1, 2, 4, 8, 16, 32, 64))
    depths: tuple[int, ...] = option("for growth: layers of the ResNet", type=count, default=_LAYERS)
    widths: tuple[int, ...] = option("for growth: channels of its first stage", type=count, default=(32, 64, 128))
    devices: tuple[int, ...] | None = option(
        "numbers of devices (default: 1,2 for growth, 1,4,16,64 for build)", type=count, metavar="N,N"
    )
    processes: tuple[int, ...] | None = option(
        "numbers of processes (default: 2,4 for exchange, 1,2,4 for exchange-predicted)",
        type=count,
        group="exchange",
    )
    bucket: int = option("size of buckets (default: 4MiB)", type=size, default=Work.bucket, metavar="SIZE")
    strategies: tuple[str, ...] = option(
        f"what processes exchange (default: {','.join(DEFAULT_STRATEGIES)})",
        default=tuple(DEFAULT_STRATEGIES),
        metavar="TEXT,TEXT",
        group="strategies",
    )
    data: str = option(
        "a folder with IDX files such as MNIST's (default: the digits that come with netbuilder)",
        default=Trainings.data,
        metavar="FOLDER",
    )
    epochs: int = option("", type=count, default=Trainings.epochs)
    gpu_peers: tuple[str, ...] = option(
        f"how PyTorch runs: {', '.join(PEER_MODES)}; nothing for netbuilder alone (default: all)",
        default=tuple(PEER_MODES),
        choices=PEER_MODES,
        may_be_empty=True,
        metavar="MODE,MODE",
        group="gpu",
    )
    report: str | None = option(
        "also write a page in Markdown, which has the results so far after each line", metavar="FILE"
    )
    limit: int = option(
        f"time after which what still runs is ended, and the rest is left out (default: {LIMIT})",
        type=count,
        default=LIMIT,
        metavar="SECONDS",
    )
    tiny: bool = switch(argparse.SUPPRESS)
    callers: tuple[int, ...] | None = option(
        "how many threads call one predictor at the same time, each measured by itself; --nets says which nets "
        "(here mlp is a small one, 64-128-128-10), and the batch is 1 unless --batch is given",
        type=count,
        group="predict",
    )
    nets: tuple[str, ...] = option(
        "what is trained, or called by --callers (default: resnet50): "
        f"{', '.join(_MEMORY_NETS)}, or another ResNet, such as resnet152; "
        "memory-growth takes one",
        type=_net,
        default=("resnet50",),
        metavar="NET,NET",
        group="memory",
    )
    image_size: int | None = option("height and width of images (default: 224)", type=count)
    observable: tuple[str, ...] = option(
        f"which values can be fetched after a step, each measured by itself: {DEFAULT} (as the net says), "
        f"{', '.join(OBSERVABLE)} (default: {','.join(Ours.observable)})",
        default=tuple(Ours.observable),
        choices=[DEFAULT, *OBSERVABLE],
        metavar="KIND,KIND",
    )
    budget: tuple[float | str, ...] = option(
        "memory budgets of netbuilder, each measured by itself: shares of what the step would take, such as 0.65, "
        "or sizes, such as 2GiB",
        type=_budget,
        default=(),
        metavar="X,X",
    )
    peers: tuple[str, ...] = option(
        "how PyTorch runs, each measured by itself: compile, eager, or checkpoint (eager with "
        "torch.utils.checkpoint); nothing for netbuilder alone (default: compile,eager)",
        default=("compile", "eager"),
        may_be_empty=True,
        choices=PEERS,
        metavar="HOW,HOW",
    )


def _parser() -> OptionsParser[_Options]:
    return OptionsParser(
        _Options,
        prog="netbuilder-benchmark",
        description="Run benchmarks and print one line for each. The peers (PyTorch eager and\n"
        "compiled; onnxruntime and OpenVINO) run alternately with netbuilder, on the\n"
        "same machine with as many threads, and ratios are to the fastest of them.",
        epilog=_TASKS_HELP,
        formatter_class=_Help,
    )


@reporting("netbuilder-benchmark", ValueError, RuntimeError, status=2)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run benchmarks and print a line for each.

    Returns:
        The exit status: 0; 1 if a check failed or a result is invalid; 2 if something is missing or failed.
    """
    options = _parser().parse(arguments)
    check_outputs(options, "json", "report")
    machine, busy = describe_machine(), busy_share()
    print(machine, flush=True)
    if options.without:
        os.environ[VARIABLE] = ",".join(sorted(options.without))  # inherited by our worker processes
        print(f"without {', '.join(sorted(options.without))}", flush=True)
    if busy > _IDLE and not options.check:
        print(
            f"the machine is not idle: other work uses {busy:.0%} of its cores, so results are doubtful",
            file=sys.stderr,
        )
    lines: list[Line] = []
    for task in options.task:
        for line in _lines(task, options):
            print(line.text, flush=True)
            lines.append(line)
            if options.json:
                write_records(options.json, machine, busy, lines)
    return 0 if all(line.good for line in lines) else 1


def _lines(task: str, options: _Options) -> Iterator[Line]:
    if task == "build":
        yield from _build(options.devices or [1, 4, 16, 64])
    elif task in _MEMORY_TASKS:
        yield from _memory(task, options)
    elif task == "input":
        yield from input_rates(Inputs(batch=options.batch or 64, pairs=options.pairs))
    elif task == "gpu":
        yield from _gpu(options)
    elif task == "growth":
        work = Work("resnet18", options.batch or _GROWTH_BATCH, options.threads, dtype=_dtype(options))
        sweeps = Sweeps(work, options.batches, options.depths, options.widths, options.devices or [1, 2])
        yield from growth(sweeps, options.sweep, warmup=2, steps=options.steps or 5)
    elif task == "predict":
        yield from _predict(options)
    elif task == "sparse":
        yield from _sparse(options)
    elif task == "exchange":
        python = options.peer_python or peer_python("torch")
        yield from exchange_lines(_exchanges(options, [2, 4]), python, modes_of(options.mode, os.environ))
    elif task == "exchange-predicted":
        yield from predicted_lines(_exchanges(options, [1, 2, 4]))
    elif task == "strategies":
        for number in options.processes or [Trainings.processes]:
            batch = options.batch or Trainings.batch
            yield from strategy_lines(Trainings(options.strategies, number, options.data, options.epochs, batch))
    elif task == "busy":
        yield busy_rate(_with_options(TASKS["mlp"], options), pairs=options.pairs)
    elif task == "combine-bn":
        yield _combine_bn(_with_options(TASKS["resnet50"], options), options)
    elif task == "wrapper":
        yield _wrapper(_with_options(TASKS["mlp"], options), options)
    elif task == "devices":
        for name in _DEVICE_TASKS:
            yield _devices(_with_options(TASKS[name], options), options)
    elif options.check:
        yield from _check(task, options)
    else:
        yield _against_torch(_with_options(TASKS[task], options), options)


def _dtype(options: _Options) -> str:
    return options.dtype or _DTYPES[0]


def _gpu(options: _Options) -> Iterator[Line]:
    began = time.monotonic()
    require_gpu()

    @functools.cache
    def python() -> str:
        return options.peer_python or gpu_peer_python(seconds=run.left)

    run = GpuRun(
        lambda work, warmup: gpu_worker(work, warmup=warmup, limits=run.limits),
        lambda work, warmup: torch_worker(work, python(), warmup=warmup, limits=run.limits),
        options.gpu_peers,
        tiny=options.tiny,
        limit=options.limit,
        began=began,
        prepare_peer=python,
    )
    records = []
    for line in gpu_lines(run, options.batch):
        records.append(line.record)
        if options.report:
            write_text(options.report, gpu_page(records, time.strftime("%Y-%m-%d")))
        yield line
    if not options.report:
        print(f"\n{gpu_table(records)}", flush=True)


def _memory(task: str, options: _Options) -> Iterator[Line]:
    ours = Ours(options.observable, options.budget)
    if task == "memory-growth":
        if len(options.nets) > 1:
            raise ArgumentError(f"--nets: memory-growth takes one net, got {', '.join(options.nets)}")
        work = _memory_work(options.nets[0], options, _dtype(options), _GROWTH_BATCH)
        points = depths_and_batches(
            work, ours, options.peers, batches=options.batches if "batch" in options.sweep else (),
            depths=options.depths if "depth" in options.sweep else (),
        )  # fmt: skip
    else:
        types = [options.dtype] if options.dtype or task == "memory-predict" else _DTYPES
        works = [_memory_work(net, options, dtype or _DTYPES[0], None) for net in options.nets for dtype in types]
        works = [dataclasses.replace(work, test=task == "memory-predict") for work in works]
        what = ", test mode" if task == "memory-predict" else ""
        points = iter(
            Point(f"{work.net}, {work.dtype}, batch {work.batch}{what}", sides_of(work, ours, options.peers))
            for work in works
        )
    python = (options.peer_python or peer_python("torch")) if options.peers else ""
    yield from memory_lines(points, python, warmup=2, steps=options.steps or 3)


def _memory_work(net: str, options: _Options, dtype: str, batch: int | None) -> Work:
    work = TASKS[net].work if net in TASKS else TASKS["resnet50"].work
    size = options.image_size if options.image_size and not work.reads_words else work.size
    return dataclasses.replace(
        work, net=net, threads=options.threads, dtype=dtype, batch=options.batch or batch or work.batch, size=size
    )


def _with_options(task: Task, options: _Options) -> Task:
    work = dataclasses.replace(task.work, threads=options.threads, dtype=_dtype(options))
    if options.batch:
        work = dataclasses.replace(work, batch=options.batch)
    return dataclasses.replace(task, work=work, steps=options.steps or task.steps)


def _against_torch(task: Task, options: _Options) -> Line:
    if options.caffe2_python and task.work.dtype != "float32":
        raise ArgumentError(f"--caffe2-python: Caffe2 runs in float32 only, got --dtype {task.work.dtype}")
    python = options.peer_python or peer_python("torch")
    with ExitStack() as stack:
        peers = [
            stack.enter_context(torch_worker(dataclasses.replace(task.work, mode=mode), python, warmup=task.warmup))
            for mode in modes_of(options.mode, os.environ)
        ]
        names = ["netbuilder", *(f"torch {peer.info['version']} {peer.info['mode']}" for peer in peers)]
        if options.caffe2_python:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            Training(task.work).write_nets(folder)
            caffe2 = caffe2_worker(folder, options.caffe2_python, task.work.threads, warmup=task.warmup)
            peers.append(stack.enter_context(caffe2))
            names.append(f"Caffe2 {caffe2.info['version']}")
        ours = stack.enter_context(our_worker(task.work, warmup=task.warmup))
        result = compare(ours, *peers, pairs=options.pairs, steps=task.steps)
        return compared(task, names, result, [ours.loss, *(peer.loss for peer in peers)])


def _predict(options: _Options) -> Iterator[Line]:
    pythons = prediction_pythons(options.peer_python)
    works = [Predictors(batch, options.threads) for batch in ([options.batch] if options.batch else BATCHES)]
    if options.callers:
        if SHARED not in pythons:
            raise ArgumentError(f"--callers: needs {SHARED}, whose sessions several threads can share")
        pythons = {SHARED: pythons[SHARED]}
        works = [
            Predictors(options.batch or 1, options.threads, _layers(net), callers=callers)
            for net in options.nets
            for callers in options.callers
        ]
    for work in works:
        found = predict(work, pythons, pairs=options.pairs, steps=options.steps)
        yield Line(found.text, found.record, found.good)


def _layers(net: str) -> int:
    """Return the layers of a net that ``predict`` exports; 0: the small one."""
    layers = Work(net, 1).layers
    if not layers and net != "mlp":
        raise ArgumentError(f"--nets: predict takes mlp and residual nets, such as resnet18, got {net!r}")
    return layers


def _sparse(options: _Options) -> Iterator[Line]:
    python = options.peer_python or peer_python("torch")
    for backward in (False, True):
        work = Sums(options.threads, backward=backward)
        found = sparse_sums(work, python, pairs=options.pairs, steps=options.steps or 20)
        yield Line(found.text, found.record, found.good)


def _exchanges(options: _Options, processes: Sequence[int]) -> Exchanges:
    task = _with_options(TASKS["resnet50"], options)
    task = dataclasses.replace(task, work=dataclasses.replace(task.work, bucket=options.bucket))
    return Exchanges(task, options.processes or processes, options.pairs, task.steps)


def _devices(task: Task, options: _Options) -> Line:
    two = _on_two(task, "devices")
    with our_worker(two, warmup=task.warmup) as split, our_worker(task.work, warmup=task.warmup) as whole:
        result = compare(split, whole, pairs=options.pairs, steps=task.steps)
        names = (f"2 devices x {task.work.threads // 2}", f"1 device x {task.work.threads}")
        return compared(task, names, result, [split.loss, whole.loss])


def _wrapper(task: Task, options: _Options) -> Line:
    """Compare steps with their feed, on two CPU devices."""
    work = dataclasses.replace(task.work, devices=2)
    with (
        our_worker(work, warmup=task.warmup, way="wrapper") as wrapper,
        our_worker(work, warmup=task.warmup, way="prefetch") as run_net,
    ):
        result = compare(wrapper, run_net, pairs=options.pairs, steps=task.steps)
        return compared(task, ("DataParallel", "RunNet with prefetch"), result, [wrapper.loss, run_net.loss])


def _combine_bn(task: Task, options: _Options) -> Line:
    plain = _on_two(task, "combine-bn")
    combined = dataclasses.replace(plain, combine_bn=True)
    with our_worker(combined, warmup=task.warmup) as one, our_worker(plain, warmup=task.warmup) as other:
        result = compare(one, other, pairs=options.pairs, steps=task.steps)
        return compared(task, ("2 devices, combined", "2 devices"), result, [one.loss, other.loss])


def _on_two(task: Task, name: str) -> Work:
    """Return the work over two devices."""
    if task.work.threads < 2:
        raise ArgumentError(f"{name}: two devices need at least two threads, got {task.work.threads}; see --threads")
    return dataclasses.replace(task.work, devices=2)


def _check(task: str, options: _Options) -> Iterator[Line]:
    python = options.peer_python or peer_python("torch")
    for mode in modes_of(options.mode, os.environ):
        found = check(task, python, threads=options.threads, mode=mode)
        losses = "; ".join(f"{a:.7g} and {b:.7g}" for a, b in zip(found.ours, found.theirs))
        text = (
            f"{task}: {'the same work' if found.holds else 'NOT the same work'} as torch {mode}: losses {losses} (at "
            f"most {found.loss:.1e} apart); changes of parameters at most {found.worst_change:.1e} of their norm apart "
            f"({found.worst})"
        )
        yield Line(text, {"kind": "check", "task": task, "mode": mode, **dataclasses.asdict(found)}, found.holds)


def _build(devices: Sequence[int]) -> Iterator[Line]:
    build_time(1)  # imports and first-time set-up do not count
    for number in devices:
        done = build_time(number)
        text = (
            f"Parallelize of ResNet-50 over {done.devices} devices: {done.operators} operators in "
            f"{done.seconds:.2f} s, {done.per_operator:.1f} us per operator"
        )
        yield Line(text, {"kind": "build", **dataclasses.asdict(done)})


if __name__ == "__main__":
    sys.exit(main())
