"""Operators that run a step net over a sequence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from netbuilder.caffe2.missing import names_of
from netbuilder.graph import Net
from netbuilder.model.rnn.recurrent import recurrent_net, set_rnn_executor_config
from netbuilder.ops.core.operator import decode
from netbuilder.ops.recurrent.network import RecurrentNetwork
from netbuilder.proto import OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute import default

__all__ = ["recurrent_net", "retrieve_step_blobs", "set_rnn_executor_config"]

__getattr__ = names_of(__name__)


def retrieve_step_blobs(net: Net, prefix: str = "rnn") -> list[Any]:
    """Copy what the recurrent nets of a net have kept of each step into blobs of the current workspace.

    These are the states before and after each step, the number of the step, what the backward step net reads again, and
    the present rows of the sequences. Blob ``b`` of step ``t`` goes to ``<prefix>_<b><t>``. For each recurrent net, one
    more blob, whose name begins with ``prefix``, gets the list of names.

    Args:
        net: a net with RecurrentNetwork operators, which has run; it is unchanged.
        prefix: beginning of the names.

    Returns:
        The names of the blobs, as bytes, as blobs hold strings.

    Raises:
        NetError: ``net`` has not run in the current workspace.
    """
    workspace = default.workspace()
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
