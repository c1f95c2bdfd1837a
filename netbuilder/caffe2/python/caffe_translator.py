"""Nets and weights of Caffe as nets and parameters of predictors.

python -m netbuilder.caffe2 -m caffe2.python.caffe_translator deploy.prototxt weights.caffemodel
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from google.protobuf import text_format

from netbuilder.caffe2.caffe_layers import TRANSLATORS, Layer
from netbuilder.caffe2.caffe_nets import input_shapes, is_included, layers_of, weights_of
from netbuilder.caffe2.missing import names_of
from netbuilder.data import proto_to_tensor
from netbuilder.exchange.fills import fill_operator
from netbuilder.graph.shapes import infer_shapes
from netbuilder.ops.core.conv_geometry import CAFFE_LEGACY_POOLING
from netbuilder.proto import NetDef, NetError, OperatorDef, TensorProtos, files
from netbuilder.proto.arguments import arguments, make_argument, make_op, set_argument
from netbuilder.proto.caffe_pb2 import NetParameter, NetState
from netbuilder.proto.suggestions import near_or_known

__all__ = [
    "AddArgument",
    "BaseTranslate",
    "ConvertTensorProtosToInitNet",
    "TranslateModel",
    "TranslatorRegistry",
    "main",
]

log = logging.getLogger("netbuilder")

Translator = Callable[..., tuple[Any, Any]]


def _adapted(translate: Callable[[Layer], tuple[list[OperatorDef], list[Any]]]) -> Translator:
    """Return a translator of layers with Caffe2's parameters."""

    def call(
        layer: Any, pretrained_blobs: Sequence[Any], is_test: bool, **kwargs: Any
    ) -> tuple[list[OperatorDef], list[Any]]:
        shapes = kwargs.get("input_shapes") or {}
        return translate(Layer(layer, pretrained_blobs, is_test, kwargs["net"], kwargs["net_params"], shapes))

    return call


_ADAPTED = {name: _adapted(function) for name, function in TRANSLATORS.items()}
_OTHER_NAMES = {
    "Conv": "Convolution", "ConvNd": "Convolution3D", "Deconv": "Deconvolution", "ElementWise": "Eltwise",
    "PRelu": "PReLU", "Pool": "Pooling", "Pool3D": "Pooling3D", "Relu": "ReLU",
}  # fmt: skip

# Caffe2's functions for the types, such as TranslateConv.
_FUNCTIONS: dict[str, Callable[[], Translator]] = {
    f"Translate{name}": partial(_ADAPTED.__getitem__, kind)
    for name, kind in {**{name: name for name in TRANSLATORS}, **_OTHER_NAMES}.items()
}
__getattr__ = names_of(__name__, _FUNCTIONS)


class TranslatorRegistry:
    """The translators of layers, by type of layer, and the translation of nets."""

    registry_: dict[str, Translator] = dict(_ADAPTED)

    @classmethod
    def Register(cls, op_name: str) -> Callable[[Translator], Translator]:
        """Register the decorated function for a type of layer.

        It is called as ``function(layer, pretrained_blobs, is_test, net=, net_params=, input_dims=, data_dims=,
        input_shapes=)``, with the layer, its weights as arrays, whether the net is for tests, the operators before it
        and their parameters, and the shapes of the inputs. It returns an operator or a list of them, and a list of
        parameters (TensorProto).
        """

        def register(function: Translator) -> Translator:
            cls.registry_[op_name] = function
            return function

        return register

    @classmethod
    def TranslateLayer(cls, layer: Any, pretrained_blobs: Sequence[Any], is_test: bool, **kwargs: Any) -> Any:
        """Return the operators of a layer and their parameters.

        Raises:
            NetError: there is no translator for its type, or the layer cannot be translated.
        """
        if layer.type not in cls.registry_:
            raise NetError(
                f"Caffe layer {layer.name!r}: there is no translator for layers of type {layer.type!r}; "
                f"TranslatorRegistry.Register({layer.type!r}) adds one"
                f"{near_or_known(layer.type, sorted(cls.registry_), 'types')}"
            )
        ops, params = cls.registry_[layer.type](layer, pretrained_blobs, is_test, **kwargs)
        ops = [] if ops is None else ops
        return (ops if isinstance(ops, list) else [ops]), params

    @classmethod
    def TranslateModel(
        cls,
        caffe_net: NetParameter,
        pretrained_net: NetParameter,
        is_test: bool = False,
        net_state: NetState | None = None,
        remove_legacy_pad: bool = False,
        input_dims: Sequence[int] | None = None,
    ) -> tuple[NetDef, TensorProtos]:
        """Return a net of Caffe as a net, and its parameters.

        Args:
            caffe_net: the net, as in a .prototxt file.
            pretrained_net: its weights, as in a .caffemodel file, by the names of layers.
            is_test: for a net in test mode.
            net_state: which layers to use, by their include and exclude rules; None: those of phase TEST.
            remove_legacy_pad: replace Caffe's rule for extents of pooling by pads; needs the shape of the input.
            input_dims: the shape of the first input; None: as the net gives it.

        Raises:
            NetError: a layer has no translator or cannot be translated, its weights are missing, or the shape of the
                input is needed and not known.
        """
        state = NetState() if net_state is None else net_state
        layers = [layer for layer in layers_of(caffe_net) if is_included(state, layer)]
        if not layers:
            raise NetError(f"Caffe net {caffe_net.name!r} has no layers for the state {{{_one_line(state)}}}")
        shapes = input_shapes(caffe_net, layers)
        if input_dims and shapes:
            shapes[next(iter(shapes))] = tuple(input_dims)
        first = next(iter(shapes.values())) if shapes else None
        dims = list(first or ())
        weights = weights_of(pretrained_net)
        net, params = NetDef(name=caffe_net.name), TensorProtos()
        for layer in layers:
            operators, tensors = cls.TranslateLayer(
                layer, weights.get(layer.name, []), is_test,
                net=net, net_params=params, input_dims=dims, data_dims=dims, input_shapes=shapes,
            )  # fmt: skip
            net.op.extend(operators)
            params.protos.extend(tensors)
        if remove_legacy_pad:
            _remove_legacy_pad(net, params, shapes)
        return net, params


def _one_line(message: Any) -> str:
    return str(text_format.MessageToString(message, as_one_line=True))


def TranslateModel(*args: Any, **kwargs: Any) -> tuple[NetDef, TensorProtos]:
    """See ``TranslatorRegistry.TranslateModel``."""
    return TranslatorRegistry.TranslateModel(*args, **kwargs)


def _remove_legacy_pad(net: NetDef, params: TensorProtos, inputs: Mapping[str, Sequence[int] | None]) -> None:
    known: dict[str, Any] = {tensor.name: tuple(tensor.dims) for tensor in params.protos}
    known |= {name: shape for name, shape in inputs.items() if shape is not None}
    before = NetDef()
    for op in net.op:
        if arguments(op).get("legacy_pad") == CAFFE_LEGACY_POOLING:
            shapes = infer_shapes([before], known).shapes
            x = known.get(op.input[0], shapes.get(op.input[0]))
            copy = NetDef(op=[op])
            if x is None:
                raise NetError(
                    f"remove_legacy_pad: the pads of {op.type} -> {op.output[0]!r} depend on the shape of the net's "
                    "input; give it in input_dims"
                )
            _set_pads(op, x, infer_shapes([copy], {op.input[0]: x}).shapes[op.output[0]])
        before.op.add().CopyFrom(op)


def _set_pads(op: OperatorDef, x: Sequence[int], y: Sequence[int]) -> None:
    """Set the pads after each axis with which extents are rounded down to the same ones."""
    given, axes = arguments(op), range(len(x) - 2)
    kernels, strides = (given.get(name + "s", [given.get(name, 1)] * 2) for name in ("kernel", "stride"))
    begin = [given.get("pads", [given.get("pad", 0)] * 4)[i] for i in axes]
    end = [max(0, (y[i + 2] - 1) * strides[i] + kernels[i] - x[i + 2] - begin[i]) for i in axes]
    kept = [argument for argument in op.arg if argument.name not in ("pad", "pads", "legacy_pad")]
    del op.arg[:]
    op.arg.extend(kept)
    for name, value in zip(("pad_t", "pad_l", "pad_b", "pad_r"), begin + end):
        set_argument(op, name, value)


def ConvertTensorProtosToInitNet(net_params: TensorProtos, input_name: str) -> NetDef:
    """Return a net that fills the parameters, and the input with a placeholder of shape (1,).

    Raises:
        ArgumentError: a parameter has a type that a net cannot hold.
    """
    net = NetDef()
    for tensor in net_params.protos:
        net.op.append(fill_operator(tensor.name, proto_to_tensor(tensor)))
    net.op.append(make_op("ConstantFill", [], [input_name], shape=[1]))
    return net


def BaseTranslate(layer: Any, caffe2_type: str) -> OperatorDef:
    """Return an operator with the inputs and outputs of a layer."""
    return make_op(caffe2_type, list(layer.bottom), list(layer.top))


def AddArgument(op: OperatorDef, key: str, value: Any) -> None:
    """Add an argument to an operator."""
    op.arg.append(make_argument(key, value))


# The command line.


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="caffe_translator", description="Translates a trained net of Caffe to an init net and a predict net."
    )
    parser.add_argument("prototext", help="the net (.prototxt)")
    parser.add_argument("caffemodel", help="its weights (.caffemodel)")
    parser.add_argument("--init_net", default="init_net.pb", help="file to write the weights to (init_net.pb)")
    parser.add_argument(
        "--predict_net", default="predict_net.pb", help="file to write the net to, and as text to this name + txt"
    )
    parser.add_argument(
        "--remove_legacy_pad", action="store_true", help="replace Caffe's rule for extents of pooling by pads"
    )
    parser.add_argument("--input_dims", nargs="+", type=int, default=[], help="the shape of the net's first input")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, or 1 with a message if the net cannot be translated."""
    options = _parser().parse_args(argv)
    try:
        predict_net, init_net = _translated(options)
        files.save_all({options.init_net: init_net, options.predict_net: predict_net})
        files.save_text(options.predict_net + "txt", predict_net)
    except (NetError, OSError) as error:
        print(f"caffe_translator: {error}", file=sys.stderr)
        return 1
    return 0


def _translated(options: argparse.Namespace) -> tuple[NetDef, NetDef]:
    described = files.load_text(options.prototext, NetParameter)
    trained = files.load(options.caffemodel, NetParameter, allow_unknown=True)
    net, params = TranslateModel(
        described, trained, is_test=True, remove_legacy_pad=options.remove_legacy_pad, input_dims=options.input_dims
    )
    inputs = list(input_shapes(described, [each for each in layers_of(described) if is_included(NetState(), each)]))
    read = {name for op in net.op for name in op.input}
    used = [name for name in inputs if name in read] or [net.op[0].input[0]]
    net.external_input.extend([*used, *(tensor.name for tensor in params.protos)])
    last = {name: index for index, op in enumerate(net.op) for name in op.input}  # in-place operators read their output
    net.external_output.extend(
        dict.fromkeys(op.output[0] for index, op in enumerate(net.op) if last.get(op.output[0], -1) <= index)
    )
    return net, ConvertTensorProtosToInitNet(params, used[0])


if __name__ == "__main__":
    sys.exit(main())
