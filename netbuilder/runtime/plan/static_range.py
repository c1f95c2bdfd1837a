"""The first phases of a plan: shapes, up to the first operator whose shapes depend on data, and versioned values."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from netbuilder.engines.layouts import HOST, Location
from netbuilder.graph.blob import strip_prefix
from netbuilder.ops.core.instructions import Instruction, describe, infer_outputs, located
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.ops.core.registry import prepared_kernels
from netbuilder.proto import BlobError
from netbuilder.proto.suggestions import did_you_mean, similar
from netbuilder.runtime.plan.options import PlanOptions
from netbuilder.runtime.plan.runner import Runner
from netbuilder.runtime.plan.values import Node, Value
from netbuilder.runtime.values.blob import HOW_TO_FILL, Blob

__all__ = ["missing", "static_range", "values_of", "with_known"]


def missing(name: str, net: Runner) -> BlobError:
    """Return the error for an operator of a net whose input blob ``name`` has no value."""
    blob = net.find_blob(name)
    why = f"does not exist; {HOW_TO_FILL}" if blob is None else blob.why_empty()
    plain, filled = strip_prefix(name), list(net.filled_blobs())
    hidden = blob is not None and bool(blob.hidden_by)
    updated = any(name in instruction.outputs for instruction in net.program)
    replicas = [other for other in filled if strip_prefix(other) == plain != other]
    if strip_prefix(plain) != plain:
        why += (
            f"; builders run in the scope of their replica, which is added to names: call the blob "
            f"{strip_prefix(plain)!r} there, not {plain!r}"
        )
    elif plain != name and plain in filled:
        why += f" (blob {plain!r} has a value; each replica reads its part from a blob of its own, here {name!r})"
    elif plain != name and replicas and not hidden and not updated:
        why += (
            f" (blob {replicas[0]!r} has a value; each replica reads a blob of its own: feed each its part of a batch)"
        )
    elif not hidden:
        scope = name.removesuffix(plain)  # blobs of other replicas have similar names, but are not meant
        known = [o for o in [*_made_before(name, net), *filled] if o.removesuffix(strip_prefix(o)) in ("", scope)]
        parts = plain.split("/")
        outside = [scope + "/".join(parts[i:]) for i in range(1, len(parts))]
        if not updated and (found := [other for other in outside if other in known]):
            why += (
                f" (blob {found[0]!r} has a value; in a NameScope a name gets the scope's: to read that blob, pass "
                f"ScopedBlobReference({strip_prefix(found[0])!r}), which is made outside of it)"
            )
            return BlobError(f"input blob {name!r} {why}")
        near = similar(plain, map(strip_prefix, known))  # without the scope, which would make all names similar
        if updated or _is_read_beside_another(name, net):
            why += " (for a parameter: run the init net, model.param_init_net)"
        why += did_you_mean(name, [other for other in known if strip_prefix(other) in near])
    return BlobError(f"input blob {name!r} {why}")


def _is_read_beside_another(name: str, net: Runner) -> bool:
    """Whether the first operator that reads a blob has it as another input than its first one."""
    reader = next((instruction for instruction in net.program if name in instruction.inputs), None)
    return reader is not None and name in reader.inputs[1:]


def _made_before(name: str, net: Runner) -> list[str]:
    """Return the outputs of the operators before the first one that reads a blob."""
    before = itertools.takewhile(lambda instruction: name not in instruction.inputs, net.program)
    return [output for instruction in before for output in instruction.outputs]


def static_range(net: Runner, start: int, options: PlanOptions) -> tuple[list[tuple[TensorSpec, ...]], int]:
    """Return the plain specs of the outputs of the operators that a plan can hold, and the first one that it cannot."""
    known: dict[str, TensorSpec] = {}
    specs: list[tuple[TensorSpec, ...]] = []
    last_end = net.last_end(start)
    for index in range(start, last_end):
        instruction = net.program[index]
        ins = []
        for i, name in enumerate(instruction.inputs):
            spec = known.get(name)
            if spec is None and _is_missing(net, name, i, instruction):
                spec = _EMPTY
            elif spec is None:
                spec = known[name] = _blob_spec(_blob(net, name, instruction)).plain
            ins.append(spec)
        try:
            outs = infer_outputs(instruction, ins)
        except Exception as error:
            raise located(describe(net.name, instruction), error) from error
        if outs is None:
            return specs, index
        if not options.enabled("known_extents"):
            outs = tuple(with_known(spec, None) for spec in outs)
        if any(spec.dtype == STRING for spec in outs) or (
            any(spec.dtype == STRING for spec in ins)
            and not prepared_kernels(instruction.op_def.type, instruction.device[0])
        ):
            return specs, index
        specs.append(outs)
        known.update(zip(instruction.outputs, outs))
    return specs, last_end


def values_of(
    net: Runner, start: int, end: int, specs: Sequence[tuple[TensorSpec, ...]]
) -> tuple[list[Node], dict[str, Value], dict[str, Value], list[Value]]:
    """Return the operators from ``start`` to before ``end`` as nodes over versioned values.

    Returns:
        The nodes, the last version of each name, the external values by name, and all values.
    """
    last: dict[str, Value] = {}
    externals: dict[str, Value] = {}
    values: list[Value] = []
    nodes: list[Node] = []
    for index in range(start, end):
        instruction = net.program[index]
        ins = []
        for name in instruction.inputs:
            value = last.get(name)
            if value is None:
                blob = _blob(net, name, instruction)
                value = Value(name, 0, _blob_spec(blob), blob, blob.location)
                last[name] = externals[name] = value
                values.append(value)
            value.readers += 1
            ins.append(value)
        outs = []
        locations = _output_locations(instruction, ins)
        for name, spec, location in zip(instruction.outputs, specs[index - start], locations):
            before = last.get(name)
            value = Value(name, before.version + 1 if before else 0, spec.plain, None, location)
            last[name] = value
            values.append(value)
            outs.append(value)
        nodes.append(Node([instruction], ins, outs))
    return nodes, last, externals, values


def with_known(spec: TensorSpec, inferred: TensorSpec | None) -> TensorSpec:
    """Return the spec of a kernel's output with the elements that shape inference knows."""
    known = inferred.known if inferred is not None else None
    return spec if spec.known == known else dataclasses.replace(spec, known=known)


def _blob(net: Runner, name: str, instruction: Instruction) -> Blob:
    blob = net.find_blob(name)
    if blob is None or blob.is_empty:
        raise located(describe(net.name, instruction), missing(name, net))
    return blob


_EMPTY = TensorSpec((0,), np.dtype(np.float32))


def _is_missing(net: Runner, name: str, index: int, instruction: Instruction) -> bool:
    """Whether an input has no value, and the operator allows that."""
    blob = net.find_blob(name)
    return index in instruction.op.may_be_empty and blob is not None and blob.is_empty


def _blob_spec(blob: Blob) -> TensorSpec:
    return blob.spec if blob.spec is not None else TensorSpec((), STRING)


def _output_locations(instruction: Instruction, inputs: Sequence[Value]) -> list[Location]:
    """Return the locations of an operator's outputs."""
    op, count, own = instruction.op, len(instruction.outputs), instruction.location
    if op.outputs_on_host:
        return [HOST] * count
    if op.colocate_outputs_with is None or own == HOST:
        return [own] * count
    if op.colocate_outputs_with == "one-to-one":
        return [value.location for value in inputs[-count:]]
    return [inputs[op.colocate_outputs_with].location] * count
