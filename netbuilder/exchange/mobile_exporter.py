"""A net and its parameters as a pair of nets, init net and predict net, under Caffe2's name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from netbuilder.exchange.divided import refuse_divided, rows_divided, value_in
from netbuilder.exchange.fills import fill_operator
from netbuilder.graph.blob import blob_name
from netbuilder.graph.defuse import undefined_inputs
from netbuilder.graph.message import message_of
from netbuilder.passes.extract_predictor import parameter_sources, sharded_parameters
from netbuilder.proto import BlobError, NetDef, NetError
from netbuilder.runtime.values.placeholder import PLACEHOLDER

__all__ = ["Export", "fetch_parameters"]


def Export(workspace: Any, net: Any, params: Iterable[Any]) -> tuple[NetDef, NetDef]:
    """Return the init net that fills the parameters, and the predict net.

    The init net also fills blobs that will be fed, with a zero of shape (1, 1).

    Args:
        workspace: a Workspace, or a module with ``FetchBlob``.
        net: a Net or NetDef; left unchanged.
        params: the parameters that ``net`` reads, by name or reference.

    Returns:
        The init net, without name, and the predict net; its external outputs are those that ``net`` declares, and the
        blobs that it writes and never reads.

    Raises:
        BlobError: a parameter is not in the workspace.
        ArgumentError: a parameter is not a tensor, or of a type that an init net cannot hold.
    """
    proto = message_of(net)
    values = fetch_parameters(workspace, proto, params)
    refuse_divided(values)
    predict_net = NetDef()
    predict_net.CopyFrom(proto)
    needed = dict.fromkeys(undefined_inputs(proto.op))
    known = [blob for blob in proto.external_input if blob in needed]
    predict_net.external_input[:] = list(dict.fromkeys([*known, *needed]))
    read = {blob for op in proto.op for blob in op.input}
    written = [blob for op in proto.op for blob in op.output]
    last = [blob for blob in written if blob not in read]
    predict_net.external_output[:] = list(dict.fromkeys([*proto.external_output, *last]))
    init_net = NetDef()
    init_net.op.extend(fill_operator(name, value) for name, value in values.items())
    init_net.op.extend(fill_operator(name, PLACEHOLDER) for name in predict_net.external_input if name not in values)
    return init_net, predict_net


def fetch_parameters(workspace: Any, net: NetDef, params: Iterable[Any]) -> dict[str, Any]:
    """Return the values of parameters by their names in ``net``.

    A parameter that extraction renamed is read from the blob that the net's arguments name. A table whose rows are
    divided over processes is ``Divided``.

    Raises:
        BlobError: one is not in the workspace.
    """
    if isinstance(params, (str, bytes)):
        raise NetError(f"params must be a list of blobs, got the single string {params!r}")
    if isinstance(params, Mapping):
        return {blob_name(name): np.asarray(value) for name, value in params.items()}
    fetch = getattr(workspace, "fetch", None) or getattr(workspace, "FetchBlob", None)
    if fetch is None:
        raise NetError(f"Export needs a Workspace that holds the parameters, got {workspace!r}")
    sources, (sharded, barrier) = parameter_sources(net), sharded_parameters(net)
    world: Any = np.asarray(fetch(barrier)).item() if sharded else None
    values: dict[str, Any] = {}
    for name in map(blob_name, params):
        source = sources.get(name, name)
        try:
            if name in sharded:
                values[name] = rows_divided(
                    sharded[name], workspace.spec(source), world, partial(value_in, workspace, source)
                )
            else:
                values[name] = fetch(source)
        except BlobError as error:
            called = repr(name) if name == source else f"{name!r} (blob {source!r})"
            raise BlobError(f"net {net.name!r}: parameter {called} cannot be exported: {error}") from error
    return values
