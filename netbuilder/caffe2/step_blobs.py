"""Copying what recurrent nets have kept of each step into blobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from netbuilder.graph import Net
from netbuilder.ops.core.operator import decode
from netbuilder.ops.recurrent.network import RecurrentNetwork
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace

__all__ = ["retrieve_step_blobs"]


def retrieve_step_blobs(workspace: Workspace, net: Net, prefix: str = "rnn") -> list[Any]:
    """Do what ``netbuilder.caffe2.python.recurrent.retrieve_step_blobs`` does, in the given workspace."""
    found: list[Any] = []
    for op in net.Proto().op:
        if op.type == "RecurrentNetwork":
            names = str(net.NextBlob(prefix))
            fetcher = make_op("RecurrentNetworkBlobFetcher", [op.output[-1]], [names], prefix=prefix)
            workspace.run_operator_once(fetcher)
            found += workspace.fetch(names).tolist()
            for name, rows in _rows(workspace, op):
                workspace.feed(f"{prefix}_{name}", rows)
                found.append(f"{prefix}_{name}".encode())
    return found


def _rows(workspace: Workspace, op_def: OperatorDef) -> Iterator[tuple[str, Any]]:
    """Yield the rows of sequences that each step of a recurrent net reads, by the name in the step net and the step."""
    op: Any = decode(RecurrentNetwork, op_def)
    steps = len(workspace.fetch(op.forward_inputs[0]))
    for link in op.links:
        if link.external in op.forward_inputs and workspace.has(link.external):
            sequence = workspace.fetch(link.external)
            for first in range(link.offset, min(link.offset + steps, len(sequence) - link.window + 1)):
                yield f"{link.internal}{first - link.offset}", sequence[first : first + link.window]
