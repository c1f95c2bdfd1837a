"""Runs operators and nets in workspaces of their own, reads and writes nets, and measures them."""

from __future__ import annotations

import logging
import os
import time
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.python.onnx.workspace import Workspace
from netbuilder.graph.message import message_of
from netbuilder.proto import DeviceOption, NetDef, NetError, OperatorDef, files

__all__ = [
    "benchmark_caffe2_model",
    "benchmark_pytorch_model",
    "c2_native_run_net",
    "c2_native_run_op",
    "load_caffe2_net",
    "outputs_of",
    "save_caffe2_net",
]

__getattr__ = names_of(__name__)

log = logging.getLogger(__name__)
_named_tuple: Callable[..., Any] = namedtuple  # called with names that are known only when it runs


def outputs_of(names: Sequence[str], values: Sequence[Any]) -> Any:
    """Return values as a named tuple, which also takes the names as indices.

    >>> outputs_of(["y", "fc/w"], [1, 2])["fc/w"]
    2
    """

    def item(self: tuple[Any, ...], key: Any) -> Any:
        return tuple.__getitem__(self, list(names).index(key) if isinstance(key, str) else key)

    base: Any = _named_tuple("Outputs", names, rename=True)
    return type("Outputs", (base,), {"__getitem__": item})(*values)


def _feed(workspace: Workspace, names: Sequence[str], inputs: Any, device: DeviceOption, what: str) -> None:
    """Feed arrays by name, or as many as there are names."""
    if not isinstance(inputs, Mapping):
        if len(inputs) != len(names):
            raise NetError(f"{what} has the inputs {list(names)}, got {len(inputs)} arrays")
        inputs = dict(zip(names, inputs))
    for name, value in inputs.items():
        workspace.FeedBlob(name, value, device)


def c2_native_run_op(op_def: OperatorDef, inputs: Any) -> tuple[Workspace, Any]:
    """Run an operator in a new workspace; return the workspace, and the outputs as a named tuple.

    Args:
        op_def: the operator.
        inputs: arrays by name, or one for each input in order.

    Raises:
        NetError: the number of arrays is wrong.
    """
    ws = Workspace()
    _feed(ws, op_def.input, inputs, op_def.device_option, f"onnx.helper: {op_def.type}")
    ws.RunOperatorOnce(op_def)
    return ws, outputs_of(op_def.output, [ws.FetchBlob(name) for name in op_def.output])


def c2_native_run_net(init_net: Any, predict_net: Any, inputs: Any, debug_arg: Any = None) -> tuple[Workspace, Any]:
    """Run nets in a new workspace; return the workspace, and the outputs of the second as a named tuple.

    Args:
        init_net: runs first; None: there is none.
        predict_net: its external outputs are returned.
        inputs: arrays by name; or one for each external input that the init net does not fill; or, if the number is
            another one, for the first external inputs.
        debug_arg: ignored.

    Raises:
        NetError: there are more arrays than external inputs.
    """
    ws, net = Workspace(), message_of(predict_net)
    if init_net:
        ws.RunNetOnce(init_net)
    names = [name for name in net.external_input if not ws.HasBlob(name)]
    if not isinstance(inputs, Mapping) and len(inputs) != len(names):
        names = net.external_input[: len(inputs)]
    _feed(ws, names, inputs, net.device_option, f"onnx.helper: net {net.name!r}")
    ws.RunNetOnce(net)
    return ws, outputs_of(net.external_output, [ws.FetchBlob(name) for name in net.external_output])


def load_caffe2_net(file: str | os.PathLike[str]) -> NetDef:
    """Return the net in a file.

    Raises:
        ParseError: it holds no net.
        OSError: it cannot be read.
    """
    return files.load(file, NetDef)


def save_caffe2_net(net: NetDef, file: str | os.PathLike[str], output_txt: bool = False) -> None:
    """Write a net to a file; with ``output_txt`` also as text, to the file of that name and "txt"."""
    files.save(file, net)
    if output_txt:
        files.save_text(f"{os.fspath(file)}txt", net)


def benchmark_caffe2_model(
    init_net: Any, predict_net: Any, warmup_iters: int = 3, main_iters: int = 10, layer_details: bool = True
) -> float:
    """Return the time of one run of a net, in milliseconds, after ``warmup_iters`` runs that are not counted.

    Args:
        init_net: fills what the net reads; None: it reads nothing.
        predict_net: the net.
        warmup_iters, main_iters: number of runs.
        layer_details: also measure the operators one by one.
    """
    ws, net = Workspace(), message_of(predict_net)
    if init_net:
        ws.RunNetOnce(init_net)
    ws.CreateNet(net)
    return float(ws.BenchmarkNet(net.name, warmup_iters, main_iters, layer_details)[0])


def benchmark_pytorch_model(
    model: Callable[..., Any],
    inputs: Sequence[Any],
    training: bool = False,
    warmup_iters: int = 3,
    main_iters: int = 10,
    verbose: bool = False,
) -> float:
    """Return the time of one call of a model, in milliseconds, after ``warmup_iters`` calls that are not counted.

    Args:
        model: called with ``inputs``.
        inputs: its arguments.
        training, verbose: ignored, as in Caffe2.
        warmup_iters, main_iters: number of calls.
    """
    for _ in range(warmup_iters):
        model(*inputs)
    begin = time.perf_counter()
    for _ in range(main_iters):
        model(*inputs)
    each = (time.perf_counter() - begin) * 1000 / main_iters
    log.info("a call of the model takes %.3f ms, %.1f per second", each, 1000 / each)
    return each
