"""ONNX models read as predict nets with parameters."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from netbuilder.data.extents import count_elements
from netbuilder.exchange.image_preparation import copy_texts
from netbuilder.exchange.onnx.constants import MOST_ELEMENTS, compute_node
from netbuilder.exchange.onnx.library import onnx_library
from netbuilder.exchange.onnx.reference import (
    ReferenceNodeWarning,
    holds_graphs,
    names_read,
    reference_arguments,
    supported_dtype,
)
from netbuilder.exchange.predictor import Predictor
from netbuilder.exchange.predictor_files import save_predictor
from netbuilder.ops.core.operator import STRING, TensorSpec, decode
from netbuilder.ops.core.registry import find
from netbuilder.proto import DeviceError, NetDef, NetError, OperatorDef, OperatorError, ParseError, files
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace

__all__ = ["Reader", "ReadModel", "read_onnx", "reads"]

Array = np.ndarray[Any, Any]
ReadRule = Callable[["Reader", Any], None]

_rules: dict[str, ReadRule] = {}


def reads(*kinds: str) -> Callable[[ReadRule], ReadRule]:
    """Decorator: register how ONNX operators of these kinds are read."""

    def add(function: ReadRule) -> ReadRule:
        for kind in kinds:
            _rules[kind] = function
        return function

    return add


@dataclass(frozen=True)
class ReadModel:
    """What a model says.

    Args:
        net: the predict net; names of blobs are those of the model's values.
        parameters: the constants that the net reads, by name.
        inputs, outputs: names of what is fed and what is computed.
        specs: shapes and types of the inputs, an open extent as 1.
        fixed: the inputs of which only the first extent may be open.
        reference_nodes: the types of the nodes that ONNX's reference implementation runs (``ONNXNode``), sorted.
    """

    net: NetDef
    parameters: Mapping[str, Array]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    specs: Mapping[str, TensorSpec]
    fixed: frozenset[str]
    reference_nodes: tuple[str, ...] = ()

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write init_net.pb and predict_net.pb; see ``save_predictor``."""
        shapes = {name: self.specs[name].shape for name in self.inputs if name in self.fixed}
        save_predictor(
            directory, self.net, dict(self.parameters), inputs=self.inputs, outputs=self.outputs, shapes=shapes,
            workspace=Workspace(),
        )  # fmt: skip

    def predictor(self, **options: Any) -> Predictor:
        """Return a predictor of the net; options are those of ``Predictor``."""
        known = {
            "inputs": self.inputs,
            "outputs": self.outputs,
            "specs": {name: self.specs[name] for name in self.inputs if name in self.fixed},
        }
        given = {name: value for name, value in options.items() if value is not None or name not in known}
        return Predictor(NetDef(), self.net, parameters=self.parameters, **{**known, **given})


def read_onnx(model: str | os.PathLike[str] | Any, *, reference: bool = True) -> ReadModel:
    """Read a model.

    Args:
        model: a file, or an ``onnx.ModelProto``. Tensors that are stored in files of their own are read from the
            model's folder.
        reference: let ONNX's reference implementation run nodes for which there is no operator, or not with their
            attributes, with a ``ReferenceNodeWarning``; if not, such a node is an error.

    Raises:
        OperatorError: a node has no counterpart here, or not with these attributes; the message names it.
        ParseError: the file holds no ONNX model.
        OSError: it cannot be read.
        DeviceError: the package onnx is not installed.

    Nodes whose inputs are all constant are computed while reading. Dropout, which does nothing in a predictor, is
    left out.
    """
    onnx = onnx_library()
    import netbuilder.exchange.onnx.reading_recurrent
    import netbuilder.exchange.onnx.reading_resize
    import netbuilder.exchange.onnx.reading_rules  # noqa: F401  (they register themselves)

    stored = isinstance(model, (str, os.PathLike))
    read = _read_file(onnx, model, reference) if stored else Reader(onnx, model, reference).read()
    if read.reference_nodes:
        warnings.warn(
            f"ONNX model {read.net.name!r}: nodes of the types {', '.join(read.reference_nodes)} run in ONNX's "
            "reference implementation: slowly, on the host, without gradients (reference=False refuses them)",
            ReferenceNodeWarning,
            stacklevel=2,
        )
    return read


def _read_file(onnx: Any, path: str | os.PathLike[str], reference: bool) -> ReadModel:
    with files.naming(path):
        try:
            return Reader(onnx, _load(onnx, path), reference).read()
        except UnicodeDecodeError as error:
            raise ParseError(f"a text of the model is no UTF-8: {error}") from None


def _load(onnx: Any, path: str | os.PathLike[str]) -> Any:
    with open(path, "rb") as file:
        data = file.read()
    try:
        model = onnx.load_model_from_string(data)
        onnx.external_data_helper.load_external_data_for_model(model, os.path.dirname(os.path.abspath(path)))
        onnx.checker.check_model(model)
    except Exception as error:
        raise ParseError(f"{os.fspath(path)!r} holds no ONNX model that its checker accepts: {error}") from error
    return model


class Reader:
    """One model being read.

    Attributes:
        net: gets the operators.
        opset: the version of ONNX's own operators.
        library: the package onnx.
    """

    def __init__(self, onnx: Any, model: Any, reference: bool = True) -> None:
        self.library, self._graph = onnx, model.graph
        self._model = model
        self._reference = reference
        self._reference_nodes: set[str] = set()
        self.opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=1)
        self.net = NetDef(name=model.graph.name or "onnx")
        copy_texts(self.net, {each.key: each.value for each in model.metadata_props})
        self.constants: dict[str, Array] = {each.name: self._array(each) for each in model.graph.initializer}
        self._left = MOST_ELEMENTS
        self.outputs = tuple(output.name for output in model.graph.output)
        self._same: dict[str, str] = {}
        self._infos = self._inferred()
        self._fresh = 0

    def read(self) -> ReadModel:
        """Return what the model says."""
        given = [each for each in self._graph.input if each.name not in self.constants]
        for node in self._graph.node:
            try:
                self._node(node)
            except Exception as error:
                where = f"node {node.name!r} {node.op_type} {list(node.input)} -> {list(node.output)}"
                where = f"ONNX model {self._graph.name!r}, {where}"
                if isinstance(error, (NetError, OperatorError, DeviceError)):
                    raise OperatorError(f"{where}: {error}") from error
                raise ParseError(
                    f"{where}: its attributes or constants are not as ONNX has them: {type(error).__name__}: {error}"
                ) from error
        read = {blob for op in self.net.op for blob in op.input}
        inputs = tuple(each.name for each in given if each.name in read)
        parameters = {name: value for name, value in self.constants.items() if name in read}
        self.net.external_input.extend([*inputs, *parameters])
        self.net.external_output.extend(self.outputs)
        specs = {each.name: _spec(self.library, each) for each in given}
        fixed = frozenset(each.name for each in given if _is_fixed(each))
        kinds = tuple(sorted(self._reference_nodes))
        return ReadModel(self.net, parameters, inputs, self.outputs, specs, fixed, kinds)

    # What rules use.

    def add(self, op_type: str, inputs: Sequence[str], outputs: Sequence[str], **arguments: Any) -> str:
        """Add an operator; return its first output."""
        given = {name: value for name, value in arguments.items() if value is not None}
        self.net.op.append(make_op(op_type, list(map(self.name, inputs)), list(outputs), **given))
        return outputs[0]

    def name(self, value: str) -> str:
        """Return the blob that a value of the model is."""
        return self._same.get(value, value)

    def same(self, source: str, target: str) -> None:
        """Say that a value is another one under a new name."""
        if target in self.outputs:
            self.add("Copy", [source], [target])
        elif source in self.constants:
            self.constants[target] = self.constants[source]
        else:
            self._same[target] = self.name(source)

    def between(self, hint: str) -> str:
        """Return a name that no value has."""
        self._fresh += 1
        return f"{hint}/netbuilder_{self._fresh}"

    def constant(self, hint: str, value: Any) -> str:
        """Add a parameter; return its name."""
        name = self.between(hint)
        self.constants[name] = np.asarray(value)
        return name

    def elements(self, value: str, what: str) -> Array:
        """Return the elements of a value that has to be constant.

        Raises:
            OperatorError: it is computed.
        """
        if value not in self.constants:
            raise OperatorError(f"{what} ({value!r}) is computed while the model runs; only a constant can be read")
        return self.constants[value]

    def shape(self, value: str) -> tuple[int, ...]:
        """Return the shape of a value, an open extent as 1.

        Raises:
            OperatorError: it cannot be inferred.
        """
        if value in self.constants:
            return tuple(self.constants[value].shape)
        info = self._infos.get(value)
        if info is None or not info.type.tensor_type.HasField("shape"):
            raise OperatorError(f"the shape of {value!r} cannot be inferred")
        return _extents(info)

    def dtype(self, value: str) -> np.dtype[Any] | None:
        """Return the NumPy dtype of a value's elements; None if it is not known."""
        if value in self.constants:
            return self.constants[value].dtype
        info = self._infos.get(value)
        if info is None or not info.type.tensor_type.elem_type:
            return None
        return np.dtype(self.library.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))

    def info(self, value: str) -> Any:
        """Return what ONNX says of a value, a ValueInfoProto; None if it says nothing."""
        return self._infos.get(value)

    def dims(self, value: str) -> tuple[int | str, ...] | None:
        """Return the extents of a value, an open one as its name; None if one is not known or has no name."""
        if value in self.constants:
            return self.constants[value].shape
        info = self._infos.get(value)
        if info is None or not info.type.tensor_type.HasField("shape"):
            return None
        found = [d.dim_value if d.HasField("dim_value") else d.dim_param for d in info.type.tensor_type.shape.dim]
        return None if "" in found else tuple(found)

    def spec(self, value: str) -> TensorSpec | None:
        """Return the shape and dtype of a value; None if one of them is not known, or an extent is open."""
        if value in self.constants:
            return TensorSpec(self.constants[value].shape, self.constants[value].dtype)
        dims, dtype = self.dims(value), self.dtype(value)
        if dims is None or dtype is None or any(isinstance(n, str) for n in dims):
            return None
        return TensorSpec(dims, STRING if dtype.kind in "OUS" else dtype)  # type: ignore[arg-type]

    def attributes(self, node: Any) -> dict[str, Any]:
        """Return the attributes of a node as Python values."""
        values = {each.name: self.library.helper.get_attribute_value(each) for each in node.attribute}
        return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}

    # Inside.

    def _node(self, node: Any) -> None:
        if node.domain not in ("", "ai.onnx"):
            raise OperatorError(f"operators of the domain {node.domain!r} are not read")
        constant = all(name in self.constants for name in names_read(node)) and not holds_graphs(node)
        if constant and node.op_type != "Dropout":
            self._compute(node)
            for name in set(node.output) & set(self.outputs):
                self.constants[f"{name}/constant"] = self.constants.pop(name)
                self.add("Copy", [f"{name}/constant"], [name])
            return
        self._check_types(node)
        before = len(self.net.op)
        try:
            self._translate(node)
            self._check_inferred(node, self.net.op[before:])
        except OperatorError as error:
            del self.net.op[before:]
            for name in node.output:
                self._same.pop(name, None)
            if not self._reference:
                raise
            try:
                self._run_by_onnx(node)
            except OperatorError as other:
                raise OperatorError(f"{error}; {other}") from error

    def _translate(self, node: Any) -> None:
        rule = _rules.get(node.op_type)
        if rule is None:
            raise OperatorError(f"{node.op_type} has no counterpart here")
        rule(self, node)

    def _check_types(self, node: Any) -> None:
        """Refuse a node that reads or writes what is no tensor, or elements that no blob can hold."""
        for name in (*names_read(node), *node.output):
            info = self._infos.get(name)
            if info is not None and info.type.WhichOneof("value") not in (None, "tensor_type"):
                raise OperatorError(f"{name!r} is a {info.type.WhichOneof('value')}; only tensors are read")
            dtype = self.dtype(name) if name else None
            if dtype is not None and not supported_dtype(STRING if dtype.kind in "OUS" else dtype):
                raise OperatorError(f"{name!r} holds elements of type {dtype}, which no blob can hold")

    def _check_inferred(self, node: Any, ops: Sequence[OperatorDef]) -> None:
        """Compare what operators make of a node's inputs with what ONNX says, as far as both are known.

        Raises:
            OperatorError: an operator does not take these inputs, or gives another shape or type.
        """
        specs: dict[str, TensorSpec | None] = {self.name(name): self.spec(name) for name in node.input if name}
        for op_def in ops:
            op = decode(find(op_def.type), op_def)
            known = [specs[name] if name in specs else self.spec(name) for name in op_def.input]
            inputs = [spec for spec in known if spec is not None]
            try:
                made = op.infer(*inputs) if len(inputs) == len(known) and op.static_for(*inputs) else None
            except NotImplementedError:
                made = None
            except NetError as error:
                raise OperatorError(str(error)) from error
            specs.update(zip(op_def.output, made or [None] * len(op_def.output)))
        for name in node.output:
            said, made_here = self.spec(name), specs.get(self.name(name))
            if said is not None and made_here is not None and said != made_here.plain:
                raise OperatorError(
                    f"{name!r} would have shape {made_here.shape} and type {made_here.dtype}, where ONNX says "
                    f"{said.shape} and {said.dtype}"
                )

    def _run_by_onnx(self, node: Any) -> None:
        arguments = reference_arguments(node, self._model.opset_import)
        self.add("ONNXNode", arguments["reads"], [name for name in node.output if name], **arguments)
        self._reference_nodes.add(node.op_type)

    def _compute(self, node: Any) -> None:
        """Compute a node of constants."""
        made = compute_node(self.library, node, list(self._model.opset_import), self.constants, self._left)
        for name, value in zip((name for name in node.output if name), made):
            self.constants[name] = value
            self._left -= value.size

    def _array(self, tensor: Any) -> Array:
        try:
            values: Array = self.library.numpy_helper.to_array(tensor)
        except Exception as error:  # of NumPy or onnx: other dims than data, unknown types, text that is none
            raise ParseError(
                f"ONNX model {self._graph.name!r}: constant {tensor.name!r} of dims {list(tensor.dims)} and type "
                f"{tensor.data_type} does not fit its data: {error}"
            ) from None
        return values

    def _inferred(self) -> dict[str, Any]:
        """Return what ONNX says of each value: its type and, where it is known, its shape."""
        try:
            graph = self.library.shape_inference.infer_shapes(self._model, data_prop=True).graph
        except Exception:  # a model that ONNX itself cannot follow may need none of it here
            graph = self._graph
        return {each.name: each for each in (*graph.output, *graph.value_info, *graph.input)}


def _extents(info: Any) -> tuple[int, ...]:
    return tuple(int(d.dim_value) if d.HasField("dim_value") else 1 for d in info.type.tensor_type.shape.dim)


def _is_fixed(info: Any) -> bool:
    """Whether the extents of an input are known, but for the first."""
    kind = info.type.tensor_type
    return bool(kind.HasField("shape")) and all(d.HasField("dim_value") for d in list(kind.shape.dim)[1:])


def _spec(onnx: Any, info: Any) -> TensorSpec:
    kind = info.type.tensor_type.elem_type
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))
    except KeyError:
        raise ParseError(f"ONNX model: input {info.name!r} has no type of elements that is read, got {kind}") from None
    if count_elements(_extents(info)) is None:
        raise ParseError(f"ONNX model: input {info.name!r} has the impossible shape {_extents(info)}")
    return TensorSpec(_extents(info), dtype)
