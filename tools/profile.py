"""Profile a net, compared with the machine's limits: ``netbuilder-profile NET``.

NET is a net in a file, a folder with a predictor, an ONNX model, or the name of a net of the zoo.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from netbuilder.data import read_npz
from netbuilder.engines.described_gpu import known_gpus, read_gpu
from netbuilder.exchange.predictor_files import INIT_FILE, PREDICT_FILE
from netbuilder.graph import DeviceScope
from netbuilder.graph.blob_devices import place_operators
from netbuilder.graph.observability import KINDS
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.precision import PRECISIONS
from netbuilder.proto import PROTO_CUDA, NetError
from netbuilder.proto.arguments import make_device_option
from netbuilder.proto.errors import counted
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.whole_file import write_text
from netbuilder.runtime import NET_TYPES, Workspace
from netbuilder.runtime.profile.planned import planned_report, planned_step
from netbuilder.runtime.profile.profiling import profile
from netbuilder.runtime.profile.table import profile_report
from netbuilder.runtime.profile.trace import chrome_trace
from netbuilder.tools.bench.machine import busy_share, describe_machine, warn_if_busy
from netbuilder.tools.common_options import (
    check_outputs,
    classes_option,
    count,
    cpu_device,
    cpu_option,
    image_size_option,
    input_option,
    trusted_option,
    without_option,
)
from netbuilder.tools.options import OptionsParser, argument, option, switch
from netbuilder.tools.profiling.load import load_net, load_stored_predictor
from netbuilder.tools.profiling.memory_page import memory_page
from netbuilder.tools.profiling.memory_table import memory_report
from netbuilder.tools.profiling.net_memory import net_memory
from netbuilder.tools.profiling.ready import Ready
from netbuilder.tools.profiling.zoo import ZooOptions, load_zoo, zoo_model
from netbuilder.tools.reporting import reporting
from netbuilder.tools.results import write_json
from netbuilder.tools.stored_nets import NET_HELP, is_onnx, is_predictor, read_nets, refuse_init
from netbuilder.tools.terminal import print_report
from netbuilder.tools.training.nets import NETS

__all__ = ["main"]

HERE = "here"
"""The value of ``--gpu`` for the GPUs of this machine."""

ON_GPU = make_device_option(PROTO_CUDA, 0)


@reporting("netbuilder-profile")
def main(arguments: Sequence[str] | None = None) -> int:
    """Profile a net as the command line says, and print tables; return the exit status."""
    parser = OptionsParser(_Options, prog="netbuilder-profile")
    options = parser.parse(arguments)
    if options.memory:
        return _draw_memory(parser, options)
    if options.find_nan:
        return _find_nan(parser, options)
    if options.gpu not in (None, HERE):
        return _plan(parser, options)
    if options.output:
        parser.error("-o/--output is for the page of --memory; use --json or --trace for times")
    if options.exhaustive_search:
        parser.error("--exhaustive-search is for a described GPU: give --gpu with its name or file")
    check_outputs(options, "json", "trace")
    ready = _load(options)
    print(describe_machine())
    warn_if_busy(busy_share())
    found = profile(ready.workspace, ready.name, runs=options.runs, warmup=options.warmup, parameters=ready.parameters)
    print_report(profile_report(found, options.top))
    write_json(options.json, found.to_dict(), indent=None, announced=True)
    if options.trace:
        write_json(options.trace, chrome_trace(found), indent=None, announced=True)
    return 0


def _plan(parser: OptionsParser[_Options], options: _Options) -> int:
    """Plan a net for a described GPU and print tables; return the exit status."""
    for name in ("trace", "output", "memory_budget", "feed"):
        if getattr(options, name):
            parser.error(f"--{name.replace('_', '-')} is for nets that run, and for a described GPU nothing runs")
    if options.numpy or options.cpu or options.devices > 1:
        parser.error("a described GPU is one GPU with all libraries: leave out --numpy, --cpu and --devices")
    check_outputs(options, "json")
    assert options.gpu is not None
    gpu, path = read_gpu(options.gpu), Path(options.net)
    if is_onnx(path):
        raise NetError(
            f"--gpu {options.gpu}: an ONNX model is not planned for a described GPU; write it to a folder by "
            "read_onnx(FILE).save(FOLDER), and give FOLDER/predict_net.pb --init FOLDER/init_net.pb"
        )
    if path.is_dir():
        raise NetError(
            f"--gpu {options.gpu}: a predictor is not planned for a described GPU; give its net as a file: "
            f"{path / PREDICT_FILE} --init {path / INIT_FILE}"
        )
    with DeviceScope(ON_GPU):
        if path.is_file() or (path.suffix and options.net not in NETS):
            net, init = read_nets(path, options.init, trusted=options.trusted)
            place_operators(init, ON_GPU)
            place_operators(net, ON_GPU)
            inputs = dict(options.input)
        else:
            model, inputs = zoo_model(options.net, _zoo(options))
            net, init = model.net.Proto(), model.param_init_net.Proto()
    found = planned_step(
        net, init, inputs, gpu, exhaustive_search=options.exhaustive_search, dtype=options.dtype,
        observable=options.observable, without=options.without or None,
    )  # fmt: skip
    print_report(planned_report(found, options.top))
    write_json(options.json, found.to_dict(), indent=None, announced=True)
    return 0


def _draw_memory(parser: OptionsParser[_Options], options: _Options) -> int:
    """Plan the memory of a net, print tables and write the page; return the exit status."""
    if options.trace:
        parser.error("--trace needs runs with timed calls, and --memory runs nothing; give one of the two")
    check_outputs(options, "output", "json")
    page = options.output or f"{Path(options.net).stem}-memory.html"
    found = net_memory(_load(options))
    print_report(memory_report(found, options.top))
    write_text(page, memory_page(found))
    print(f"written: {page}")
    write_json(options.json, found.to_dict(), indent=None, announced=True)
    return 0


def _find_nan(parser: OptionsParser[_Options], options: _Options) -> int:
    """Run a net with the finder of NaN; return the exit status, 1 if it finds something."""
    for name in ("trace", "json", "output"):
        if getattr(options, name):
            parser.error(f"--{name} is for times or memory, and --find-nan measures nothing; give one of the two")
    ready = _load(options)
    ready.workspace.run_net(ready.name, options.runs, find_nan=True)
    print(f"net {ready.name!r}: no NaN and no infinities in {counted(options.runs, 'run')}")
    return 0


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Run a net with every call timed, and print time, share, rates and the machine's limits for each operator and
    each type of operator.
    """

    net: str = argument(f"{NET_HELP}, or the name of a net of the zoo")
    threads: int | None = option(
        "total number of threads (default: OMP_NUM_THREADS, or one for each core)", type=count, group="how it runs"
    )
    runs: int = option("runs with timed calls, each followed by one without", type=count, default=5)
    warmup: int = option("runs before the timed ones", type=count, default=2)
    without: frozenset[str] = without_option()
    observable: str | None = option(
        f"which values can be fetched after a run, and so do not share memory: {', '.join(KINDS)} "
        "(default: as the net says)",
        choices=KINDS,
        metavar="KIND",
    )
    dtype: str | None = option(
        "how activations are stored (default: as the net says; float32 for nets of the zoo)", choices=PRECISIONS
    )
    memory_budget: str | None = option(
        "memory of a run, such as 4GiB, or the fraction of what it would take, such as 0.6: values are computed "
        "again to keep to it (default: as the net says)",
        metavar="SIZE",
    )
    numpy: bool = switch("use only NumPy, no faster library")
    init: str | None = option("init net that makes the parameters", metavar="FILE", group="nets in files")
    cpu: bool = cpu_option()
    trusted: bool = trusted_option()
    input: tuple[tuple[str, TensorSpec], ...] = input_option(
        "shape of an input, such as data=32x3x224x224 or label=32:int32; floats are drawn at random, integers are 0"
    )
    feed: str | None = option("values of inputs by name, in an .npz file", metavar="FILE")
    batch: int | None = option(
        "samples in each step, over all devices (default: 32; for a predictor, the stored batch)",
        type=count,
        group="nets of the zoo",
    )
    image_size: int | None = image_size_option()
    classes: int = classes_option()
    pixels: bool = switch("feed images as bytes, which the net normalizes, as the trainer feeds them to GPUs")
    inference: bool = switch("run the forward pass in test mode instead of a training step")
    devices: int = option("replicas that share the batch", type=count, default=1)
    gpu: str | None = option(
        "run on the GPUs of this machine instead of the CPU; or, without running, list what a step reads, writes and "
        f"computes on a GPU that is described: {', '.join(known_gpus())}, or a JSON file",
        nargs="?", const=HERE, metavar="GPU",
    )  # fmt: skip
    exhaustive_search: bool = switch(
        "on a described GPU: take a kernel of ours instead of cuDNN's where it reads and writes fewer bytes, as a "
        "search would find if time were bytes"
    )
    net_type: str = option(
        f"with several devices, how the net is executed (default: dag): {', '.join(NET_TYPES)}",
        default="dag",
        choices=NET_TYPES,
        metavar="TYPE",
    )
    top: int = option("list the N slowest calls, or largest values", type=count, default=20, group="result")
    memory: bool = switch(
        "instead of times: plan the memory of a step, list the largest values, and draw the arena over the steps"
    )
    find_nan: bool = switch(
        "instead of times: look at the result of every operator of --runs runs, also in step nets, and name the "
        "first that is NaN or infinite"
    )
    output: str | None = option(
        "with --memory: the page to write (default: NET-memory.html)", short="-o", metavar="FILE"
    )
    json: str | None = option("write all results as JSON", metavar="FILE")
    trace: str | None = option("write a trace for https://ui.perfetto.dev", metavar="FILE")


def _arrays(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    return dict(read_npz(path))


def _load(options: _Options) -> Ready:
    workspace = Workspace(engines=() if options.numpy else None, threads=options.threads, without=options.without)
    path, given = Path(options.net), {**_arrays(options.feed), **dict(options.input)}
    refuse_init(path, options.init)
    if is_predictor(path):
        if options.observable:
            raise NetError(f"--observable: only the outputs of a predictor can be fetched; leave it out for {path}")
        if options.memory_budget:
            raise NetError(f"--memory-budget: a predictor has no backward pass to compute for; leave it out for {path}")
        if options.dtype:
            raise NetError(f"--dtype: a predictor runs in the type in which it was exported; leave it out for {path}")
        return load_stored_predictor(
            workspace, path, options.batch, given, device=cpu_device(options.cpu), trusted=options.trusted
        )
    if path.is_file() or (path.suffix and options.net not in NETS):
        return load_net(
            workspace, path, options.init, given, device=cpu_device(options.cpu), trusted=options.trusted,
            observable=options.observable, memory_budget=options.memory_budget, dtype=options.dtype,
        )  # fmt: skip
    return load_zoo(workspace, options.net, _zoo(options))


def _zoo(options: _Options) -> ZooOptions:
    return ZooOptions(
        batch=options.batch or 32, image_size=options.image_size, classes=options.classes,
        training=not options.inference, devices=options.devices, gpu=options.gpu is not None,
        net_type=options.net_type, observable=options.observable, memory_budget=options.memory_budget,
        dtype=options.dtype, pixels=options.pixels,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
