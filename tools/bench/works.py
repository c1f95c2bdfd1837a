"""What netbuilder-benchmark can measure, in one table: what is compared with what, and how its lines are made."""

from __future__ import annotations

import dataclasses
import functools
import os
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from netbuilder.engines.engine import find_engine
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.whole_file import write_text
from netbuilder.tools.bench.build import build_time
from netbuilder.tools.bench.busy import busy_rate
from netbuilder.tools.bench.check import check
from netbuilder.tools.bench.exchange import Exchanges, exchange_lines, predicted_lines
from netbuilder.tools.bench.gpu import GpuRun, gpu_lines, gpu_page, gpu_table, require_gpu
from netbuilder.tools.bench.gpu_bytes import GPU_NETS, gpu_bytes
from netbuilder.tools.bench.growth import Sweeps, growth
from netbuilder.tools.bench.input import Inputs, input_rates
from netbuilder.tools.bench.memory import Ours, Point, depths_and_batches, memory_lines, sides_of
from netbuilder.tools.bench.ours import Training
from netbuilder.tools.bench.pairs import Worker, compare
from netbuilder.tools.bench.predict import BATCHES, SHARED, Model, Predictors, failure, model_files, predict, summary
from netbuilder.tools.bench.processes import (
    caffe2_worker,
    gpu_peer_python,
    gpu_worker,
    modes_of,
    our_worker,
    peer_python,
    prediction_pythons,
    torch_worker,
)
from netbuilder.tools.bench.report import Line, compared, of_all, with_equality
from netbuilder.tools.bench.sparse import Sums, sparse_sums
from netbuilder.tools.bench.strategies import Trainings, strategy_lines
from netbuilder.tools.bench.tables import Tables, table_lines
from netbuilder.tools.bench.work import MODELS, TASKS, Task, Work

if TYPE_CHECKING:
    from netbuilder.tools.bench.options import Options

__all__ = ["DTYPES", "WORKS", "works_help"]

DTYPES = find_engine("ONEDNN").precisions
_GROWTH_BATCH = 16
_TASKS = {**TASKS, **MODELS}
_STEPS = "a training step, compared with PyTorch"
_MODELS = "a step, and its memory, of nets of torchvision, timm, transformers"


@dataclass(frozen=True)
class Entry:
    """A work of the table.

    Args:
        group: of works, under whose title the help lists it.
        about: what is compared; "": the group says it.
        lines: measures it, and yields its lines.
    """

    group: str
    about: str
    lines: Callable[[Options], Iterator[Line]]


# Works whose sides run alternately.


@dataclass(frozen=True)
class _Side:
    """A process that takes turns with others.

    Args:
        name: in the line, with ``{version}`` and ``{mode}`` as the process says.
        start: starts it.
    """

    name: str
    start: Callable[[], Worker]


def _alternately(
    group: str, about: str, sides: Callable[[Task, Options, ExitStack], Sequence[_Side]], *tasks: str
) -> Entry:
    """Return an entry with a line for each task.

    Args:
        group, about: of the entry.
        sides: returns what takes turns, the one that is judged first; what it enters is left at the end.
        tasks: names of training steps.
    """

    def lines(options: Options) -> Iterator[Line]:
        for task in (_with_options(_TASKS[name], options) for name in tasks):
            with ExitStack() as stack:
                chosen = sides(task, options, stack)
                workers = [stack.enter_context(side.start()) for side in reversed(chosen)][::-1]
                names = [side.name.format(**worker.info) for side, worker in zip(chosen, workers)]
                for worker in workers:
                    worker.run(1, forget=True)
                result = compare(*workers, pairs=options.pairs, steps=task.steps)
                line = compared(task, names, result, [worker.loss for worker in workers])
                if task.work.net in MODELS:
                    firsts = [worker.info["first_loss"] for worker in workers]
                    line = with_equality(line, firsts, [w.peak - w.info["start"] for w in workers])
                yield line

    return Entry(group, about, lines)


def _ours(name: str, task: Task, way: str = "", **changes: Any) -> _Side:
    work = dataclasses.replace(task.work, **changes)
    return _Side(name, lambda: our_worker(work, warmup=task.warmup, way=way))


def _against_torch(task: Task, options: Options, stack: ExitStack) -> list[_Side]:
    if options.caffe2_python and task.work.dtype != "float32":
        raise ArgumentError(f"--caffe2-python: Caffe2 runs in float32 only, got --dtype {task.work.dtype}")
    python = _torch(options, task.work.net)
    if task.work.net in MODELS:
        start = Path(stack.enter_context(TemporaryDirectory())) / "start.npz"
        task = dataclasses.replace(task, work=dataclasses.replace(task.work, start=str(start)))

    def torch(mode: str) -> Worker:
        return torch_worker(dataclasses.replace(task.work, mode=mode), python, warmup=task.warmup)

    def caffe2() -> Worker:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        Training(task.work).write_nets(folder)
        return caffe2_worker(folder, str(options.caffe2_python), task.work.threads, warmup=task.warmup)

    return [
        _ours("netbuilder", task),
        *(_Side("torch {version} {mode}", functools.partial(torch, mode)) for mode in _modes(options)),
        *([_Side("Caffe2 {version}", caffe2)] if options.caffe2_python else []),
    ]


def _devices(task: Task, options: Options, stack: ExitStack) -> list[_Side]:
    threads = _at_least_two(task, "devices")
    return [_ours(f"2 devices x {threads // 2}", task, devices=2), _ours(f"1 device x {threads}", task)]


def _combine_bn(task: Task, options: Options, stack: ExitStack) -> list[_Side]:
    _at_least_two(task, "combine-bn")
    return [_ours("2 devices, combined", task, devices=2, combine_bn=True), _ours("2 devices", task, devices=2)]


def _wrapper(task: Task, options: Options, stack: ExitStack) -> list[_Side]:
    """Return steps with their feed, on two CPU devices."""
    return [
        _ours("DataParallel", task, way="wrapper", devices=2),
        _ours("RunNet with prefetch", task, way="prefetch", devices=2),
    ]


def _at_least_two(task: Task, name: str) -> int:
    if task.work.threads < 2:
        raise ArgumentError(f"{name}: two devices need at least two threads, got {task.work.threads}; see --threads")
    return task.work.threads


def _step(name: str, about: str = "", group: str = _STEPS) -> Entry:
    """Return the entry of a training step; with ``--check`` it is compared with PyTorch's instead of timed."""
    timed = _alternately(group, about, _against_torch, name)
    return dataclasses.replace(
        timed, lines=lambda options: _check(name, options) if options.check else timed.lines(options)
    )


def _train_models(options: Options) -> Iterator[Line]:
    ratios: dict[str, float] = {}
    memory: dict[str, float] = {}
    for name in MODELS:
        try:
            for line in WORKS[name].lines(options):
                if "ratio" in line.record:
                    ratios[name], memory[name] = line.record["ratio"], line.record["memory_ratio"]
                yield line
        except RuntimeError as error:
            yield Line(f"{name}: {error}", {"kind": "pairs", "net": name, "error": str(error)}, False)
    if ratios:
        yield of_all(ratios, memory)


def _check(task: str, options: Options) -> Iterator[Line]:
    for mode in _modes(options):
        found = check(task, _torch(options, task), threads=options.threads, mode=mode)
        losses = "; ".join(f"{a:.7g} and {b:.7g}" for a, b in zip(found.ours, found.theirs))
        text = (
            f"{task}: {'the same work' if found.holds else 'NOT the same work'} as torch {mode}: losses {losses} (at "
            f"most {found.loss:.1e} apart); changes of parameters at most {found.worst_change:.1e} of their norm apart "
            f"({found.worst})"
        )
        yield Line(text, {"kind": "check", "task": task, "mode": mode, **dataclasses.asdict(found)}, found.holds)


def _with_options(task: Task, options: Options) -> Task:
    work = dataclasses.replace(task.work, threads=options.threads, dtype=options.dtype or DTYPES[0])
    if options.batch:
        work = dataclasses.replace(work, batch=options.batch)
    return dataclasses.replace(task, work=work, steps=options.steps or task.steps)


def _torch(options: Options, net: str = "") -> str:
    """Return an interpreter that has PyTorch, and what it needs for a net."""
    return options.peer_python or peer_python("models" if net in MODELS else "torch")


def _modes(options: Options) -> Sequence[str]:
    return modes_of(options.mode, os.environ)


# Works with measurements of their own.


def _gpu(options: Options) -> Iterator[Line]:
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


def _gpu_bytes(options: Options) -> Iterator[Line]:
    python = options.peer_python or peer_python("models")
    return gpu_bytes(list(GPU_NETS), options.batch or 256, options.dtype or "bfloat16", python)


def _memory(options: Options, *, test: bool = False) -> Iterator[Line]:
    types = [options.dtype] if options.dtype or test else DTYPES
    works = [_memory_work(net, options, dtype or DTYPES[0], None) for net in options.nets for dtype in types]
    works = [dataclasses.replace(work, test=test) for work in works]
    what, ours = ", test mode" if test else "", Ours(options.observable, options.budget)
    points = (
        Point(f"{work.net}, {work.dtype}, batch {work.batch}{what}", sides_of(work, ours, options.peers))
        for work in works
    )
    return _memory_lines(points, options)


def _memory_growth(options: Options) -> Iterator[Line]:
    if len(options.nets) > 1:
        raise ArgumentError(f"--nets: memory-growth takes one net, got {', '.join(options.nets)}")
    work = _memory_work(options.nets[0], options, options.dtype or DTYPES[0], _GROWTH_BATCH)
    points = depths_and_batches(
        work, Ours(options.observable, options.budget), options.peers,
        batches=options.batches if "batch" in options.sweep else (),
        depths=options.depths if "depth" in options.sweep else (),
    )  # fmt: skip
    return _memory_lines(points, options)


def _memory_lines(points: Iterator[Point], options: Options) -> Iterator[Line]:
    python = _torch(options) if options.peers else ""
    return memory_lines(points, python, warmup=2, steps=options.steps or 3)


def _memory_work(net: str, options: Options, dtype: str, batch: int | None) -> Work:
    work = TASKS[net].work if net in TASKS else TASKS["resnet50"].work
    size = options.image_size if options.image_size and not work.reads_words else work.size
    return dataclasses.replace(
        work, net=net, threads=options.threads, dtype=dtype, batch=options.batch or batch or work.batch, size=size
    )


def _predict(options: Options) -> Iterator[Line]:
    pythons = prediction_pythons(options.peer_python)
    works = [Predictors(batch, options.threads) for batch in ([options.batch] if options.batch else BATCHES)]
    if options.callers:
        if SHARED not in pythons:
            raise ArgumentError(f"--callers needs {SHARED}, whose sessions several threads can share")
        pythons = {SHARED: pythons[SHARED]}
        works = [
            Predictors(options.batch or 1, options.threads, _layers(net), callers=callers)
            for net in options.nets
            for callers in options.callers
        ]
    for work in works:
        found = predict(work, pythons, pairs=options.pairs, steps=options.steps)
        yield Line(found.text, found.record, found.good)


def _models(options: Options) -> Iterator[Line]:
    files, pythons, found = model_files(options.models), prediction_pythons(options.peer_python), []
    for model in (Model(file, options.batch or 1, options.threads) for file in files):
        try:
            found.append(predict(model, pythons, pairs=options.pairs, steps=options.steps))
        except RuntimeError as error:
            yield failure(model, error)
        else:
            yield Line(found[-1].text, found[-1].record, found[-1].good)
    if len(found) > 1:
        yield summary(found)


def _layers(net: str) -> int:
    """Return the layers of a net that ``predict`` exports; 0: the small one."""
    layers = Work(net, 1).layers
    if not layers and net != "mlp":
        raise ArgumentError(f"--nets: predict takes mlp and residual nets, such as resnet18, got {net!r}")
    return layers


def _sparse(options: Options) -> Iterator[Line]:
    python = _torch(options)
    for backward in (False, True):
        work = Sums(options.threads, backward=backward)
        found = sparse_sums(work, python, pairs=options.pairs, steps=options.steps or 20)
        yield Line(found.text, found.record, found.good)


def _exchanges(options: Options, *processes: int) -> Exchanges:
    task = _with_options(TASKS["resnet50"], options)
    task = dataclasses.replace(task, work=dataclasses.replace(task.work, bucket=options.bucket))
    return Exchanges(task, options.processes or processes, options.pairs, task.steps)


def _tables(options: Options) -> Iterator[Line]:
    steps, batch = options.steps or Tables.steps, options.batch or Tables.batch
    for number in options.processes or [Tables.processes]:
        yield from table_lines(Tables(number, batch=batch, steps=steps))


def _strategies(options: Options) -> Iterator[Line]:
    texts: list[str] = []
    for part in options.strategies:  # commas are also between the fields of a strategy, all but the first with names
        if "=" in part and ":" not in part and texts:
            texts[-1] += f",{part}"
        else:
            texts.append(part)
    for number in options.processes or [Trainings.processes]:
        batch = options.batch or Trainings.batch
        yield from strategy_lines(Trainings(texts, number, options.data, options.epochs, batch))


def _growth(options: Options) -> Iterator[Line]:
    work = Work("resnet18", options.batch or _GROWTH_BATCH, options.threads, dtype=options.dtype or DTYPES[0])
    sweeps = Sweeps(work, options.batches, options.depths, options.widths, options.devices or [1, 2])
    return growth(sweeps, options.sweep, warmup=2, steps=options.steps or 5)


def _build(options: Options) -> Iterator[Line]:
    build_time(1)  # imports and first-time set-up do not count
    for number in options.devices or [1, 4, 16, 64]:
        done = build_time(number)
        text = (
            f"Parallelize of ResNet-50 over {done.devices} devices: {done.operators} operators in "
            f"{done.seconds:.2f} s, {done.per_operator:.1f} us per operator"
        )
        yield Line(text, {"kind": "build", **dataclasses.asdict(done)})


_OTHERS = "other comparisons"
_MEMORY = "memory, in a fresh process for each figure, with time"
_OWN = "only netbuilder"

WORKS: dict[str, Entry] = {
    "mlp": _step("mlp"),
    "resnet18": _step("resnet18"),
    "resnet50": _step("resnet50"),
    "inception_v1": _step("inception_v1"),
    "vgg16": _step("vgg16"),
    "alexnet": _step("alexnet", "two towers, with local response normalization"),
    "alexnet_one_tower": _step("alexnet_one_tower", "the same net in one tower"),
    "lstm": _step("lstm", "a language model over 35 words of a vocabulary of 10,000"),
    "attention": _step("attention", "a recurrent cell with attention over 20 words"),
    **{name: _step(name, group=_MODELS) for name in MODELS},
    "train-models": Entry(_MODELS, "all of these", _train_models),
    "predict": Entry(
        _OTHERS,
        "an exported ResNet-50, batch 1 and 32, with onnxruntime and OpenVINO; with --callers one predictor, called by "
        "several threads, with a session of onnxruntime",
        _predict,
    ),
    "models": Entry(
        _OTHERS, "ONNX models (--models), batch 1 unless --batch is given, with onnxruntime and OpenVINO", _models
    ),
    "sparse": Entry(_OTHERS, "SparseLengthsSum and its gradient, with embedding_bag", _sparse),
    "exchange": Entry(
        _OTHERS,
        "the gradients of ResNet-50 between processes, with mpi4py; its step in two processes, with one process and "
        "with PyTorch's DistributedDataParallel",
        lambda options: exchange_lines(_exchanges(options, 2, 4), _torch(options), _modes(options)),
    ),
    "input": Entry(
        _OTHERS,
        "image input, with the libraries it uses in a bare loop",
        lambda options: input_rates(Inputs(batch=options.batch or 64, pairs=options.pairs)),
    ),
    "gpu": Entry(
        _OTHERS,
        "GPUs: ResNet-50 in bfloat16 and TF32, LSTM and MLP, with PyTorch eager, compiled, and compiled with CUDA "
        "graphs; memory, input, operators; two GPUs if there are",
        _gpu,
    ),
    "gpu-bytes": Entry(
        _OTHERS,
        "bytes that a step reads and writes on an H100, by the plan and by PyTorch's compiled graphs, without a GPU",
        _gpu_bytes,
    ),
    "memory": Entry(_MEMORY, "a training step, with PyTorch eager and compiled", _memory),
    "memory-growth": Entry(_MEMORY, "the same by batch and by depth of a ResNet", _memory_growth),
    "memory-predict": Entry(_MEMORY, "a net in test mode, with PyTorch", lambda options: _memory(options, test=True)),
    "devices": _alternately(
        _OWN, "two CPU devices, and one with the same threads and batch", _devices, "resnet18", "resnet50"
    ),
    "wrapper": _alternately(
        _OWN,
        "the mlp on two CPU devices, fed in each step: by DataParallel, and by RunNet with prefetch",
        _wrapper,
        "mlp",
    ),
    "combine-bn": _alternately(
        _OWN, "two CPU devices, with batch normalization over both, and without", _combine_bn, "resnet50"
    ),
    "exchange-predicted": Entry(
        _OWN,
        "a step of ResNet-50 in 1, 2 and 4 processes, predicted and measured",
        lambda options: predicted_lines(_exchanges(options, 1, 2, 4)),
    ),
    "strategies": Entry(_OWN, "accuracy and bytes with each strategy of the exchange between processes", _strategies),
    "tables": Entry(
        _OWN, "tables whose rows are divided over processes, whole ones in each process, and one process", _tables
    ),
    "growth": Entry(_OWN, "time per image by batch, depth, width and devices", _growth),
    "build": Entry(_OWN, "time that Parallelize takes for each operator", _build),
    "busy": Entry(
        _OWN,
        "the mlp alone, and with a busy loop on each other core",
        lambda options: iter([busy_rate(_with_options(TASKS["mlp"], options), pairs=options.pairs)]),
    ),
}
"""Name -> work; the order is that of the help."""


def works_help() -> str:
    """Return a list of the works for the help of the command."""
    lines = ["tasks:"]
    for group in dict.fromkeys(entry.group for entry in WORKS.values()):
        members = {name: entry.about for name, entry in WORKS.items() if entry.group == group}
        lines.append(f"  {group}:")
        if plain := [name for name, about in members.items() if not about]:
            lines += textwrap.wrap(", ".join(plain), 76, initial_indent=" " * 4, subsequent_indent=" " * 4)
        for name, about in members.items():
            first, *others = textwrap.wrap(about, 56) or [""]
            lines += [f"    {name:<19} {first}", *(" " * 24 + line for line in others)] if about else []
    return "\n".join(lines) + "\n"
