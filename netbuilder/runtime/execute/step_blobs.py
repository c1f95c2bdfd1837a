"""retrieve_step_blobs: the blobs of single steps of recurrent nets, after a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from netbuilder.graph.net import Net
from netbuilder.ops.core.operator import decode
from netbuilder.ops.recurrent.network import RecurrentNetwork
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime.execute.workspace import Workspace

__all__ = ["retrieve_step_blobs"]


def retrieve_step_blobs(workspace: Workspace, net: Net, prefix: str = "rnn") -> list[Any]:
    """Put what the recurrent nets of a net have kept of their steps into blobs of their own.

    These are the states before and after each step, the number of the step, what the backward step net reads again, and
    rows of the sequences, as they are now. Blob ``b`` of step ``t`` goes to ``<prefix>_<b><t>``. The names of what was
    kept are also left in a blob that begins with ``prefix``, one for each recurrent net.

    Args:
        workspace: where ``net`` has run.
        net: a net with RecurrentNetwork operators; it stays as it is.
        prefix: put before the names.

    Returns:
        The names of the blobs, as the workspace keeps strings: bytes.

    Raises:
        NetError: ``net`` has not run in ``workspace``.
    """
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
    """Yield the rows of sequences that a recurrent net reads in each step, by the step's name and its number."""
    op: Any = decode(RecurrentNetwork, op_def)
    steps = len(workspace.fetch(op.forward_inputs[0]))
    for link in op.links:
        if link.external in op.forward_inputs and workspace.has(link.external):
            sequence = workspace.fetch(link.external)
            for first in range(link.offset, min(link.offset + steps, len(sequence) - link.window + 1)):
                yield f"{link.internal}{first - link.offset}", sequence[first : first + link.window]
