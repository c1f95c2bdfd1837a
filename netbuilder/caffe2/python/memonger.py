"""Nets rewritten so that blobs share memory by sharing names.

Plans here share memory by themselves between blobs that cannot be observed: ``Workspace.create_net(net,
observable="outputs")``. What these functions do is for nets whose blobs all stay observable, as Caffe2's do, and for
counting. The nets they return compute the same bits.
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
    """Which operators have to run before which; its edges are Caffe2's."""

    def edges(self) -> list[tuple[int, int]]:
        """Return pairs of an operator and a later one that reads a blob of a name which the first writes."""
        return [
            (first, second)
            for first, op in enumerate(self.ops)
            for second in range(first + 1, len(self.ops))
            if not set(op.output).isdisjoint(self.ops[second].input)
        ]


def compute_interference_graph(ops: Sequence[OperatorDef]) -> _InterferenceGraph:
    """Return which operators have to run before which: ``nodes``, ``predecessors``, ``successors`` and ``edges``."""
    return _InterferenceGraph(ops)


def topological_sort_traversal(g: OperatorGraph) -> list[int]:
    """Return the operators in the order that they have."""
    return first_come(g)


def topological_sort_traversal_longest_path(g: OperatorGraph) -> list[int]:
    """Return an order in which, of operators that may run, the one comes first that most others follow in a row."""
    return longest_path_first(g)


class Optimization(NamedTuple):
    """A net that shares memory; which blobs share, as lists of (name, LiveRange); the new names by the old ones."""

    net: NetDef
    assignments: list[Assignment]
    blob_assignments: dict[str, str]


class Statistics(NamedTuple):
    """Bytes of blobs, if each has its own, and as they share."""

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
    """Return a net in which gradients that are not needed at the same time share names.

    Args:
        net: a net with its gradient operators; left unchanged.
        losses: its losses, which keep their names.
        param_grads: gradients of parameters, which do, too.
        namescope: only blobs under this scope share, or under each of these among themselves; "": all.
        dont_share_blobs: other blobs that keep their names.
        share_activations: share activations that are read, too.
        blob_shapes: shapes by name, so that blobs of one size share.

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
    """Return a net without gradients in which activations that are not needed at the same time share names.

    Args:
        net: left unchanged; blobs that are not read keep their names.
        input_blobs: what the net starts from; they keep theirs.
        namescope: only blobs under this scope share.

    Raises:
        NetError: the net has gradients, or operators overwrite what they may not.
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
    """Return a net in which blobs share names, but for ``static_blobs``, external ones and those that are not read."""
    return optimize_interference(net, static_blobs).net


def optimize_interference(
    net: Any,
    static_blobs: Iterable[Any],
    ordering_function: Callable[[OperatorGraph], Sequence[int]] = topological_sort_traversal,
    blob_sizes: Mapping[str, int] | None = None,
    algo: AssignmentAlgorithm = AssignmentAlgorithm.GREEDY,
) -> Optimization:
    """Return a net in which blobs share names, and what shares with what.

    A net with gradients may be given too; ``static_blobs`` then has those that are to be fetched.

    Args:
        net: left unchanged.
        static_blobs: blobs that keep their names, besides external ones and those that no operator reads.
        ordering_function: gets what ``compute_interference_graph`` returns, and returns the numbers of the operators
            in the order in which they are to run.
        blob_sizes: bytes by name, as of ``collect_blob_sizes``; None: each blob counts as one byte.
        algo: how blobs are assigned.

    Raises:
        NetError: operators may not run in this order, or overwrite what they may not.
        ArgumentError: there is no such algorithm.
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
                f"{function}: net {net.name!r} has gradients, as of operator {op.type}; share_grad_blobs is for such "
                "nets, and ExtractPredictorNet takes the forward part out"
            )


def _check_operators(net: NetDef) -> None:
    """Refuse operators that overwrite what they may not, or do not overwrite what they must: names decide here."""
    for index, op in enumerate(net.op):
        if is_registered(op.type):
            try:
                check_arity(find(op.type), op)
            except NetError as error:
                raise NetError(f"net {net.name!r}, operator {index}: {error}") from error


def release_blobs_when_used(netproto: Any, dont_free_blobs: Collection[Any], selector_fun: Any = None) -> NetDef:
    """Return a net with an operator Free after the last use of each blob that the net makes.

    Args:
        netproto: left unchanged.
        dont_free_blobs: blobs that stay, besides external ones.
        selector_fun: which of the others are freed, by name; None: all.
    """
    return free_when_used(message_of(netproto), [blob_name(blob) for blob in dont_free_blobs], selector_fun)


def compute_ranges(linearized_ops: Sequence[Any], blob_sizes: Mapping[str, int] | None = None) -> dict[str, LiveRange]:
    """Return from which operator to which each blob is needed that the operators make."""
    return {
        blob.key: LiveRange(blob.start, blob.end, blob.nbytes if blob_sizes is not None else None)
        for blob in live_blobs(linearized_ops, blob_sizes)
    }


def get_memory_usage(assignments: Iterable[Sequence[tuple[str, LiveRange]]]) -> int:
    """Return the bytes of blobs that share as told: of each group, those of the largest."""
    return sum(max((live.size or 0 for _, live in group), default=0) for group in assignments)


def compute_statistics(assignments: Iterable[Sequence[tuple[str, LiveRange]]]) -> Statistics:
    """Return the bytes of blobs, if each has its own, and as they share."""
    groups = list(assignments)
    return Statistics(sum(live.size or 0 for group in groups for _, live in group), get_memory_usage(groups))


def blob_nbytes(blob: Any) -> int:
    """Return the bytes of a blob of the current workspace; 0 for one that holds no tensor of numbers."""
    spec = default.workspace().spec(blob_name(blob)) if workspace.HasBlob(blob) else None
    return 0 if spec is None or spec.dtype == STRING else spec.size * spec.dtype.itemsize


def collect_blob_sizes(net: Any) -> dict[str, int]:
    """Return the bytes, in the current workspace, of all blobs that a net reads and writes."""
    return {name: blob_nbytes(name) for op in message_of(net).op for name in (*op.input, *op.output)}


def estimate_memory_usage(
    protos: Iterable[Any], shapes: Mapping[str, Sequence[int]], types: Mapping[str, int], devicescope: Any
) -> tuple[int, dict[str, int]]:
    """Return the bytes of what nets write on a device, by shapes and types, altogether and blob by blob.

    Args:
        protos: the nets.
        shapes, types: as ``workspace.InferShapesAndTypes`` gives them.
        devicescope: a device; blobs of operators on others are left out.

    Raises:
        NetError: the shape of a blob is not known.
    """
    found: dict[str, int] = {}
    for proto in protos:
        for op in message_of(proto).op:
            here, there = op.device_option, devicescope
            if (here.device_type, here.device_id) != (there.device_type, there.device_id):
                continue
            for name in op.output:
                if name not in shapes:
                    raise NetError(f"estimate_memory_usage: the shape of blob {name!r} is not in `shapes`")
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
    """Whether two nets have the same operators, and each reads what the same one has written, whatever the names.

    What comes from outside the nets is not compared, as in Caffe2.
    """
    a, b = _reads(message_of(net_a)), _reads(message_of(net_b))
    return a == b


def _reads(net: NetDef) -> list[tuple[str, list[Any]]]:
    """Return for each operator its type, and for each input which output of which operator it is, None if of none."""
    writer: dict[str, tuple[int, int]] = {}
    result: list[tuple[str, list[Any]]] = []
    for index, op in enumerate(net.op):
        result.append((op.type, [writer.get(name) for name in op.input]))
        writer.update({name: (index, place) for place, name in enumerate(op.output)})
    return result


def verify_inplace_blobs(net_a: Any, net_b: Any) -> bool:
    """Whether the operators of two nets overwrite their inputs in the same places."""

    def in_place(net: NetDef) -> list[list[tuple[int, int]]]:
        return [
            [(i, j) for i, read in enumerate(op.input) for j, made in enumerate(op.output) if read == made]
            for op in net.op
        ]

    return in_place(message_of(net_a)) == in_place(message_of(net_b))
