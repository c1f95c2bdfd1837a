"""Normalization and attention that are written in parts become the operators LayerNorm, RMSNorm and Attention.

Products of channels between transpositions become products without these (``channel_products``).

Exporters write them as means, roots, products and Softmax. The rules are the tables below: terms over operators, in
which ``Square`` and kin are what can be written in several ways. What a rule replaces is read by nobody else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.graph.versions import EXTERNAL, number_versions
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.registry import find
from netbuilder.ops.core.shared_operators import shared_operator
from netbuilder.passes.channel_products import ChannelProducts
from netbuilder.passes.net_pass import PassContext, PassResult, net_pass
from netbuilder.passes.part_terms import LOW, Array, Extents, Match, parsed
from netbuilder.proto import NetDef, NetError, OperatorDef
from netbuilder.proto.arguments import arguments, make_op
from netbuilder.proto.call_checks import checked

__all__ = ["join_parts", "join_parts_pass"]

_NORMALIZATIONS = (
    ("LayerNorm", "OverRoot(Centered(x), Add(Mean(Square(Centered(x))), eps))"),
    ("LayerNorm", "OverRoot(Mul(Centered(x), g), Add(Mean(Square(Centered(x))), eps))"),
    ("RMSNorm", "OverRoot(x, Add(Mean(Square(x)), eps))"),
    ("RMSNorm", "OverRoot(Mul(x, g), Add(Mean(Square(x)), eps))"),
)
"""The normalization without scale, or with the scale ``g``, and without bias; ``Mean`` is over the last axis."""

_WEIGHTS = (
    ("nan", "Where(NE(Softmax(Add(s, m)), Softmax(Add(s, m))), 0, Softmax(Add(s, m)))"),
    ("nan", "Where(NE(Softmax(Hidden(c, s)), Softmax(Hidden(c, s))), 0, Softmax(Hidden(c, s)))"),
    ("nan", "Where(NE(Softmax(Filled(n, s)), Softmax(Filled(n, s))), 0, Softmax(Filled(n, s)))"),
    ("nan", "Where(NE(Softmax(s), Softmax(s)), 0, Softmax(s))"),
    ("unseen", "Where(c, Softmax(Where(c, s, low)), 0)"),
    ("never", "Softmax(Add(s, m))"),
    ("never", "Softmax(Hidden(c, s))"),
    ("never", "Softmax(Filled(n, s))"),
    ("never", "Softmax(s)"),
)
"""The weights of attention by scores ``s``, with ``Attention.zero_weights``.

``m`` is added, ``c`` is true where a query sees a key, ``n`` where it does not. ``Hidden`` and ``Filled`` are ``Where``
with what a mask hides at -infinity, or so low that it has no weight.
"""

_ROOTS = frozenset({"Sqrt", "Rsqrt", "Reciprocal", "Pow", "Div"})
"""What an operator reads one of if it ends a normalization."""


@checked()
def join_parts(
    net: Any,
    parameters: Mapping[str, Any],
    specs: Mapping[str, TensorSpec],
    *,
    keep: Collection[str] = (),
    open_batch: bool = False,
) -> tuple[NetDef, dict[str, Any]]:
    """Return a net with LayerNorm, RMSNorm and Attention in place of their parts, and the parameters that it needs.

    See ``join_parts_pass``; ``net``, a Net or NetDef, and ``parameters`` are not changed. Call it before
    ``AddGradientOperators``, since operators of the backward pass read the parts.

    Args:
        parameters: values of constants by name.
        specs: of the inputs.
        keep: blobs that must stay, besides the net's external outputs.
        open_batch: the first extents of the inputs may be others when the net runs.
    """
    arrays = {name: np.asarray(value) for name, value in parameters.items()}
    result = join_parts_pass(
        net, PassContext(parameters=arrays, keep=keep), extents=_Extents(net, arrays, specs, open_batch)
    )
    return result.net, result.extras["parameters"]


@net_pass
def join_parts_pass(net: NetDef, context: PassContext, *, extents: Callable[[int, str], Extents | None]) -> PassResult:
    """Replace normalization and attention in parts by one operator each. Reads ``parameters`` and ``keep``.

    Args:
        extents: of a value, given by its number (``graph.versions``) and name; None if its axes are not known.

    Returns:
        The net; extra ``parameters``: those given and further ones that it needs.
    """
    result = NetDef()
    result.CopyFrom(net)
    joining = _Joining(net, context, extents)
    ops = joining.run()
    if joining.joined:
        del result.op[:]
        result.op.extend(ops)
        result.external_input.extend(joining.added)
    return PassResult(result, {"parameters": {**context.parameters, **joining.added}})


class _Extents:
    """The extents of a net's values, inferred when they are first asked for."""

    def __init__(
        self, net: Any, parameters: Mapping[str, Array], specs: Mapping[str, TensorSpec], open_batch: bool
    ) -> None:
        self._net, self._parameters, self._specs, self._open = net, parameters, specs, open_batch
        self._found: list[Extents | None] | None = None

    def __call__(self, value: int, name: str) -> Extents | None:
        if self._found is None:
            ops = getattr(self._net, "Proto", lambda: self._net)().op
            self._found = self._inferred(ops, 1)
            if self._open:
                self._found = [self._merged(a, b) for a, b in zip(self._found, self._inferred(ops, 3))]
        return self._found[value]

    def _inferred(self, ops: Sequence[OperatorDef], factor: int) -> list[Extents | None]:
        """Return the extents with batches that are ``factor`` times as large as stated."""
        versions = number_versions(ops)
        specs: list[TensorSpec | None] = [None] * len(versions.names)
        for name, spec in self._specs.items():
            if name in versions.names and spec.ndim:
                shape = (factor * spec.shape[0], *spec.shape[1:])
                specs[versions.names.index(name)] = TensorSpec(shape, spec.dtype)
        for value, (name, version) in enumerate(zip(versions.names, versions.versions)):
            if version == 0 and versions.writers[value] == EXTERNAL and name in self._parameters:
                specs[value] = TensorSpec(self._parameters[name].shape, self._parameters[name].dtype)
        for index, op_def in enumerate(ops):
            given = [specs[value] for value in versions.inputs[index]]
            known = [spec for spec in given if spec is not None]
            try:
                op = shared_operator(find(op_def.type), op_def)
                made = op.infer(*known) if len(known) == len(given) and op.static_for(*known) else ()
            except (NetError, NotImplementedError):
                made = ()
            for value, spec in zip(versions.outputs[index], made):
                specs[value] = spec.plain
        return [None if spec is None else spec.shape for spec in specs]

    @staticmethod
    def _merged(one: Extents | None, other: Extents | None) -> Extents | None:
        if one is None or other is None or len(one) != len(other):
            return None
        return tuple(a if a == b else (a, b) for a, b in zip(one, other))


class _Joining(ChannelProducts):
    """The replacement of parts in one net."""

    @property
    def joined(self) -> bool:
        return bool(self._replaced)

    def run(self) -> list[OperatorDef]:
        """Return the operators of the new net."""
        for index, op in enumerate(self._ops):
            if index in self._gone or index in self._replaced:
                continue
            if op.type in ("BatchMatMul", "MatMul"):
                self._attention(index)
            elif op.type in ("Div", "Mul") and not _ROOTS.isdisjoint(self._made_by(index)):
                self._normalization(index)
            elif op.type == "Transpose":
                self._channel_product(index)
        found: list[OperatorDef] = []
        for index, op in enumerate(self._ops):
            found += self._replaced.get(index, [] if index in self._gone else [op])
        return found

    # Normalization

    def _normalization(self, index: int) -> None:
        value = self._versions.outputs[index][0]
        for kind, term in _TERMS_OF_NORMALIZATIONS:
            for match in self._find(term, value, Match({}, frozenset())):
                eps, x = self._constant(match.values["eps"]), match.values["x"]
                if (
                    eps is not None
                    and eps >= 0
                    and not isinstance(x, float)
                    and self._normalize(kind, match, index, eps)
                ):
                    return

    def _normalize(self, kind: str, match: Match, core: int, eps: float) -> bool:
        """Replace a normalization, and the scale and the bias after it, if there are."""
        x, ops, root = match.values["x"], set(match.ops), core
        extents = self._extents(x)
        if extents is None or not extents or not isinstance(extents[-1], int):
            return False
        scale = match.values.get("g")
        if scale is not None and (isinstance(scale, float) or not self._is_row(scale, extents)):
            return False
        affine = [] if scale is None else [self._versions.names[scale]]
        for op_type in ("Mul", "Add")[len(affine) :]:
            after = self._reader(self._versions.outputs[root][0])
            other = None if after is None else self._row_of(after, op_type, self._versions.outputs[root][0], extents)
            if after is None or other is None or not self._is_own({*ops, after}, after):
                break
            ops.add(after)
            affine.append(self._versions.names[other])
            root = after
        names = self._versions.names
        inputs = [x, *(v for i in ops for v in self._versions.inputs[i] if names[v] in affine)]
        if not self._is_own(ops, root) or not all(self._lives(v, root) for v in inputs):
            return False
        x_name, y = names[x], self._ops[root].output[0]
        dtype = next((v.dtype for v in (self._constants.get(a) for a in affine) if isinstance(v, np.ndarray)), None)
        if kind == "RMSNorm" and not affine or len(affine) < 2 and affine and dtype is None:
            return False
        if len(affine) == 1:
            affine.append(self._parameter(f"{y}_zeros", np.zeros(extents[-1], dtype)))
        if kind == "LayerNorm":
            outputs = [y, self._fresh(f"{y}_mean"), self._fresh(f"{y}_std")]
            more: dict[str, Any] = {"elementwise_affine": 1} if affine else {}
            made = make_op(kind, [x_name, *affine], outputs, axis=len(extents) - 1, epsilon=eps, **more)
        else:
            made = make_op(kind, [x_name, *affine], [y, self._fresh(f"{y}_rrms")], axis=len(extents) - 1, eps=eps)
        self._replace(ops, root, [made])
        return True

    def _row_of(self, index: int, op_type: str, value: int, extents: Extents) -> int | None:
        """Return the other operand of an operator, if it is one row of as many elements as the last axis has."""
        operation = self._operation(index)
        if operation is None or operation[0] != op_type or len(operation[1]) != 2:
            return None
        others = [operand for operand in operation[1] if operand != value]
        if len(others) != 1 or isinstance(others[0], float):
            return None
        return others[0] if self._is_row(others[0], extents) else None

    def _is_row(self, value: int, extents: Extents) -> bool:
        """Whether a value is one row of as many elements as the last axis has."""
        return self._extents(value) == (extents[-1],)

    # Attention

    def _attention(self, index: int) -> None:
        if not self._is_product(index):
            return
        weights, v = self._versions.inputs[index]
        if self._versions.writers[weights] == EXTERNAL:
            return
        start = Match({}, frozenset())
        writer = self._versions.writers[weights]
        if self._ops[writer].type == "Where" and self._is_false(self._versions.inputs[writer][0]):
            weights, start = self._versions.inputs[writer][2], Match({}, frozenset({writer}))
        for zero, term in _TERMS_OF_WEIGHTS:
            for match in self._find(term, weights, start):
                if not isinstance(match.values["s"], float) and self._attend(index, match, zero, v):
                    return

    def _is_false(self, value: int) -> bool:
        """Whether a value is a constant without any true element."""
        given = self._constants.get(self._versions.names[value])
        return isinstance(given, np.ndarray) and not given.any()

    def _is_product(self, index: int) -> bool:
        op = self._ops[index]
        given = arguments(op)
        return op.type == "BatchMatMul" and len(op.input) == 2 and not given.get("trans_a") and not given.get("trans_b")

    def _unscaled(self, value: int, own: Callable[[int], bool]) -> tuple[int, float, list[int]]:
        """Return what a value is without multiplications by numbers, their factor, and the operators that make them."""
        factor, ops = 1.0, list[int]()
        while (index := self._versions.writers[value]) != EXTERNAL and own(value):
            operation = self._operation(index)
            if operation is None or operation[0] not in ("Mul", "Div") or len(operation[1]) != 2:
                break
            x, c = operation[1]
            if operation[0] == "Mul" and self._constant(c) is None:
                x, c = c, x
            number = self._constant(c)
            if number is None or isinstance(x, float) or not math.isfinite(number) or number <= 0:
                break
            factor *= number if operation[0] == "Mul" else 1 / number
            value = x
            ops.append(index)
        return value, factor, ops

    def _attend(self, root: int, match: Match, zero: str, v: int) -> bool:
        scores, scale, scaling = self._unscaled(match.values["s"], lambda _: True)
        product = self._versions.writers[scores]
        if product == EXTERNAL or self._ops[product].type != "BatchMatMul" or len(self._ops[product].input) != 2:
            return False
        ops = {root, product, *match.ops, *scaling}
        given = arguments(self._ops[product])
        if given.get("trans_a") or not self._is_own(ops, root):
            return False
        low = match.values.get("low")
        if low is not None and ((number := self._constant(low)) is None or number > LOW):
            return False
        q, keys = self._versions.inputs[product]
        q, of_q, before_q = self._unscaled(q, lambda value: self._reader(value) is not None)
        keys, of_k, before_k = self._unscaled(keys, lambda value: True)
        chain = [*before_q, *before_k]
        heads = self._extents(q)
        if heads is None or len(heads) not in (3, 4) or None in heads:
            return False
        made: list[OperatorDef] = []
        key_name, of_key, factor = self._keys(keys, bool(given.get("trans_b")), heads, made, chain)
        value_name, of_value = self._grouped(v, heads, chain)
        if of_key is None or of_value is None or of_key[1:-1] != of_value[1:-1] or None in (*of_key, *of_value):
            if len(heads) == 3 or of_key is None:
                return False
            value_name, of_value = self._versions.names[v], self._extents(v)
            made.clear()
            key_name, of_key, factor = self._keys(keys, bool(given.get("trans_b")), heads, made, chain, grouped=False)
        if of_key is None or of_value is None or not self._fits(heads, of_key, of_value):
            return False
        mask = next((match.values[name] for name in "mcn" if name in match.values), None)
        if mask is not None and not self._fits_mask(mask, (*heads[:-1], of_key[-2])):
            return False
        read = [q, *([] if mask is None else [mask])]
        if not all(self._lives(value, root) for value in read):
            return False
        if not all(self._lives_by_name(op.input[0] if op.type == "Transpose" else "", root) for op in made):
            return False
        if not all(self._lives_by_name(n, root) for n in (key_name, value_name) if n in self._versions.last):
            return False
        mask_name = None if mask is None else self._versions.names[mask]
        if "n" in match.values:
            made.append(make_op("Not", [mask_name], [self._fresh(f"{mask_name}_seen")]))
            mask_name = made[-1].output[0]
        options = {"scale": scale * of_q * of_k * factor, "zero_weights": zero}
        if "m" not in match.values:
            options["mask_gradient"] = 0
        inputs = [self._versions.names[q], key_name, value_name]
        self._write_attention(root, ops, chain, made, inputs, mask_name, options, len(heads))
        return True

    def _lives_by_name(self, name: str, root: int) -> bool:
        """Whether a blob has the same value until an operator runs as at the end; "" stands for none."""
        if not name:
            return True
        writers = [self._versions.writers[v] for v, other in enumerate(self._versions.names) if other == name]
        return name not in self._inside and len(writers) == 1

    def _fits(self, q: Extents, k: Extents, v: Extents) -> bool:
        if None in (*q, *k, *v) or not len(q) == len(k) == len(v):
            return False
        groups = q[-3] == k[-3] or isinstance(q[-3], int) and isinstance(k[-3], int) and k[-3] and not q[-3] % k[-3]
        return bool(groups) and q[:-3] == k[:-3] and q[-1] == k[-1] and k[:-1] == v[:-1]

    def _fits_mask(self, mask: Any, scores: Extents) -> bool:
        extents = None if isinstance(mask, float) else self._extents(mask)
        if extents is None or len(extents) > len(scores):
            return False
        return all(a == 1 or a is not None and a == b for a, b in zip(extents[::-1], scores[::-1]))

    def _keys(
        self, keys: int, transposed: bool, heads: Extents, made: list[OperatorDef], chain: list[int], *,
        grouped: bool = True,
    ) -> tuple[str, Extents | None, float]:  # fmt: skip
        """Return the blob of the keys, (N, G, S, D), its extents, and a factor of the scores."""
        if transposed:
            name, extents = (
                self._grouped(keys, heads, chain) if grouped else (self._versions.names[keys], self._extents(keys))
            )
            return name, extents, 1.0
        rank, extents = len(heads), self._extents(keys)
        if extents is None or len(extents) != rank:
            return "", None, 1.0
        wanted = (*extents[:-2], extents[-1], extents[-2])
        source = self._before_swap(keys, wanted, chain)
        if source is not None:
            value, factor, more = self._unscaled(source, lambda value: True)
            chain += more
            if grouped:
                name, found = self._grouped(value, heads, chain)
            else:
                name, found = self._versions.names[value], self._extents(value)
            if found is not None and found[-2:] == wanted[-2:]:
                return name, found, factor
        name = self._fresh(f"{self._versions.names[keys]}_keys")
        axes = [*range(rank - 2), rank - 1, rank - 2]
        index, source_name = self._versions.writers[keys], self._versions.names[keys]
        if (
            index != EXTERNAL
            and self._ops[index].type == "Transpose"
            and (before := arguments(self._ops[index]).get("axes"))
        ):
            chain.append(index)
            axes, source_name = [before[axis] for axis in axes], self._ops[index].input[0]
        made.append(make_op("Transpose", [source_name], [name], axes=axes))
        return name, wanted, 1.0

    def _before_swap(self, keys: int, wanted: Extents, chain: list[int]) -> int | None:
        """Return the value that a transposition of the last two axes, alone or between two Reshapes, has turned."""
        value, rank, seen = keys, len(wanted), list[int]()
        index = self._versions.writers[value]
        if index != EXTERNAL and self._ops[index].type == "Reshape":
            seen.append(index)
            value = self._versions.inputs[index][0]
            index = self._versions.writers[value]
        if index == EXTERNAL or self._ops[index].type != "Transpose":
            return None
        extents, axes = self._extents(value), arguments(self._ops[index]).get("axes")
        n = len(extents or ())
        if axes != [*range(n - 2), n - 1, n - 2] or extents is None or extents[-2:] != (wanted[-1], wanted[-2]):
            return None
        seen.append(index)
        value = self._versions.inputs[index][0]
        before = self._versions.writers[value]
        if seen[0] != index and before != EXTERNAL and self._ops[before].type == "Reshape":
            seen.append(before)
            value = self._versions.inputs[before][0]
        found = self._extents(value)
        if found is None or (found != wanted and not self._is_repeated(value, wanted)) or len(wanted) != rank:
            return None
        chain += seen
        return value

    def _is_repeated(self, value: int, wanted: Extents) -> bool:
        """Whether a value with its axes in other groups would be (N, G, R, S, D), made by Expand."""
        found = self._extents(value)
        return (
            found is not None
            and len(found) == 5
            and len(wanted) == 4
            and all(isinstance(n, int) for n in found[1:3])
            and (found[0], found[1] * found[2], *found[3:]) == wanted
        )

    def _grouped(self, value: int, heads: Extents, chain: list[int]) -> tuple[str, Extents | None]:
        """Return keys or values without the repetition for the heads of a group."""
        names, start, extents = self._versions.names, value, self._extents(value)
        index, seen = self._versions.writers[value], list[int]()
        if len(heads) == 4 and index != EXTERNAL and self._ops[index].type == "Reshape" and extents is not None:
            inner = self._versions.inputs[index][0]
            if self._is_repeated(inner, extents):
                seen.append(index)
                value, index = inner, self._versions.writers[inner]
        five = self._extents(value)
        if five is None or len(five) != 5 or index == EXTERNAL or self._ops[index].type != "Expand":
            return names[start], extents
        seen.append(index)
        source = self._versions.inputs[index][0]
        index = self._versions.writers[source]
        if self._extents(source) != (*five[:2], 1, *five[3:]) or index == EXTERNAL:
            return names[start], extents
        inner = self._versions.inputs[index][0]
        if self._ops[index].type not in ("ExpandDims", "Reshape") or self._extents(inner) != (*five[:2], *five[3:]):
            return names[start], extents
        chain += [*seen, index]
        return names[inner], self._extents(inner)

    def _write_attention(
        self, root: int, ops: set[int], chain: Sequence[int], made: list[OperatorDef], inputs: list[str],
        mask: str | None, options: Mapping[str, Any], rank: int,
    ) -> None:  # fmt: skip
        names, y = self._versions.names, self._ops[root].output[0]
        output = y
        if rank == 3:
            wide = [self._fresh(f"{name}_wide") for name in inputs]
            made += [make_op("ExpandDims", [a], [b], dims=[0]) for a, b in zip(inputs, wide)]
            inputs, output = wide, self._fresh(f"{y}_wide")
        if mask is not None:
            inputs = [*inputs, mask]
        made.append(make_op("Attention", inputs, [output], **options))
        if rank == 3:
            made.append(make_op("Squeeze", [output], [y], dims=[0]))
        self._replace(ops, root, made)
        read = {name for op in made for name in op.input}
        for index in sorted(set(chain), reverse=True):  # readers come before what they read
            outputs = self._versions.outputs[index]
            unread = all(set(self._versions.readers[v]) <= self._gone | {root} for v in outputs)
            if unread and not any(self._is_observed(v) or names[v] in read for v in outputs):
                self._gone.add(index)


_TERMS_OF_NORMALIZATIONS = tuple((kind, parsed(text)) for kind, text in _NORMALIZATIONS)
_TERMS_OF_WEIGHTS = tuple((zero, parsed(text)) for zero, text in _WEIGHTS)
