"""Export of predictors as ONNX models, which ONNX's checker checks before a file is written."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

import netbuilder.exchange.onnx.rules_choices
import netbuilder.exchange.onnx.rules_control
import netbuilder.exchange.onnx.rules_dense
import netbuilder.exchange.onnx.rules_elementwise
import netbuilder.exchange.onnx.rules_images
import netbuilder.exchange.onnx.rules_recurrent
import netbuilder.exchange.onnx.rules_samples
import netbuilder.exchange.onnx.rules_shape  # noqa: F401  (they register themselves)
from netbuilder.exchange.divided import refuse_divided
from netbuilder.exchange.image_preparation import preparation_texts
from netbuilder.exchange.mobile_exporter import fetch_parameters
from netbuilder.exchange.onnx.graph import FROM_CONSTANTS, RUN_NETS, Graph, rules
from netbuilder.exchange.onnx.library import onnx_library
from netbuilder.exchange.onnx.reasons import reason
from netbuilder.exchange.predictor import Predictor
from netbuilder.exchange.predictor_names import given_shapes
from netbuilder.graph.blob import blob_name
from netbuilder.graph.message import message_of
from netbuilder.graph.shapes import infer_shapes
from netbuilder.graph.versions import EXTERNAL, Versions, number_versions
from netbuilder.ops.core.fused_activation import as_fused
from netbuilder.ops.core.operator import TensorSpec, decode, spec_of
from netbuilder.ops.core.registry import find
from netbuilder.passes.fold_batch_norm import fold_batch_norm
from netbuilder.proto import ArgumentError, BlobError, NetDef, OperatorDef, OperatorError, ShapeError
from netbuilder.proto.arguments import made_at
from netbuilder.proto.suggestions import suggests_arguments
from netbuilder.proto.whole_file import whole_file
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute import default

__all__ = ["OPSETS", "export_onnx", "onnx_model"]

OPSETS = range(13, 22)
"""Opset versions that can be written."""

_IR_VERSION = 8
_MOST_KNOWN = 64
_OTHER_TYPES = ("bool", "int32", "int64", "float32", "float64", "float16")


@suggests_arguments
def export_onnx(
    file: str | os.PathLike[str],
    predict_net: Any,
    parameters: Iterable[Any] | Mapping[Any, Any] | None = None,
    *,
    shapes: Mapping[Any, Any] | None = None,
    outputs: Sequence[Any] | None = None,
    workspace: Workspace | None = None,
    fold: bool = True,
    dynamic_batch: bool = True,
    opset: int = 17,
) -> None:
    """Write a predictor as an ONNX model.

    Args:
        file: the model; an existing one is replaced, whole or not at all.
        predict_net: a Predictor; or a Net or NetDef in test mode, as ``extract_predictor`` and ``ExtractPredictorNet``
            return it.
        parameters: blobs, or a mapping of blobs to arrays; None: all external inputs that are not in ``shapes``.
        shapes: shape of each input, the batch first; None: those that the Predictor was saved with. The type is what
            the operators that read it need, else float32; a TensorSpec says another.
        outputs: blobs that become outputs of the model; None: those of the Predictor, or the net's external outputs.
        workspace: has the parameters' values; None: that of the Predictor, or the current default one.
        fold: fold batch normalizations into the weights before them.
        dynamic_batch: make the batch a dynamic axis "N": the first extent of the first input, of inputs with the same
            first extent, and extents of the outputs that depend on it.
        opset: version of ONNX's operators, 13 to 21.

    Raises:
        OperatorError: an operator has no counterpart in ONNX, not with these arguments, or not for a dynamic batch; the
            message names it.
        NetError: the net is invalid, or a normalization to fold is in training mode.
        BlobError: an output is not in the net, or a parameter not in the workspace.
        ArgumentError: ``opset`` is out of range; the shapes are not known; or parameters are given with a Predictor.
        DeviceError: the package onnx is not installed.

    Netron shows the names of blobs and operators as they are in the net.
    """
    model = onnx_model(
        predict_net, parameters, shapes=shapes, outputs=outputs, workspace=workspace, fold=fold,
        dynamic_batch=dynamic_batch, opset=opset,
    )  # fmt: skip
    with whole_file(file) as stream:
        stream.write(model.SerializeToString())


@suggests_arguments
def onnx_model(
    predict_net: Any,
    parameters: Iterable[Any] | Mapping[Any, Any] | None = None,
    *,
    shapes: Mapping[Any, Any] | None = None,
    outputs: Sequence[Any] | None = None,
    workspace: Workspace | None = None,
    fold: bool = True,
    dynamic_batch: bool = True,
    opset: int = 17,
) -> Any:
    """Return a predictor as an ``onnx.ModelProto``, checked; see ``export_onnx``."""
    onnx = onnx_library()
    if opset not in OPSETS:
        raise ArgumentError(f"ONNX export writes opset {OPSETS[0]} to {OPSETS[-1]}, got {opset}")
    if isinstance(predict_net, Predictor):
        if parameters is not None or workspace is not None:
            raise ArgumentError(f"{predict_net!r} has parameters and workspace; export it without giving these")
        specs, workspace = predict_net.specs, predict_net.workspace
        stored = {name: specs[name] for name in predict_net.inputs if name in specs}
        shapes = {**stored, **given_shapes(shapes or {}, predict_net.inputs, f"net {predict_net.net.name!r}")}
        outputs, predict_net = predict_net.outputs if outputs is None else outputs, predict_net.net
    net = NetDef()
    net.CopyFrom(message_of(predict_net))
    if not shapes:
        raise ArgumentError(
            f"net {net.name!r}: an ONNX model has shapes of its inputs; give shapes={{input: shape}}, the batch first"
        )
    outside = _read_from_outside(net)
    inputs = dict.fromkeys([*outside, *net.external_input])
    shapes = given_shapes(shapes, inputs, f"net {net.name!r}")
    if parameters is None:
        parameters = [name for name in outside if name not in shapes]
    values = _values(net, parameters, workspace)
    specs = _specs(net, shapes, values)
    requested = [blob_name(blob) for blob in outputs] if outputs is not None else list(net.external_output)
    _check_outputs(net, requested)
    if fold:
        net.external_output[:] = requested
        net, values = fold_batch_norm(net, values)
    export = _Export(net, values, specs, requested, opset)
    export.write()
    if dynamic_batch:
        export.make_batch_dynamic()
    model = export.model(onnx)
    onnx.checker.check_model(model, full_check=True)
    return model


def _specs(net: NetDef, shapes: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, TensorSpec]:
    """Return the specs of the inputs; where only a shape is given, the type is what the operators that read it need."""
    known = {name: spec_of(value) for name, value in values.items()}
    try:
        found = infer_shapes([net], {**known, **shapes})
    except ShapeError:  # the export of the operator says it with its place
        return {name: _spec(shape, np.float32) for name, shape in shapes.items()}
    return {name: _spec(shape, found.dtypes.get(name, np.float32)) for name, shape in shapes.items()}


def _spec(shape: Any, dtype: Any) -> TensorSpec:
    return shape if isinstance(shape, TensorSpec) else TensorSpec(tuple(map(int, shape)), np.dtype(dtype))


def _read_from_outside(net: NetDef) -> list[str]:
    versions = number_versions(net.op)
    return [name for name, writer in zip(versions.names, versions.writers) if writer == EXTERNAL]


def _values(net: NetDef, parameters: Any, workspace: Workspace | None) -> dict[str, np.ndarray[Any, Any]]:
    if isinstance(parameters, Mapping):
        return {blob_name(blob): np.asarray(value) for blob, value in parameters.items()}
    try:
        values = fetch_parameters(workspace or default.workspace(), net, parameters)
    except BlobError as error:
        raise BlobError(f"{error}; of an input, give the shape in shapes=") from error
    refuse_divided(values)
    return values


def _check_outputs(net: NetDef, requested: Sequence[str]) -> None:
    made = {blob for op in net.op for blob in op.output}
    for name in requested:
        if name not in made:
            raise BlobError(
                f"net {net.name!r}: no operator makes blob {name!r}, so it cannot be an output of the model"
            )


class _Export:
    """Export of one net: a name for each version of each blob, and its shape."""

    def __init__(
        self,
        net: NetDef,
        values: Mapping[str, np.ndarray[Any, Any]],
        inputs: Mapping[str, TensorSpec],
        outputs: Sequence[str],
        opset: int,
        visible: Mapping[str, str] = MappingProxyType({}),
        prefix: str = "",
    ) -> None:
        self._net, self._inputs = net, inputs
        self._versions: Versions = number_versions(net.op)
        self._names = _value_names(self._versions, visible, prefix)
        self._outputs = [self._names[self._versions.last[name]] for name in outputs]
        self._kept = _values_kept(net, self._versions)
        self._node_names: set[str] = set()
        self._values = values
        self._open: dict[str, list[Any]] = {}  # shapes of inputs and outputs; extents that depend on the batch are text
        around = visible or {name: name for name in (*values, *inputs)}
        self.graph = Graph(opset, values, self._inside, around)
        self.graph.specs.update({name: spec_of(value) for name, value in values.items()} | dict(inputs))

    def write(self) -> None:
        """Write all operators."""
        for index, op_def in enumerate(self._net.op):
            try:
                self._add(index, op_def)
                made = (self._names[value] for value in self._versions.outputs[index])
                self.graph.visible.update(zip(op_def.output, made))
            except Exception as error:
                where = f"net {self._net.name!r}, operator {index}: {op_def.type} {list(op_def.input)}{made_at(op_def)}"
                raise OperatorError(f"ONNX export, {where}: {error}") from error
        self.graph.prune(self._outputs)

    def _inside(
        self,
        net: NetDef,
        inputs: Mapping[str, TensorSpec],
        outputs: Sequence[str],
        constants: Mapping[str, np.ndarray[Any, Any]],
        visible: Mapping[str, str],
        prefix: str,
    ) -> Graph:
        """Return the graph of a net inside this one."""
        made = _Export(net, constants, inputs, outputs, self.graph.opset, visible, prefix)
        made.write()
        return made.graph

    def make_batch_dynamic(self) -> None:
        """Make the batch dynamic; exporting the net for twice the batch shows which extents depend on it.

        Raises:
            OperatorError: the nodes depend on the batch, so that the model would not work for others.
        """
        batch = next((spec.shape[0] for spec in self._inputs.values() if spec.shape), 0)
        if batch < 1:
            return
        doubled = {
            name: spec.with_shape((2 * batch, *spec.shape[1:])) if spec.shape[:1] == (batch,) else spec
            for name, spec in self._inputs.items()
        }
        twice = _Export(self._net, self._values, doubled, [], self.graph.opset)
        twice._outputs = self._outputs
        remedy = f"give dynamic_batch=False for a model that takes batches of {batch} only"
        try:
            twice.write()
        except OperatorError as error:
            raise OperatorError(f"{error} (with twice the batch); {remedy}") from error
        if (place := self.graph.difference(twice.graph)) is not None:
            raise OperatorError(f"ONNX export, net {self._net.name!r}: {place} depends on the batch; {remedy}")
        for name in (*self._inputs, *self._outputs):
            shape, other = self.graph.spec(name).shape, twice.graph.spec(name).shape
            self._open[name] = [_extent(n, batch) if n != m else n for n, m in zip(shape, other)]
            if name in self.graph.free:
                self._open[name][0] = f"{name}_count"

    def model(self, onnx: Any) -> Any:
        """Return the whole model."""
        helper = onnx.helper
        infos = [[self._info(helper, name) for name in names] for names in (self._inputs, self._outputs)]
        graph = helper.make_graph(
            self.graph.nodes, self._net.name or "predictor", *infos,
            [onnx.numpy_helper.from_array(value, name) for name, value in self.graph.initializers.items()],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.graph.opset)])
        model.ir_version, model.producer_name = _IR_VERSION, "netbuilder"
        helper.set_model_props(model, preparation_texts(self._net))
        return model

    def _add(self, index: int, op_def: OperatorDef) -> None:
        op_def = as_fused(op_def)
        op = decode(find(op_def.type), op_def)
        ins = [self._names[value] for value in self._versions.inputs[index]]
        for name in ins:
            if name not in self.graph.specs:
                raise BlobError(f"blob {name!r} is neither an input with a shape nor a parameter")
        values = self._versions.outputs[index]
        write = rules().get(op_def.type)
        constant = all(map(self.graph.is_constant, ins)) and not (op.stateful or op.draws)
        if constant := constant and (write is None or op.dynamic):
            write = _write_constants
        elif write is None:
            raise OperatorError(f"{op_def.type} cannot be exported to ONNX: {reason(op_def.type)}")
        self.graph.message = op_def
        try:
            made = self._specs_of(op_def, op, ins, constant) if op_def.type not in RUN_NETS else ()
        except ShapeError as error:
            raise ShapeError(f"{error}{self._other_type(op, ins)}") from error
        for value, spec in zip(values, made):
            self.graph.specs[self._names[value]] = spec
            self.graph.makers[self._names[value]] = (op, ins)
        read = [self._is_read(value) for value in values]
        if not any(read):
            return  # none of its outputs is used
        before = len(self.graph.nodes)
        write(self.graph, op, ins, [self._names[value] if used else "" for value, used in zip(values, read)])
        for number, node in enumerate(self.graph.nodes[before:]):
            node.name = self._node_name((op_def.name or f"{op_def.type}_{index}") + (f"_{number}" if number else ""))

    def _is_read(self, value: int) -> bool:
        return bool(self._versions.readers[value]) or value in self._kept or self._names[value] in self._outputs

    def _other_type(self, op: Any, ins: Sequence[str]) -> str:
        """Return what to do if an operator takes an input of the model in another type than was inferred."""
        specs = [self._with_elements(name) for name in ins]
        for i, name in enumerate(ins):
            for dtype in _OTHER_TYPES if name in self._inputs else ():
                try:
                    op.infer(*specs[:i], specs[i].with_dtype(dtype), *specs[i + 1 :])
                except (ShapeError, NotImplementedError):
                    continue
                spec = f"TensorSpec({specs[i].shape}, np.dtype({dtype!r}))"
                return f"; if {name!r} is of {dtype}, give shapes= a {spec} of netbuilder.ops.core.operator"
        return ""

    def _specs_of(self, op_def: OperatorDef, op: Any, ins: Sequence[str], constant: bool) -> Sequence[TensorSpec]:
        """Return the specs of an operator's outputs; their ``known`` elements as far as they follow from shapes."""
        specs = [self._with_elements(name) for name in ins]
        if op.static_for(*specs) and not constant:
            try:
                made = op.infer(*specs)
            except NotImplementedError as error:
                if op.type not in FROM_CONSTANTS:
                    raise OperatorError(str(error)) from error
                made = [spec_of(value) for value in self._example(op_def, specs, ins)]
        elif constant or op.type in FROM_CONSTANTS:
            arrays = self._example(op_def, specs, ins)
            return [dataclasses.replace(spec_of(value), inner=value) for value in arrays]
        else:
            raise OperatorError(f"{op.type}: the shapes of its outputs are known only when the net runs")
        if op.type == "Shape":
            extents = specs[0].shape
            return [dataclasses.replace(made[0], known=tuple(extents[i] for i in op.axes) if op.axes else extents)]
        if specs and all(spec.known is not None for spec in specs):
            arrays = self._example(op_def, specs, ins)
            return [dataclasses.replace(spec, known=_elements(value)) for spec, value in zip(made, arrays)]
        return made

    def _with_elements(self, name: str) -> TensorSpec:
        spec = self.graph.spec(name)
        if not self.graph.is_constant(name):
            return spec
        return dataclasses.replace(spec, known=_elements(self.graph.elements(name)))

    def _example(self, op_def: OperatorDef, specs: Sequence[TensorSpec], ins: Sequence[str]) -> list[Any]:
        """Run an operator on its constants, on known elements, and zeros in place of what is computed."""
        workspace = Workspace(threads=1)
        for blob, name, spec in zip(op_def.input, ins, specs):
            value = np.zeros(spec.shape, spec.dtype) if spec.known is None else np.reshape(spec.known, spec.shape)
            given = self.graph.elements(name) if self.graph.is_constant(name) else value.astype(spec.dtype)
            workspace.feed(blob, given)
        workspace.run_net_once(NetDef(op=[op_def]))
        return [np.asarray(workspace.fetch(name)) for name in op_def.output]

    def _node_name(self, requested: str) -> str:
        name, number = requested, 1
        while name in self._node_names:
            number += 1
            name = f"{requested}_{number}"
        self._node_names.add(name)
        return name

    def _info(self, helper: Any, name: str) -> Any:
        spec = self.graph.spec(name)
        shape = self._open.get(name, list(spec.shape))
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(spec.dtype), shape)


def _elements(value: np.ndarray[Any, Any]) -> tuple[int, ...] | None:
    """Return the elements of a short array of integers, such as a shape; None for any other."""
    return tuple(value.ravel().tolist()) if value.dtype.kind in "iu" and value.size <= _MOST_KNOWN else None


def _write_constants(graph: Graph, op: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Write what an operator makes of constants as constants."""
    for name in filter(None, outputs):
        value = graph.constant(f"{name}/value", graph.spec(name).inner)
        graph.add("Identity", [value], [name])


def _extent(extent: int, batch: int) -> str:
    """Return the name of an extent that depends on the batch."""
    times, rest = divmod(extent, batch)
    return "N" if extent == batch else f"{times}*N" if not rest else f"{extent}*N/{batch}"


def _value_names(versions: Versions, visible: Mapping[str, str], prefix: str) -> list[str]:
    """Return a name for each value; the last version of a blob gets the blob's name, unless the blob is an input."""
    outside = {name for name, writer in zip(versions.names, versions.writers) if writer == EXTERNAL}
    names = []
    for value, (name, version, writer) in enumerate(zip(versions.names, versions.versions, versions.writers)):
        if writer == EXTERNAL:
            names.append(visible.get(name, name))
        else:
            names.append(
                prefix + (name if versions.last[name] == value and name not in outside else f"{name}/{version}")
            )
    return names


def _values_kept(net: NetDef, versions: Versions) -> set[int]:
    """Return the values that the net of an operator may leave as they are, instead of writing a later version."""
    last: dict[str, int] = {}
    kept: set[int] = set()
    for op, values in zip(net.op, versions.outputs):
        if op.type in RUN_NETS:
            kept.update(last[name] for name in op.output if name in last)
        last.update(zip(op.output, values))
    return kept
