"""Reader: the import of one ONNX model, node by node; and the registry of the functions that import operators."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.exchange.image_preparation import copy_texts
from netbuilder.exchange.onnx.constants import MOST_ELEMENTS, MOST_WORK, LargeConstantError, compute_node, is_cheap
from netbuilder.exchange.onnx.expansion import expanded, renamed
from netbuilder.exchange.onnx.inference import inferred_graph
from netbuilder.exchange.onnx.model_inputs import Extent, input_dtype, input_extents
from netbuilder.exchange.onnx.read_model import ReadModel
from netbuilder.exchange.onnx.reference import (
    holds_graphs,
    names_read,
    reference_arguments,
    supported_dtype,
    try_node,
)
from netbuilder.exchange.onnx.values import MOST_KNOWN, Array, UnknownExtentError, Values
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.ops.core.registry import find
from netbuilder.ops.core.shared_operators import shared_operator
from netbuilder.ops.core.signatures import Form, parsed
from netbuilder.passes.join_parts import join_parts_pass
from netbuilder.passes.net_pass import PassContext
from netbuilder.proto import DeviceError, NetDef, NetError, OperatorDef, OperatorError, ParseError
from netbuilder.proto.arguments import make_op

__all__ = ["SEQUENCES", "Reader", "reads"]

ReadRule = Callable[["Reader", Any], None]

_rules: dict[str, ReadRule] = {}

SEQUENCES = frozenset({
    "ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert",
    "SequenceLength", "SplitToSequence",
})  # fmt: skip
"""Operators on sequences of tensors, which are followed while reading."""


_MOST_INLINED = 1 << 13  # nodes of graphs inside nodes, each counted as often as it is read
_CONTROL = frozenset({"If", "Loop", "Scan"})  # their values are checked node by node


def reads(*kinds: str) -> Callable[[ReadRule], ReadRule]:
    """Decorator: register the function that imports ONNX operators of these types."""

    def add(function: ReadRule) -> ReadRule:
        for kind in kinds:
            _rules[kind] = function
        return function

    return add


class Reader(Values):
    """Import of one model.

    Attributes:
        net: the net to which operators are added.
        opset: the model's opset version.
    """

    def __init__(
        self,
        onnx: Any,
        model: Any,
        constants: dict[str, Array],
        *,
        reference: bool = True,
        training: bool = False,
        most_folded: int = MOST_ELEMENTS,
    ) -> None:
        super().__init__(onnx, model, constants)
        self._reference, self.training = reference, training
        self._reference_nodes: dict[str, list[str]] = {}
        self._dynamic_nodes: set[str] = set()
        self.opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=1)
        self.net = NetDef(name=model.graph.name or "onnx")
        copy_texts(self.net, {each.key: each.value for each in model.metadata_props})
        self._own = {name for name, value in self.constants.items() if value.dtype.kind == "f"}
        self._trained = {name for name in self._own if training and self.constants[name].ndim}
        self._most, self._elements_left = most_folded, most_folded
        self._work_left = max(MOST_WORK, most_folded)
        self._folded: dict[str, int] = {}
        self._checked: set[str] = set()
        self._computed: dict[bytes, Any] = {}
        self.outputs = tuple(output.name for output in model.graph.output)
        self._kept = set(self.outputs)  # values that must be blobs of their own
        self.sequences: dict[str, list[str]] = {}
        self._uses = Counter(name for node in self._graph.node for name in names_read(node))
        self._uses.update(self.outputs)
        self._in_net: set[str] = set()
        self._fresh = 0
        self._inlined = 0
        self._asked: tuple[Any, tuple[str, ...]] = (None, ())

    def read(self) -> ReadModel:
        """Return the imported model."""
        given = [each for each in self._graph.input if each.name not in self.constants]
        for node in self._graph.node:
            try:
                self._node(node)
                self._release(node)
            except Exception as error:
                where = f"node {node.name!r} {node.op_type} {list(node.input)} -> {list(node.output)}"
                where = f"ONNX model {self._graph.name!r}, {where}"
                if isinstance(error, (NetError, OperatorError, DeviceError)):
                    raise OperatorError(f"{where}: {error}") from error
                raise ParseError(
                    f"{where}: its attributes or constants are invalid: {type(error).__name__}: {error}"
                ) from error
        self._join_parts()
        read = {blob for op in self.net.op for blob in op.input}
        inputs = tuple(each.name for each in given if each.name in read)
        parameters = {name: value for name, value in self.constants.items() if name in read}
        self.net.external_input.extend([*inputs, *parameters])
        self.net.external_output.extend(self.outputs)
        extents = {each.name: input_extents(each) for each in given}
        dtypes = {each.name: input_dtype(self.library, each) for each in given}
        kinds = {kind: tuple(self._reference_nodes[kind]) for kind in sorted(self._reference_nodes)}
        dynamic = tuple(sorted(self._dynamic_nodes))
        trained = tuple(name for name, value in parameters.items() if name in self._own and value.ndim)
        fixed = all(isinstance(extent, int) for name in inputs for extent in extents[name] or (None,))
        return ReadModel(
            self.net, parameters, inputs, self.outputs, extents, dtypes, kinds, dynamic, trained, joined=fixed
        )

    def _join_parts(self) -> None:
        """Put LayerNorm, RMSNorm and Attention in place of their parts."""

        def extents(_: int, name: str) -> tuple[Extent, ...] | None:
            try:
                return self.extents(name)
            except UnknownExtentError:
                return None

        context = PassContext(parameters=self.constants, keep=self.outputs)
        found = join_parts_pass(self.net, context, extents=extents)
        self.net = found.net
        self.constants = found.extras["parameters"]

    # For the import functions of operators.

    def add(self, op_type: str, inputs: Sequence[str], outputs: Sequence[str], **arguments: Any) -> str:
        """Add an operator; return its first output."""
        given = {name: value for name, value in arguments.items() if value is not None}
        names = list(map(self.name, inputs))
        self._in_net.update(names)
        self.net.op.append(make_op(op_type, names, list(outputs), **given))
        return outputs[0]

    def same(self, source: str, target: str) -> None:
        """Make ``target`` another name of the value ``source``."""
        if target in self._kept:
            self.add("Copy", [source], [target])
        elif source in self.sequences:
            self.sequences[target] = self.sequences[source]
        elif source in self.constants:
            self.constants[target] = self.constants[source]
        else:
            self._same[target] = self.name(source)

    def between(self, hint: str) -> str:
        """Return an unused name for an intermediate value."""
        self._fresh += 1
        return f"{hint}/netbuilder_{self._fresh}"

    def constant(self, hint: str, value: Any) -> str:
        """Add a parameter; return its name."""
        name = self.between(hint)
        self.constants[name] = np.asarray(value)
        return name

    def attributes(self, node: Any) -> dict[str, Any]:
        """Return the attributes of a node as Python values."""
        values = {each.name: self.library.helper.get_attribute_value(each) for each in node.attribute}
        return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}

    def _reads(self, node: Any) -> tuple[str, ...]:
        """Return ``names_read(node)``, which is asked for several times in a row."""
        if self._asked[0] is not node:
            self._asked = node, names_read(node)
        return self._asked[1]

    def _node(self, node: Any) -> None:
        if node.domain not in ("", "ai.onnx"):
            raise OperatorError(f"operators of the domain {node.domain!r} are not supported")
        if self._is_constant(node):
            try:
                self._compute(node)
                return
            except LargeConstantError:
                if node.op_type not in _rules:
                    raise
        before = len(self.net.op)
        self._infer(node)
        try:
            if node.op_type not in SEQUENCES | _CONTROL:
                self._check_types(node)
            self._translate(node)
            if not self._check_inferred(node, self.net.op[before:]):
                self._check_stated(node, self.net.op[before:])
        except OperatorError as error:
            self._forget(node, before)
            if self._expand(node):
                return
            if not self._reference:
                raise
            try:
                self._check_types(node)
                self._run_by_onnx(node)
            except OperatorError as other:
                raise OperatorError(f"{error}; {other}") from error
            if isinstance(error, UnknownExtentError):
                self._dynamic_nodes.add(node.op_type)

    def _infer(self, node: Any) -> None:
        """Infer the shapes of a node's outputs of which ONNX has not even found the number of axes in the whole model.

        Such follow from what is known of its inputs by now.
        """
        outputs = [name for name in node.output if name]
        known = all(name in self._found or self._of_info(name).extents is not None for name in outputs)
        if known or node.op_type in SEQUENCES | _CONTROL:
            return
        helper, infos, tensors = self.library.helper, [], []
        for name in dict.fromkeys(filter(None, node.input)):
            form = self.form_of(name)
            if form.dtype is None or form.dtype.kind not in "fiub":
                return
            if name in self.constants and self.constants[name].size <= MOST_KNOWN:
                tensors.append(self.library.numpy_helper.from_array(np.asarray(self.constants[name]), name))
            else:
                kind = helper.np_dtype_to_tensor_dtype(form.dtype)
                infos.append(helper.make_tensor_value_info(name, kind, form.extents))
        empty = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph([node], "one", infos, empty, tensors)
        model = helper.make_model(graph, opset_imports=list(self._model.opset_import))
        for each in inferred_graph(self.library, model).output:
            if each.type.WhichOneof("value") == "tensor_type":
                self._infos[each.name] = each
                self._of_infos.pop(each.name, None)

    def _is_constant(self, node: Any) -> bool:
        """Whether a node is computed now."""
        if node.op_type in ("Shape", "Size"):
            return self._extents_as_constant(node)
        reads = self._reads(node)
        if holds_graphs(node) or node.op_type in SEQUENCES or not all(name in self.constants for name in reads):
            return False
        return self._trained.isdisjoint(reads) and is_cheap(node, [self.constants[name] for name in reads])

    def _extents_as_constant(self, node: Any) -> bool:
        """Whether the shape that a node returns is known; it becomes a constant."""
        try:
            extents = self.extents(node.input[0])
        except UnknownExtentError:
            return False
        found = self.attributes(node)
        if node.op_type == "Shape":
            extents = extents[slice(found.get("start", 0), found.get("end"))]
        return all(isinstance(extent, int) for extent in extents)

    def _forget(self, node: Any, before: int) -> None:
        """Take back what a rule has added for a node."""
        del self.net.op[before:]
        for name in node.output:
            self._same.pop(name, None)
            self._found.pop(name, None)

    def _expand(self, node: Any) -> bool:
        """Translate the nodes that ONNX defines a node by, if there are such, and all become operators."""
        graph = expanded(self.library, node, self._model.opset_import, self.spec)
        if graph is None:
            return False
        before, reference = len(self.net.op), self._reference
        self._reference = False
        try:
            for each in graph.node:
                self._node(each)
        except OperatorError:
            self._forget(node, before)
            return False
        finally:
            self._reference = reference
        return True

    def inline(self, graph: Any, arguments: Sequence[str], targets: Sequence[str]) -> None:
        """Translate a graph inside the model.

        Args:
            graph: its own values get names that no other value has.
            arguments: the values that its inputs are.
            targets: names for its outputs, "" for one that is not used.

        Raises:
            OperatorError: a node of it cannot be read; too many have been.
        """
        self._inlined += len(graph.node)
        if self._inlined > _MOST_INLINED:
            raise OperatorError(f"more than {_MOST_INLINED:,} nodes in graphs inside nodes, counting repetitions")
        prefix = self.between(next(filter(None, targets), "graph"))
        own = {name for node in graph.node for name in node.output if name} | {each.name for each in graph.initializer}
        names = dict(zip((each.name for each in graph.input), arguments)) | {name: f"{prefix}/{name}" for name in own}
        made = {name for node in graph.node for name in node.output}
        outputs = list(zip((each.name for each in graph.output), targets))
        for name, target in outputs:
            if target and name in made:
                made.remove(name)
                names[name] = target
        for each in (*graph.value_info, *graph.output):
            if each.name in own:
                self._infos.setdefault(names[each.name], each)
        self.constants |= {names[each.name]: self._array(each) for each in graph.initializer}
        for node in graph.node:
            self._node(renamed(node, names))
        for name, target in outputs:
            if target and names.get(name, name) != target:  # not computed here, or an output twice
                self.same(names.get(name, name), target)

    def read_nodes(self, nodes: Sequence[Any], node: Any) -> None:
        """Read nodes in place of one, whose inputs they read and whose outputs they make."""
        helper, infos = self.library.helper, []
        for name in dict.fromkeys(filter(None, node.input)):
            form = self.form_of(name)
            if form.dtype is not None:
                kind = helper.np_dtype_to_tensor_dtype(form.dtype)
                infos.append(helper.make_tensor_value_info(name, kind, form.extents))
        outputs = [name for name in node.output if name]
        made = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph(nodes, node.op_type, infos, made)
        model = helper.make_model(graph, opset_imports=list(self._model.opset_import))
        inferred = inferred_graph(self.library, model)  # its nodes may differ
        graph.value_info.extend(inferred.value_info)
        graph.value_info.extend(inferred.output)
        self.inline(graph, [each.name for each in infos], outputs)

    def body(self, graph: Any, arguments: Sequence[str], targets: Sequence[str], *, collected: int = 0) -> NetDef:
        """Return a net that computes a graph inside the model, with the values that it reads as external inputs.

        Args:
            arguments, targets: see ``inline``; the targets are the net's external outputs.
            collected: that many of the targets, the last ones, get a further axis of extent 1 in front.
        """
        net, outer, fixed = NetDef(name=graph.name or "graph"), self.net, len(targets) - collected
        rows = [self.between(name) for name in targets[fixed:]]
        self._kept.update(targets)
        self.net = net
        try:
            self.inline(graph, arguments, [*targets[:fixed], *rows])
            for row, target in zip(rows, targets[fixed:]):
                self.add("ExpandDims", [row], [target], dims=[0])
                self.declare(target, self.form_of(row).with_axis(1))
        finally:
            self.net = outer
        made = set[str]()
        for op in net.op:
            net.external_input.extend(n for n in op.input if n not in made and n not in net.external_input)
            made.update(op.output)
        net.external_output.extend(targets)
        return net

    def _release(self, node: Any) -> None:
        """Forget constants that nothing reads from here on."""
        for name in self._reads(node):
            self._uses[name] -= 1
            if self._uses[name] <= 0 and name not in self._in_net and name in self.constants:
                self._elements_left += self._folded.pop(name, 0)
                del self.constants[name]

    def _translate(self, node: Any) -> None:
        rule = _rules.get(node.op_type)
        if rule is None:
            raise OperatorError(f"{node.op_type} is not supported")
        rule(self, node)

    def _check_types(self, node: Any) -> None:
        """Raise OperatorError for a node with values that are not tensors, or have elements that no blob can hold."""
        for name in (*self._reads(node), *node.output):
            if name in self._checked:
                continue
            info = self._infos.get(name)
            if info is not None and info.type.WhichOneof("value") not in (None, "tensor_type"):
                raise OperatorError(f"{name!r} is a {info.type.WhichOneof('value')}; only tensors are supported")
            dtype = self.dtype(name) if name else None
            if dtype is not None and not supported_dtype(STRING if dtype.kind in "OUS" else dtype):
                raise OperatorError(f"{name!r} holds elements of type {dtype}, which no blob can hold")
            if dtype is not None:
                self._checked.add(name)

    def _check_inferred(self, node: Any, ops: Sequence[OperatorDef]) -> bool:
        """Compare the shapes and types that operators infer for a node with those of ONNX, as far as both are known.

        Returns:
            Whether the operators have inferred those of all outputs.

        Raises:
            OperatorError: an operator does not accept these inputs, or its outputs differ in shape or type.
        """
        specs: dict[str, TensorSpec | None] = {self.name(name): self.spec(name) for name in node.input if name}
        for op_def in ops:
            op = shared_operator(find(op_def.type), op_def)
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
            expected, inferred = self.spec(name), specs.get(self.name(name))
            if expected is None and inferred is not None and name:
                self._check_partly(name, inferred)
                self._found[name] = inferred.plain
            elif expected is not None and inferred is not None and expected != inferred.plain:
                raise OperatorError(
                    f"{name!r} would have shape {inferred.shape} and type {inferred.dtype}, where ONNX infers "
                    f"{expected.shape} and {expected.dtype}"
                )
        return all(specs.get(self.name(name)) is not None for name in node.output if name)

    def _check_partly(self, name: str, inferred: TensorSpec) -> None:
        """Raise OperatorError if a spec differs from what ONNX infers in part."""
        dtype = self.stated_form(name).dtype
        if dtype is not None and dtype != inferred.dtype:
            raise OperatorError(f"{name!r} would have elements of type {inferred.dtype}, where ONNX infers {dtype}")

    def _check_stated(self, node: Any, ops: Sequence[OperatorDef]) -> None:
        """Compare types and numbers of axes with those that operators state, where dynamic extents prevent inference.

        Raises:
            OperatorError: an operator does not take such inputs, or makes an output of another type.
        """
        forms: dict[str, Form] = {}
        for op_def in ops:
            stated = parsed(find(op_def.type).signature)
            if not stated.is_stated:
                continue
            inputs = [forms.get(name) or self.stated_form(name) for name in op_def.input]
            if wrong := stated.mismatch(inputs):
                raise OperatorError(f"{op_def.type}: {wrong}")
            forms.update(zip(op_def.output, stated.made(inputs, len(op_def.output))))
        for name in node.output:
            expected, found = self.stated_form(name).dtype, forms.get(self.name(name), Form()).dtype
            if expected is not None and found is not None and expected != found:
                raise OperatorError(f"{name!r} would have elements of type {found}, where ONNX infers {expected}")

    def _run_by_onnx(self, node: Any) -> None:
        arguments = reference_arguments(node, self._model.opset_import)
        specs = [self.spec(name) for name in arguments["reads"]]
        if all(spec is not None for spec in specs) and not holds_graphs(node):
            try_node(arguments, [self.constants.get(name, spec) for name, spec in zip(arguments["reads"], specs)])
        self.add("ONNXNode", arguments["reads"], [name for name in node.output if name], **arguments)
        place = node.name or next(filter(None, node.output))
        self._reference_nodes.setdefault(node.op_type, []).append(place)

    def _compute(self, node: Any) -> None:
        """Fold a node with constant inputs, or one that returns a known shape."""
        outputs = [name for name in node.output if name]
        if node.op_type in ("Shape", "Size"):
            found, extents = self.attributes(node), self.extents(node.input[0])
            wanted: Any = extents[slice(found.get("start", 0), found.get("end"))]
            if node.op_type == "Size":
                all_known: Any = extents
                wanted = math.prod(all_known)
            made: list[Array] = [np.array(wanted, np.int64)]
        else:
            self._work_left -= sum(self.constants[name].size for name in self._reads(node)) + 1024
            if self._work_left < 0:
                text = f"the constants to compute while reading are too many: over {MOST_WORK:,} elements"
                raise OperatorError(text)
            before = self._computed_before(node)
            if before is None:
                opsets, left = list(self._model.opset_import), (self._elements_left, self._most)
                made = compute_node(self.library, node, opsets, self.constants, *left)
            else:
                made = before
                self._elements_left += sum(value.size for value in made)  # which counts once
        for name, value in zip(outputs, made):
            self.constants[name] = value
            self._folded[name] = value.size
            self._elements_left -= value.size
        for name in set(outputs) & self._kept:
            self.add("Copy", [self.constant(name, self.constants.pop(name))], [name])

    def _computed_before(self, node: Any) -> list[Array] | None:
        """Return what the same node of the same constants has computed; None if there is none, or it is forgotten."""
        key = type(node)()
        key.CopyFrom(node)
        key.name, key.doc_string = "", ""
        del key.output[:]
        key.ClearField("metadata_props")
        before = self._computed.setdefault(key.SerializeToString(), node)
        made = [name for name in before.output if name]
        if before is node or not all(name in self.constants for name in made):
            self._computed[key.SerializeToString()] = node
            return None
        return [self.constants[name] for name in made]
