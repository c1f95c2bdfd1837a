"""retrieve_step_blobs: the blobs of single steps of recurrent nets, after a run."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.net import Net
from netbuilder.proto.arguments import make_op
from netbuilder.runtime.workspace import Workspace

__all__ = ["retrieve_step_blobs"]


def retrieve_step_blobs(workspace: Workspace, net: Net, prefix: str = "rnn") -> list[Any]:
    """Put what the recurrent nets of a net have kept of their steps into blobs of their own.

    These are the states before and after each step, the number of the step, and what the backward step net reads
    again; rows of a sequence lie in the sequence. Blob ``b`` of step ``t`` goes to ``<prefix>_<b><t>``. The names are
    also left in a blob that begins with ``prefix``, one for each recurrent net.

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
    return found
