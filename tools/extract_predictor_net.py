"""Extract a predictor from a net and its parameters: ``netbuilder-extract``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder.data import read_blobs, read_npz
from netbuilder.exchange import describe_images, save_predictor
from netbuilder.exchange.image_preparation import class_names, image_preparation
from netbuilder.exchange.predictor_files import PREDICT_FILE, read_net, stored_specs
from netbuilder.exchange.trust import check_fills, check_not_swapped
from netbuilder.graph.blob_devices import place_operators
from netbuilder.parallel import replicas_of
from netbuilder.passes.extract_predictor import READERS, extract_predictor, parameter_sources
from netbuilder.proto import (
    PROTO_CPU,
    PROTO_CUDA,
    BlobError,
    DeviceOption,
    NetDef,
    NetError,
    OperatorDef,
    files,
    opened_files,
)
from netbuilder.proto.arguments import make_device_option
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime import Workspace
from netbuilder.tools.common_options import cpu_device, trusted_option
from netbuilder.tools.options import OptionsParser, argument, option, switch
from netbuilder.tools.reporting import reporting

__all__ = ["main"]


@reporting("netbuilder-extract")
def main(arguments: Sequence[str] | None = None) -> int:
    """Extract a predictor, or list the blobs of the net; return the exit status."""
    options = OptionsParser(_Options, prog="netbuilder-extract").parse(arguments)
    if Path(options.net).is_dir():
        raise NetError(
            f"{options.net!r} is a folder; give the net's file, such as {str(Path(options.net) / PREDICT_FILE)!r}"
        )
    net = read_net(options.net)
    if options.inspect:
        _inspect(net)
        return 0
    for name in ("parameters", "inputs", "outputs", "output_dir"):
        if not getattr(options, name):
            raise NetError(f"--{name.replace('_', '-')} is required; --inspect lists the blobs that can be named")
    if Path(options.output_dir).is_file():
        raise NetError(f"--output-dir {options.output_dir!r} is a file; name a folder")
    _extract(net, options)
    return 0


def _device(text: str) -> DeviceOption:
    kind, _, number = text.partition(":")
    if kind not in ("cpu", "gpu") or (number and not number.isdigit()):
        raise argparse.ArgumentTypeError(f"must be cpu, gpu or gpu:ID, got {text!r}")
    return make_device_option(PROTO_CPU if kind == "cpu" else PROTO_CUDA, int(number or 0))


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Extract the operators that compute the outputs from the inputs of a net in test mode, and write them with
    their parameters as init_net.pb and predict_net.pb.
    """

    net: str = argument("the net, a NetDef (.pb, or text in .pbtxt); of a data-parallel net, the first replica is used")
    inspect: bool = switch("only list inputs, outputs and parameters")
    parameters: str = option(
        "values of the parameters: .npz, a checkpoint in .minidb, or an init net in .pb", default="", metavar="FILE"
    )
    trusted: bool = trusted_option()
    inputs: tuple[str, ...] = option("blobs that the predictor is given", default=(), nargs="+", metavar="BLOB")
    outputs: tuple[str, ...] = option("blobs that the predictor returns", default=(), nargs="+", metavar="BLOB")
    output_dir: str = option("write the two files into this folder", default="", metavar="FOLDER")
    device: DeviceOption | None = option(
        "device that the predictor runs on: cpu, gpu or gpu:ID (default: the devices in the net)",
        type=_device,
        metavar="DEVICE",
        exclusive=True,
    )
    cpu: bool = switch("the same as --device cpu, for nets that were written for a GPU", exclusive=True)


def _inspect(net: NetDef) -> None:
    """Print the external inputs, the outputs of readers, and the blobs that could be outputs."""
    scope = _first_scope(net)
    forward = [op for op in _forward_pass(net) if all(blob.startswith(scope) for blob in op.output)]
    made: set[str] = set()
    outside: dict[str, list[str]] = {}
    read: set[str] = set()
    for op in forward:
        for blob in op.input:
            if blob not in made:
                outside.setdefault(blob, []).append(op.type)
            read.add(blob)
        made.update(op.output)
    readers = {blob: op.type for op in forward if op.type in READERS for blob in op.output}
    print(f"net {net.name!r}: {len(net.op)} operators", end="")
    print(f", {len(forward)} of them in the forward pass of the first replica, {scope!r}" if scope else
          f", {len(forward)} of them in the forward pass")  # fmt: skip
    training = [op for op in forward if any(a.name == "is_test" and not a.i for a in op.arg)]
    if training:
        print(
            f"in training mode: {len(training)} operators, the first {training[0].type} {list(training[0].output)}; "
            "a predictor needs the net built in test mode"
        )

    def short(blob: str) -> str:
        return blob.removeprefix(scope)

    _list(
        "inputs or parameters (read before they are made)",
        [f"{short(blob)}  by {', '.join(dict.fromkeys(types))}" for blob, types in outside.items()],
    )
    _list("inputs (made by readers)", [f"{short(blob)}  by {kind}" for blob, kind in readers.items()])
    own = [(blob, op.type) for op in forward for blob in op.output if blob not in readers and blob not in outside]
    _list("outputs (read by no operator)", [f"{short(blob)}  by {kind}" for blob, kind in own if blob not in read])
    _list("outputs (others)", list(dict.fromkeys(short(blob) for blob, _ in own if blob in read)))


def _first_scope(net: NetDef) -> str:
    """Return the scope of the first replica of a data-parallel net; "" for any other net."""
    try:
        return replicas_of(net).devices.scopes[0]
    except NetError:
        return ""


def _forward_pass(net: NetDef) -> list[OperatorDef]:
    """Return the operators before the backward pass, without the fills of the first gradients."""
    end = next((index for index, op in enumerate(net.op) if op.is_gradient_op), len(net.op))
    read = {blob for op in net.op[:end] for blob in op.input}
    if end == len(net.op):
        return list(net.op)
    return [op for op in net.op[:end] if op.type != "ConstantFill" or any(blob in read for blob in op.output)]


def _list(title: str, rows: Sequence[str]) -> None:
    print(f"{title}: {len(rows)}")
    for row in rows:
        print(f"  {row}")


def _extract(net: NetDef, options: _Options) -> None:
    given = _read_parameters(Path(options.parameters), net, options.net, trusted=options.trusted)
    scope = _first_scope(net)

    def scoped(blob: str) -> str:
        known = {name for op in net.op for name in (*op.input, *op.output)}
        return scope + blob if blob not in known and scope + blob in known else blob

    predictor, parameters = extract_predictor(
        net,
        [scoped(blob) for blob in options.inputs],
        [scoped(blob) for blob in options.outputs],
        device=options.device or cpu_device(options.cpu),
        renames=lambda name: name.removeprefix(scope),
    )
    sources = parameter_sources(predictor)
    values = {}
    for name in parameters:
        found = next((given[key] for key in (sources.get(name, name), name) if key in given), None)
        if found is None:
            raise BlobError(
                f"parameter {name!r} is not in {options.parameters!r}, which has {sorted(given)[:8]}"
                f"{' and more' if len(given) > 8 else ''}"
            )
        values[name] = found
    inputs = [blob.removeprefix(scope) for blob in options.inputs]
    fed = [blob for blob in inputs if blob in predictor.external_input]
    # An empty workspace: blobs of the default one have nothing to do with this net.
    if set(fed) <= set(net.external_input):  # its preprocessing of images is valid only for the same input
        describe_images(predictor, image_preparation(net), class_names(net) or None)
    specs = stored_specs(net, options.net)  # of a predictor's net
    shapes = {blob: specs[blob] for blob in fed if blob in specs}
    save_predictor(options.output_dir, predictor, values, inputs=fed, shapes=shapes, workspace=Workspace())
    print(
        f"predictor written to {options.output_dir}: {len(predictor.op)} operators, {len(values)} parameters "
        f"({sum(np.asarray(v).size for v in values.values()):,} elements), inputs {inputs}, "
        f"outputs {list(predictor.external_output)}"
    )


def _read_parameters(path: Path, of: NetDef, of_path: str, *, trusted: bool) -> dict[str, Any]:
    """Return the parameters in a file, of the net ``of`` in another one."""
    if path.suffix == ".npz":
        return dict(read_npz(path))
    if path.suffix in (".pbtxt", ".prototxt"):
        raise NetError(f"--parameters {str(path)!r}: give .npz, .minidb or an init net in .pb, not text")
    if path.suffix == ".minidb":
        return read_blobs(path)
    net, workspace = files.load(path, NetDef), Workspace()
    check_not_swapped(net, of, path, of_path)
    made = {blob for op in net.op for blob in op.output}
    waits = [blob for op in net.op for blob in op.input if blob not in made]
    if waits:
        raise NetError(
            f"--parameters {str(path)!r}: an init net must make all blobs that it reads, but {net.name!r} reads "
            f"{waits[0]!r}; give the net that makes the parameters, such as init_net.pb"
        )
    place_operators(net, _device("cpu"))  # parameters are computed on the CPU, whatever the net says
    with opened_files.naming(path):
        if not trusted:
            check_fills(net.op, f"--parameters: init net {net.name!r}")
        workspace.run_net_once(net)
    return {name: workspace.fetch(name) for name in workspace.blobs()}


if __name__ == "__main__":
    sys.exit(main())
