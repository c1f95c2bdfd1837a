"""Branches and loops: nets that run or not, once or many times, as a blob says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from netbuilder.graph.blob import BlobReference, blob_name
from netbuilder.graph.defuse import undefined_inputs
from netbuilder.graph.net import Net
from netbuilder.graph.rename import rename_blobs
from netbuilder.graph.scope import SEPARATOR
from netbuilder.proto import NetDef, NetError

if TYPE_CHECKING:
    from netbuilder.model.model_helper import ModelHelper

__all__ = ["cond", "loop"]

Blob = str | BlobReference


def cond(
    model: ModelHelper,
    cond_blob: Blob,
    external_blobs: Sequence[Blob],
    then_model: ModelHelper | Net,
    else_model: ModelHelper | Net | None = None,
) -> Any:
    """Run one net if a blob is true, and another one, or none, if it is not.

    Blobs that a net writes and that are not in ``external_blobs`` are its own: they cannot be read
    after it, and may have the name of a blob outside.

    Args:
        cond_blob: one bool.
        external_blobs: what the nets may read from outside, their parameters included, and what they
            write for others. What only one of them writes must be there before.
        then_model, else_model: the nets, or models whose main nets they are.

    Returns:
        References to the blobs that the nets write for others: one, a tuple of several, or None.

    Raises:
        NetError: a net reads a blob that is neither its own nor in ``external_blobs``.
        TypeError: ``external_blobs`` is no list, or a net is none.
    """
    known = _names("cond", external_blobs)
    name = model.net.NextName("cond")
    nets = {"then_net": _held(then_model, known, name + "/then")}
    if else_model is not None:
        nets["else_net"] = _held(else_model, known, name + "/else")
    writes = [set(net.external_output) for net in nets.values()]
    in_all = set.intersection(*writes) if else_model is not None else set()
    return _add(model, "If", blob_name(cond_blob), nets, kept=sorted(set.union(*writes) - in_all))


def loop(
    model: ModelHelper,
    cond_blob: Blob,
    external_blobs: Sequence[Blob],
    loop_model: ModelHelper | Net,
    cond_model: ModelHelper | Net | None = None,
) -> Any:
    """Run a net again and again, as long as a blob is true.

    Args:
        cond_blob: one bool, looked at before each run.
        external_blobs: what the nets may read from outside, and what they write for others.
        loop_model: the net, or a model whose main net it is.
        cond_model: a net that writes ``cond_blob``, run before each look at it; None: ``loop_model``
            writes it, and it is there before.

    Returns:
        References to the blobs that the nets write for others: one, a tuple of several, or None.

    Raises:
        NetError: a net reads a blob that is neither its own nor in ``external_blobs``; none writes
            ``cond_blob``, so that the loop would never end.
        TypeError: ``external_blobs`` is no list, or a net is none.
    """
    condition = blob_name(cond_blob)
    known = [*_names("loop", external_blobs), condition]
    name = model.net.NextName("loop")
    nets = {"loop_net": _held(loop_model, known, name + "/loop")}
    if cond_model is not None:
        nets["cond_net"] = _held(cond_model, known, name + "/cond")
    decides = nets.get("cond_net", nets["loop_net"])
    if condition not in decides.external_output:
        raise NetError(f"loop: net {decides.name!r} does not write the condition {condition!r}")
    return _add(model, "While", condition, nets)


def _names(helper: str, blobs: Any) -> list[str]:
    if isinstance(blobs, (str, bytes, BlobReference)) or not isinstance(blobs, Iterable):
        raise TypeError(f"{helper}: external_blobs must be a list of blobs, got {blobs!r}")
    return list(map(blob_name, blobs))


def _held(model: ModelHelper | Net, known: Iterable[str], scope: str) -> NetDef:
    """Return a copy of a net in which the blobs that are its own have names of their own."""
    if not hasattr(model, "Proto"):
        raise TypeError(f"a branch or loop is a Net, or a model that has one, got {model!r}")
    net = NetDef()
    net.CopyFrom(model.Proto())
    outside = set(known)
    reads = undefined_inputs(net.op)
    if missing := [blob for blob in reads if blob not in outside]:
        raise NetError(
            f"net {net.name!r} reads {missing}, which it does not make; add them to external_blobs, or to the net"
        )
    written = dict.fromkeys(blob for op in net.op for blob in op.output)
    net.external_input[:] = reads
    net.external_output[:] = [blob for blob in written if blob in outside]
    rename_blobs(net, {blob: scope + SEPARATOR + blob for blob in written if blob not in outside})
    return net


def _add(model: ModelHelper, op_type: str, condition: str, nets: dict[str, NetDef], kept: Iterable[str] = ()) -> Any:
    """Append the operator; ``kept`` are blobs that may be left as they were, so that it reads them."""
    reads = dict.fromkeys(blob for net in nets.values() for blob in net.external_input)
    reads.update(dict.fromkeys(kept))
    reads.pop(condition, None)  # it is the first input
    writes = dict.fromkeys(blob for net in nets.values() for blob in net.external_output)
    inputs = [BlobReference(blob) for blob in (condition, *reads)]
    return getattr(model.net, op_type)(inputs, [BlobReference(blob) for blob in writes], **nets)
