"""The net of an ONNX file as one of the trainer: images in, scores of the classes out."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
from collections.abc import Mapping
from typing import Any

from netbuilder.exchange.onnx import ReadModel, read_onnx
from netbuilder.exchange.onnx.library import onnx_library
from netbuilder.exchange.onnx.loading import load_model, read_file
from netbuilder.exchange.onnx.model_inputs import Extent, extents_text, input_dtype, input_extents
from netbuilder.graph.defuse import operators_between
from netbuilder.graph.shapes import infer_shapes
from netbuilder.model import ModelHelper, brew
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.renaming import rename_blobs
from netbuilder.proto import NetDef, NetError, OperatorDef, opened_files
from netbuilder.proto.arguments import arguments

__all__ = ["OnnxNet", "digest_of"]

_DATA = "data"
_TAKEN = ("label", "target", "softmax", "loss", "scaled_loss", "accuracy")
"""Blobs that the trainer makes or feeds."""

_HEAD = "new_head"
"""The scores of a new last layer."""

_LAST = ("FC", "FCTransposed", "MatMul")
"""Operators that can be a last layer."""

_REMEDY = "export it with a dynamic first axis (dynamic_axes or dynamic_shapes of torch.onnx.export)"
Shape = tuple[int, ...]


def digest_of(file: str) -> str:
    """Return a text that differs if a file has other contents."""
    return hashlib.sha256(opened_files.read_bytes(file)).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class OnnxNet:
    """A builder as those of ``nets.NETS``.

    Args:
        file: the model: one input, images (N, C, H, W) with a dynamic N; its first output is a score or probability of
            each class, (N, classes).
        frozen: patterns of names of parameters that are not trained.
        new_head: replace the last layer by one for the classes of the data, with initial values of its own.
    """

    file: str
    frozen: tuple[str, ...] = ()
    new_head: bool = False

    def __call__(
        self, model: ModelHelper, shape: Shape, classes: int, *, is_test: bool, label: Any = None, no_loss: bool = False
    ) -> Any:
        """Add the net, which reads ``data``; see ``nets.add_net``.

        Raises:
            NetError: the file is no classifier of such images and classes, or it cannot be trained.
            OperatorError, ParseError, OSError: it cannot be read.
        """
        read, width = _read(self.file, os.stat(self.file).st_mtime_ns, shape, self.new_head)
        if width != classes and not self.new_head:
            raise NetError(
                f"--onnx: {self.file!r} computes {width} scores, but there are {classes} classes; --new-head replaces "
                "its last layer"
            )
        if is_test:
            read = read.in_test_mode()
        scores = read.add_to(model, frozen=self.frozen)[read.outputs[0]]
        if self.new_head:
            scores = brew.fc(model, scores, _HEAD, width, classes)
        if no_loss:
            return scores
        if label is None:
            return brew.softmax(model, scores, "softmax")
        return model.net.SoftmaxWithLoss([scores, label], ["softmax", "loss"])


@functools.lru_cache(1)
def _read(file: str, written: int, shape: Shape, new_head: bool) -> tuple[ReadModel, int]:
    """Return the part of a model from ``data`` to its scores, or to what its last layer reads, and their number.

    Args:
        file, shape, new_head: see ``OnnxNet``.
        written: when the file was written.
    """
    name = _image_input(file, shape)
    read = read_onnx(file, training=True, reference=False, shapes={name: (None, *shape)})
    read = _renamed(read, {name: _DATA})
    scores = read.outputs[0]
    makers = {output: op for op in read.net.op for output in op.output}
    while (made := makers.get(scores)) is not None and made.type == "Softmax":
        scores = made.input[0]  # the loss has one of its own
    last = _last_layer(read, makers.get(scores), makers)
    if new_head and last is None:
        maker = makers[scores].type if scores in makers else "nothing"
        raise NetError(
            f"--new-head: the last layer of {file!r} must be fully connected, Gemm or MatMul by a constant; "
            f"{read.outputs[0]!r} is made by {maker}; export the model "
            "without it, or with as many scores as there are classes"
        )
    if last is None:
        return _up_to(read, scores), _width(file, read, scores, shape)
    extents = read.parameters[last.input[1]].shape
    out, width = extents if last.type == "FC" or arguments(last).get("trans_b") else extents[::-1]
    return (_up_to(read, last.input[0]), width) if new_head else (_up_to(read, scores), out)


def _image_input(file: str, shape: Shape) -> str:
    """Return the name of the model's input.

    Raises:
        NetError: it is not one input for such images.
    """
    onnx = onnx_library()
    model, constants, *_ = load_model(onnx, read_file(file))
    held = constants.keys() | {tensor.name for tensor in model.graph.initializer}
    inputs = [each for each in model.graph.input if each.name not in held]
    if len(inputs) != 1:
        names = ", ".join(each.name for each in inputs) or "none"
        raise NetError(f"--onnx: {file!r} must have one input, images (N, C, H, W); its inputs are: {names}")
    name, extents, dtype = inputs[0].name, input_extents(inputs[0]), input_dtype(onnx, inputs[0])
    if extents is None or len(extents) != 4 or dtype != "float32":
        shape_text = "no known shape" if extents is None else f"the shape {extents_text(extents)}"
        raise NetError(
            f"--onnx: {file!r} must read images (N, C, H, W) of float32; its input {name!r} has "
            f"{shape_text} and the type {dtype}"
        )
    if isinstance(extents[0], int):
        raise NetError(f"--onnx: {file!r} is for batches of {extents[0]} only; {_REMEDY}")
    if not _fits(extents[1:], shape):
        raise NetError(
            f"--onnx: {file!r} reads images of {extents_text(extents[1:])} (C x H x W), those of the data have "
            f"{extents_text(shape)}; "
            "--crop and --scale change height and width, --gray the channels, or export it for this size"
        )
    return str(name)


def _fits(extents: tuple[Extent, ...], shape: Shape) -> bool:
    return all(known == given for known, given in zip(extents, shape) if isinstance(known, int))


def _renamed(read: ReadModel, names: Mapping[str, str]) -> ReadModel:
    """Return a model with other names of blobs, and without those that the trainer uses."""
    used = {name for op in read.net.op for name in (*op.input, *op.output)} - names.keys()
    fresh = {name: f"{name}_of_model" for name in used & {_DATA, *_TAKEN, _HEAD}}
    other = {**fresh, **names}
    net = NetDef()
    net.CopyFrom(read.net)
    rename_blobs(net, other)
    return dataclasses.replace(
        read,
        net=net,
        parameters={other.get(name, name): value for name, value in read.parameters.items()},
        inputs=tuple(other.get(name, name) for name in read.inputs),
        outputs=tuple(other.get(name, name) for name in read.outputs),
        trained=tuple(other.get(name, name) for name in read.trained),
    )


def _last_layer(read: ReadModel, made: OperatorDef | None, makers: Mapping[str, OperatorDef]) -> OperatorDef | None:
    """Return the fully connected layer whose results, with a bias or without, an operator makes; None: it is none."""
    if made is not None and made.type == "Add":
        made = next((makers[name] for name in made.input if name in makers), None)
    if made is None or made.type not in _LAST or arguments(made).get("trans_a"):
        return None
    return made if made.input[1] in read.parameters else None


def _width(file: str, read: ReadModel, scores: str, shape: Shape) -> int:
    """Return the number of scores, or of features.

    Raises:
        NetError: they are not a vector for each image.
    """
    known = {name: TensorSpec(value.shape, value.dtype) for name, value in read.parameters.items()}
    found = infer_shapes([read.net], {**known, _DATA: (2, *shape)}).shapes.get(scores, ())
    if len(found) != 2 or found[0] != 2:
        raise NetError(f"--onnx: {file!r} must compute scores (N, classes); {scores!r} has the shape {found} for N = 2")
    return found[1]


def _up_to(read: ReadModel, scores: str) -> ReadModel:
    """Return the part of a model that computes ``scores``, its only output."""
    ops = [read.net.op[index] for index in operators_between(read.net.op, (), [scores])]
    needed = {scores, *(name for op in ops for name in op.input)}
    net = NetDef()
    net.CopyFrom(read.net)
    del net.op[:]
    net.op.extend(ops)
    parameters = {name: value for name, value in read.parameters.items() if name in needed}
    net.external_input[:] = [name for name in net.external_input if name in needed]
    net.external_output[:] = [scores]
    trained = tuple(name for name in read.trained if name in parameters)
    return dataclasses.replace(read, net=net, parameters=parameters, outputs=(scores,), trained=trained)
