"""Times steps of well-known nets: ``python -m netbuilder.caffe2 -m caffe2.python.convnet_benchmarks --model MLP``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.python import brew, core, workspace
from netbuilder.caffe2.python.model_helper import ModelHelper
from netbuilder.graph.listing import listing
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, files
from netbuilder.zoo import create_alexnet, create_inception_v1, create_overfeat, create_vgg

__all__ = [
    "AddParameterUpdate",
    "AlexNet",
    "Benchmark",
    "GetArgumentParser",
    "Inception",
    "MLP",
    "OverFeat",
    "VGGA",
    "main",
]

__getattr__ = names_of(__name__)

Built = tuple[ModelHelper, int]
Generator = Callable[[str, int | None], Built]

_CLASSES = 1000
_MLP_DEPTH, _MLP_WIDTH, _MLP_DIM = 20, 3, 256


def _model(name: str, order: str, cudnn_ws: int | None) -> ModelHelper:
    scope: dict[str, Any] = {"order": order, "use_cudnn": True, "cudnn_exhaustive_search": True}
    if cudnn_ws is not None:
        scope["ws_nbytes_limit"] = cudnn_ws
    return ModelHelper(name=name, arg_scope=scope)


def _with_loss(model: ModelHelper, prediction: Any) -> None:
    error = model.net.LabelCrossEntropy([prediction, "label"], "xent")
    model.net.AveragedLoss(error, "loss")


def MLP(order: str, cudnn_ws: int | None) -> Built:
    """Return a model of three chains of twenty fully connected layers each, added up, and the input's width."""
    model = _model("MLP", order, cudnn_ws)
    ends = []
    for chain in range(_MLP_WIDTH):
        blob = "data"
        for layer in range(1, _MLP_DEPTH + 1):
            blob = brew.fc(
                model, blob, f"fc_{layer}_{chain}", dim_in=_MLP_DIM, dim_out=_MLP_DIM,
                weight_init=("XavierFill", {}), bias_init=("ConstantFill", {}),
            )  # fmt: skip
        ends.append(blob)
    total = brew.sum(model, ends, "sum")
    last = brew.fc(model, total, "last", dim_in=_MLP_DIM, dim_out=_CLASSES)
    _with_loss(model, last)
    return model, _MLP_DIM


def _zoo(name: str, order: str, cudnn_ws: int | None, create: Callable[..., Any], size: int, **options: Any) -> Built:
    model = _model(name, order, cudnn_ws)
    _with_loss(model, create(model, "data", 3, _CLASSES, image_size=size, **options))
    return model, size


def AlexNet(order: str, cudnn_ws: int | None) -> Built:
    """Return AlexNet with one tower, without dropout, and the image size in pixels."""
    return _zoo("alexnet", order, cudnn_ws, create_alexnet, 224, towers=1, dropout=0.0)


def OverFeat(order: str, cudnn_ws: int | None) -> Built:
    """Return OverFeat's fast model, and the image size in pixels."""
    return _zoo("overfeat", order, cudnn_ws, create_overfeat, 231)


def VGGA(order: str, cudnn_ws: int | None) -> Built:
    """Return VGG with eleven layers, and the image size in pixels."""
    return _zoo("vgga", order, cudnn_ws, create_vgg, 224, num_layers=11, dropout=0.0)


def Inception(order: str, cudnn_ws: int | None) -> Built:
    """Return Inception v1 without normalization, and the image size in pixels."""
    return _zoo("inception", order, cudnn_ws, create_inception_v1, 224, lrn=False, dropout=0.0)


GENERATORS: dict[str, Generator] = {
    "AlexNet": AlexNet, "OverFeat": OverFeat, "VGGA": VGGA, "Inception": Inception, "MLP": MLP,
}  # fmt: skip


def AddParameterUpdate(model: ModelHelper) -> None:
    """Add gradient descent with a learning rate so small that parameters hardly change."""
    iteration = brew.iter(model, "iter")
    rate = model.net.LearningRate(iteration, "LR", base_lr=-1e-8, policy="step", stepsize=10000, gamma=0.999)
    one = model.param_init_net.ConstantFill([], "ONE", shape=[1], value=1.0)
    for param in model.params:
        model.net.WeightedSum([param, one, model.param_to_grad[param], rate], param)


def Benchmark(model_gen: Generator, arg: argparse.Namespace) -> None:
    """Build a net, fill its input with random values, and print the time of a step.

    Args:
        model_gen: returns the model and the size of its input.
        arg: options of ``GetArgumentParser``.
    """
    model, size = model_gen(arg.order, arg.cudnn_ws)
    model.net.set_type(arg.net_type, arg.num_workers)
    shape = [arg.batch_size, size] if model_gen is MLP else [arg.batch_size, 3, size, size]
    if model_gen is not MLP and arg.order == "NHWC":
        shape = [arg.batch_size, size, size, 3]
    if arg.forward_only:
        print(f"{arg.model}: running forward only.")
    else:
        print(f"{arg.model}: running forward-backward.")
        model.AddGradientOperators(["loss"])
        AddParameterUpdate(model)
    model.param_init_net.GaussianFill([], "data", shape=shape, mean=0.0, std=1.0)
    model.param_init_net.UniformIntFill([], "label", shape=[arg.batch_size], min=0, max=_CLASSES - 1)
    device = core.DeviceOption(PROTO_CPU if arg.cpu else PROTO_CUDA, 0)
    for net in (model.param_init_net, model.net):
        net.Proto().device_option.CopyFrom(device)
        if arg.engine:
            for op in net.Proto().op:
                op.engine = arg.engine
    if arg.dump_model:
        _dump(model, arg)
    workspace.RunNetOnce(model.param_init_net)
    workspace.CreateNet(model.net)
    _report(model, workspace.BenchmarkNet(
        model.net.Proto().name, arg.warmup_iterations, arg.iterations, arg.layer_wise_benchmark
    ), arg)  # fmt: skip


def _dump(model: ModelHelper, arg: argparse.Namespace) -> None:
    for net, kind in ((model.net, ""), (model.param_init_net, "_init")):
        files.save_text(f"{arg.model}{kind}_batch_{arg.batch_size}.pbtxt", net.Proto())


def _report(model: ModelHelper, times: list[float], arg: argparse.Namespace) -> None:
    mean = times[0]
    print(f"Main run finished. Milliseconds per iter: {mean:g}. Iters per second: {1000 / mean:g}")
    if arg.layer_wise_benchmark:
        for line, spent in zip(listing(model.net, devices=False).splitlines()[1:], times[1:]):
            print(f"{spent:10.4f} ms/iter  {line.split(', order')[0]}")


def GetArgumentParser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description="Times steps of well-known nets.")
    parser.add_argument("--batch_size", type=int, default=128, help="samples per step")
    parser.add_argument("--model", type=str, help=f"one of {', '.join(GENERATORS)}")
    parser.add_argument("--order", type=str, default="NCHW", help="layout of images: NCHW or NHWC")
    parser.add_argument("--cudnn_ws", type=int, help="set on the operators; has no effect")
    parser.add_argument("--iterations", type=int, default=10, help="timed runs")
    parser.add_argument("--warmup_iterations", type=int, default=10, help="runs before the timed ones")
    parser.add_argument("--forward_only", action="store_true", help="time the forward pass only")
    parser.add_argument("--layer_wise_benchmark", action="store_true", help="also time the operators one by one")
    parser.add_argument("--cpu", action="store_true", help="run on the CPU instead of a GPU")
    parser.add_argument("--engine", type=str, default="", help="engine of every operator")
    parser.add_argument("--dump_model", action="store_true", help="write the nets as text to the current directory")
    parser.add_argument("--net_type", type=str, default="dag", help="type of the net")
    parser.add_argument("--num_workers", type=int, default=2, help="workers of the net")
    parser.add_argument("--use-nvtx", action="store_true", help="not supported; use netbuilder-profile --trace")
    parser.add_argument("--htrace_span_log_path", type=str, help="not supported; use netbuilder-profile --trace")
    return parser


def main() -> int:
    """Time the net that the command line names; returns the exit status."""
    parser = GetArgumentParser()
    arg, extra = parser.parse_known_args()
    if arg.model not in GENERATORS or arg.use_nvtx or arg.htrace_span_log_path:
        parser.print_help()
        wrong = arg.model if arg.model not in GENERATORS else "tracing by NVTX or HTrace"
        print(f"convnet_benchmarks: {wrong!r} is not supported", file=sys.stderr)
        return 2
    workspace.GlobalInit(["caffe2", "--caffe2_log_level=0", *extra])
    Benchmark(GENERATORS[arg.model], arg)
    return 0


if __name__ == "__main__":
    sys.exit(main())
