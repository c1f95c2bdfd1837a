"""The options of netbuilder-benchmark."""

from __future__ import annotations

import argparse

from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.plan.options import default_threads
from netbuilder.tools.bench.gpu import LIMIT, PEER_MODES
from netbuilder.tools.bench.growth import SWEEPS
from netbuilder.tools.bench.memory import DEFAULT, PEERS, Ours
from netbuilder.tools.bench.processes import BEST
from netbuilder.tools.bench.strategies import DEFAULT_STRATEGIES, Trainings
from netbuilder.tools.bench.work import TASKS, Work
from netbuilder.tools.bench.works import DTYPES, WORKS
from netbuilder.tools.common_options import OBSERVABLE, count, size, without_option
from netbuilder.tools.options import argument, option, switch

__all__ = ["Options"]

_LAYERS = (18, 34, 50, 101, 152)  # of the residual nets that the peer has
_MEMORY_NETS = [name for name in TASKS if name != "attention"]


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
class Options:
    """Run benchmarks and print one line for each. The peers (PyTorch eager and
    compiled; onnxruntime and OpenVINO) run alternately with netbuilder, on the
    same machine with as many threads, and ratios are to the fastest of them.
    """

    task: tuple[str, ...] = argument("one of the tasks listed below", nargs="+", choices=list(WORKS), metavar="TASK")
    mode: str = option(
        f"how PyTorch runs (default: {BEST}: eager, channels last, and compiled, each measured)",
        default=BEST,
        choices=["eager", "compile", BEST],
    )
    dtype: str | None = option(
        "type of activations on both sides (default: float32; for memory, each of them)", choices=DTYPES
    )
    threads: int = option("threads on each side", type=count, factory=default_threads)
    batch: int | None = option(
        "samples in each step (default: that of the task; 16 for growth, 32 for memory)", type=count
    )
    pairs: int = option("how often each side is timed, alternately", type=count, default=5)
    steps: int | None = option(
        "steps in each timing; for growth, for each point (default: 5); for memory 3", type=count
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
        "numbers of devices (default: 1,2 for growth, 1,4,16,64 for build)", type=count
    )
    processes: tuple[int, ...] | None = option(
        "numbers of processes (default: 2,4 for exchange, 1,2,4 for exchange-predicted)", type=count, group="exchange"
    )
    bucket: int = option(
        f"size of buckets (default: {Work.bucket >> 20}MiB)", type=size, default=Work.bucket, metavar="SIZE"
    )
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
    tiny: bool = switch(argparse.SUPPRESS)  # for tests
    callers: tuple[int, ...] | None = option(
        "how many threads call one predictor at the same time, each measured by itself; --nets says which nets "
        "(here mlp is a small one, 64-128-128-10), and the batch is 1 unless --batch is given",
        type=count,
        group="predict",
    )
    models: tuple[str, ...] = option(
        "ONNX files, or folders of them; the inputs of m.onnx are in m.npz, or random",
        default=(),
        metavar="PATH,PATH",
        group="models",
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
