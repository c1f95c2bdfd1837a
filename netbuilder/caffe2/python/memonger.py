"""Rewrites nets so that blobs share memory by sharing names.

A net created by ``Workspace.create_net(net, observable="outputs")`` shares memory without these functions. They are for
nets whose blobs all stay observable, as in Caffe2, and for counting bytes. The nets that they return compute the same
bits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from netbuilder.caffe2.assignments import (
    Assignment,
    AssignmentAlgorithm,
    LiveRange,
    apply_assignments,
    apply_recurrent_blob_assignments,
    compute_assignments,
    compute_assignments_dp,
    compute_assignments_greedy,
    compute_blob_assignments,
    get_updated_ranges,
    is_compatible,
    least_memory,
    verify_assignments,
)
from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.operator_order import OperatorGraph, first_come, longest_path_first, reorder_pass
from netbuilder.caffe2.python import workspace
from netbuilder.graph.blob import blob_name
from netbuilder.graph.gradient_shares import gradient_blobs
from netbuilder.graph.message import message_of
from netbuilder.graph.scope import SEPARATOR
from netbuilder.ops.core.operator import STRING, check_arity
from netbuilder.ops.core.registry import find, is_registered
from netbuilder.passes.share_memory import best_fit, free_when_used, live_blobs, share_gradients, share_memory
from netbuilder.proto import ArgumentError, NetDef, NetError, OperatorDef, TensorProto
from netbuilder.runtime.execute import default

__all__ = [
    "AssignmentAlgorithm",
    "LiveRange",
    "Optimization",
    "Statistics",
    "apply_assignments",
    "apply_recurrent_blob_assignments",
    "blob_nbytes",
    "collect_blob_sizes",
    "compute_assignments",
    "compute_assignments_dp",
    "compute_assignments_greedy",
    "compute_blob_assignments",
    "compute_interference_graph",
    "compute_ranges",
    "compute_statistics",
    "estimate_memory_usage",
    "get_memory_usage",
    "get_updated_ranges",
    "is_compatible",
    "optimize_inference_fast",
    "optimize_inference_for_dag",
    "optimize_interference",
    "release_blobs_when_used",
    "share_grad_blobs",
    "topological_sort_traversal",
    "topological_sort_traversal_longest_path",
    "verify_assignments",
    "verify_graph_equality",
    "verify_inplace_blobs",
]

__getattr__ = names_of(__name__)


class _InterferenceGraph(OperatorGraph):
    """The dependencies between operators, with Caffe2's edges."""

    def edges(self) -> list[tuple[int, int]]:
        """Return pairs of operators, of which the second reads a blob name that the first, earlier one writes."""
        return [
            (first, second)
            for first, op in enumerate(self.ops)
            for second in range(first + 1, len(self.ops))
            if not set(op.output).isdisjoint(self.ops[second].input)
        ]


def compute_interference_graph(ops: Sequence[OperatorDef]) -> _InterferenceGraph:
    """Return the dependencies between operators: ``nodes``, ``predecessors``, ``successors`` and ``edges``."""
    return _InterferenceGraph(ops)


def topological_sort_traversal(g: OperatorGraph) -> list[int]:
    """Return the operators in their given order."""
    return first_come(g)


def topological_sort_traversal_longest_path(g: OperatorGraph) -> list[int]:
    """Return an order that runs, of the ready operators, the one with the longest chain of dependents first."""
    return longest_path_first(g)


class Optimization(NamedTuple):
    """A net that shares memory; the groups of blobs that share, as lists of (name, LiveRange); new names by old."""

    net: NetDef
    assignments: list[Assignment]
    blob_assignments: dict[str, str]


class Statistics(NamedTuple):
    """Total bytes of blobs without and with sharing."""

    baseline_nbytes: int
    optimized_nbytes: int


def share_grad_blobs(
    net: Any,
    losses: Iterable[Any],
    param_grads: Iterable[Any],
    namescope: str | Sequence[str],
    dont_share_blobs: Iterable[Any] | None = None,
    share_activations: bool = False,
    blob_shapes: Mapping[Any, Sequence[int]] | None = None,
) -> NetDef:
    """Return a net in which gradients with disjoint lifetimes share names.

    Args:
        net: a net with its gradient operators; unchanged.
        losses: its losses; they keep their names.
        param_grads: gradients of parameters; they keep their names.
        namescope: only blobs in this scope share; for several scopes, blobs within each; "": all blobs.
        dont_share_blobs: other blobs that keep their names.
        share_activations: also share activations that are read.
        blob_shapes: shapes by name, so that blobs of the same size share.

    Raises:
        NetError: the net has no gradient.
    """
    proto = message_of(net)
    gradients = gradient_blobs(proto.op)
    if not gradients:
        raise NetError(f"share_grad_blobs: net {proto.name!r} has no gradients; call AddGradientOperators first")
    keep = {blob_name(blob) for blobs in (losses, param_grads, dont_share_blobs or ()) for blob in blobs}
    sizes = {blob_name(blob): 4 * int(np.prod(shape, dtype=np.int64)) for blob, shape in (blob_shapes or {}).items()}
    scopes = [namescope] if isinstance(namescope, str) else namescope
    return share_gradients(proto, scopes, gradients, keep=keep, sizes=sizes, activations=share_activations)[0]


def optimize_inference_for_dag(net: Any, input_blobs: Iterable[Any], namescope: str = "") -> NetDef:
    """Return a net without gradients in which activations with disjoint lifetimes share names.

    Args:
        net: unchanged; blobs that are not read keep their names.
        input_blobs: the net's inputs; they keep their names.
        namescope: only blobs in this scope share.

    Raises:
        NetError: the net has gradients, or operators break their in-place rules.
    """
    proto = message_of(net)
    _refuse_gradients("optimize_inference_for_dag", proto)
    _check_operators(proto)
    prefix = namescope.rstrip(SEPARATOR)
    read = {name for op in proto.op for name in op.input}

    def may_share(name: str) -> bool:
        return name in read and (not prefix or name.startswith(prefix + SEPARATOR))

    return share_memory(proto, may_share, keep=[blob_name(blob) for blob in input_blobs], prefix=prefix)[0]


def optimize_inference_fast(net: Any, static_blobs: Iterable[Any]) -> NetDef:
    """Return a net in which blobs share names, except ``static_blobs``, external blobs and blobs that are not read."""
    return optimize_interference(net, static_blobs).net


def optimize_interference(
    net: Any,
    static_blobs: Iterable[Any],
    ordering_function: Callable[[OperatorGraph], Sequence[int]] = topological_sort_traversal,
    blob_sizes: Mapping[str, int] | None = None,
    algo: AssignmentAlgorithm = AssignmentAlgorithm.GREEDY,
) -> Optimization:
    """Return a net in which blobs share names, and the groups of blobs that share.

    The net may have gradients; ``static_blobs`` must then include those to fetch.

    Args:
        net: unchanged.
        static_blobs: blobs that keep their names, as do external blobs and those that no operator reads.
        ordering_function: called with the result of ``compute_interference_graph``; returns the indices of the
            operators in the order in which they should run.
        blob_sizes: bytes by name, see ``collect_blob_sizes``; None: count one byte per blob.
        algo: the assignment algorithm.

    Raises:
        NetError: the order breaks a dependency, or operators break their in-place rules.
        ArgumentError: ``algo`` is not an AssignmentAlgorithm.
    """
    proto = message_of(net)
    _check_operators(proto)
    if not isinstance(algo, AssignmentAlgorithm):
        raise ArgumentError(f"optimize_interference: algo must be an AssignmentAlgorithm, got {algo!r}")
    keep = [blob_name(blob) for blob in static_blobs]
    graph = compute_interference_graph(proto.op)
    proto = reorder_pass(proto, graph=graph, order=ordering_function(graph)).net
    pack = best_fit if algo is AssignmentAlgorithm.GREEDY else least_memory
    read = {name for op in proto.op for name in op.input}
    made, names = share_memory(proto, read.__contains__, keep=keep, sizes=blob_sizes, pack=pack)
    groups: dict[str, list[tuple[str, LiveRange]]] = defaultdict(list)
    for blob in live_blobs(proto.op, blob_sizes):
        size = blob.nbytes if blob_sizes is not None else 1
        groups[names.get(blob.key, blob.key)].append((blob.key, LiveRange(blob.start, blob.end, size)))
    return Optimization(made, list(groups.values()), names)


def _refuse_gradients(function: str, net: NetDef) -> None:
    for op in net.op:
        if op.is_gradient_op:
            raise NetError(
                f"{function}: net {net.name!r} must not have gradients, but has {op.type}; use share_grad_blobs "
                "for such nets, or ExtractPredictorNet to get the forward part"
            )


def _check_operators(net: NetDef) -> None:
    """Raise an error if operators break their in-place rules, which sharing of names could cause."""
    for index, op in enumerate(net.op):
        if is_registered(op.type):
            try:
                check_arity(find(op.type), op)
            except NetError as error:
                raise NetError(f"net {net.name!r}, operator {index}: {error}") from error


def release_blobs_when_used(netproto: Any, dont_free_blobs: Collection[Any], selector_fun: Any = None) -> NetDef:
    """Return a net with a Free operator after the last use of each blob that the net writes.

    Args:
        netproto: unchanged.
        dont_free_blobs: blobs to keep; external blobs are kept, too.
        selector_fun: called with a blob's name; returns whether to free it; None: free all.
    """
    return free_when_used(message_of(netproto), [blob_name(blob) for blob in dont_free_blobs], selector_fun)


def compute_ranges(linearized_ops: Sequence[Any], blob_sizes: Mapping[str, int] | None = None) -> dict[str, LiveRange]:
    """Return the lifetime of each blob that the operators write, from operator to operator."""
    return {
        blob.key: LiveRange(blob.start, blob.end, blob.nbytes if blob_sizes is not None else None)
        for blob in live_blobs(linearized_ops, blob_sizes)
    }


def get_memory_usage(assignments: Iterable[Sequence[tuple[str, LiveRange]]]) -> int:
    """Return the total bytes of blobs with sharing: each group takes the bytes of its largest blob."""
    return sum(max((live.size or 0 for _, live in group), default=0) for group in assignments)


def compute_statistics(assignments: Iterable[Sequence[tuple[str, LiveRange]]]) -> Statistics:
    """Return the total bytes of blobs without and with sharing."""
    groups = list(assignments)
    return Statistics(sum(live.size or 0 for group in groups for _, live in group), get_memory_usage(groups))


def blob_nbytes(blob: Any) -> int:
    """Return the bytes of a blob of the current workspace; 0 unless it holds a tensor of numbers."""
    spec = default.workspace().spec(blob_name(blob)) if workspace.HasBlob(blob) else None
    return 0 if spec is None or spec.dtype == STRING else spec.size * spec.dtype.itemsize


def collect_blob_sizes(net: Any) -> dict[str, int]:
    """Return the bytes, in the current workspace, of all blobs that a net reads and writes."""
    return {name: blob_nbytes(name) for op in message_of(net).op for name in (*op.input, *op.output)}


def estimate_memory_usage(
    protos: Iterable[Any], shapes: Mapping[str, Sequence[int]], types: Mapping[str, int], devicescope: Any
) -> tuple[int, dict[str, int]]:
    """Return the bytes of the blobs that nets write on a device, in total and per blob.

    Args:
        protos: the nets.
        shapes, types: see ``workspace.InferShapesAndTypes``.
        devicescope: the device; outputs of operators on others are not counted.

    Raises:
        NetError: the shape of a blob is unknown.
    """
    found: dict[str, int] = {}
    for proto in protos:
        for op in message_of(proto).op:
            here, there = op.device_option, devicescope
            if (here.device_type, here.device_id) != (there.device_type, there.device_id):
                continue
            for name in op.output:
                if name not in shapes:
                    raise NetError(f"estimate_memory_usage: `shapes` must have the shape of blob {name!r}")
                size = _ITEM_BYTES.get(types.get(name, TensorProto.FLOAT), 4)
                found[name] = size * int(np.prod(shapes[name], dtype=np.int64))
    return sum(found.values()), found


_ITEM_BYTES: dict[int, int] = {
    TensorProto.DOUBLE: 8,
    TensorProto.INT64: 8,
    TensorProto.FLOAT16: 2,
    TensorProto.INT16: 2,
    TensorProto.UINT16: 2,
    TensorProto.INT8: 1,
    TensorProto.UINT8: 1,
    TensorProto.BYTE: 1,
    TensorProto.BOOL: 1,
}


def verify_graph_equality(net_a: Any, net_b: Any) -> bool:
    """Whether two nets have the same operators with the same data flow, whatever the names of blobs.

    External inputs are not compared, as in Caffe2.
    """
    a, b = _reads(message_of(net_a)), _reads(message_of(net_b))
    return a == b


def _reads(net: NetDef) -> list[tuple[str, list[Any]]]:
    """Return for each operator its type and, for each input, the (operator, output) that wrote it, or None."""
    writer: dict[str, tuple[int, int]] = {}
    result: list[tuple[str, list[Any]]] = []
    for index, op in enumerate(net.op):
        result.append((op.type, [writer.get(name) for name in op.input]))
        writer.update({name: (index, place) for place, name in enumerate(op.output)})
    return result


def verify_inplace_blobs(net_a: Any, net_b: Any) -> bool:
    """Whether the operators of two nets have the same in-place inputs and outputs."""

    def in_place(net: NetDef) -> list[list[tuple[int, int]]]:
        return [
            [(i, j) for i, read in enumerate(op.input) for j, made in enumerate(op.output) if read == made]
            for op in net.op
        ]

    return in_place(message_of(net_a)) == in_place(message_of(net_b))
