"""Branches and loops: nets that run conditionally or repeatedly, depending on a blob."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from netbuilder.graph.blob import BlobReference, blob_name
from netbuilder.graph.defuse import undefined_inputs
from netbuilder.graph.net import Net
from netbuilder.graph.scope import SEPARATOR
from netbuilder.ops.core.renaming import rename_blobs, written_blobs
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
    """Run one net if a blob is true, and another one, or none, otherwise.

    Blobs that a net writes and that are not in ``external_blobs`` are local: they cannot be read
    outside, and may have the name of a blob outside.

    Args:
        cond_blob: a bool.
        external_blobs: blobs outside that the nets may read, their parameters included, or write. Blobs that only
            one of the nets writes must exist before.
        then_model, else_model: the nets, or models whose main nets are used.

    Returns:
        References to the blobs of ``external_blobs`` that the nets write: one, a tuple of several, or None.

    Raises:
        NetError: a net reads a blob that is neither local nor in ``external_blobs``.
        TypeError: ``external_blobs`` is not a list, or a model is neither a Net nor a model.
    """
    known = _names("cond", external_blobs)
    name = _new_scope(model.net, "cond")
    nets = {"then_net": _subgraph(then_model, known, name + "/then")}
    if else_model is not None:
        nets["else_net"] = _subgraph(else_model, known, name + "/else")
    writes = [set(net.external_output) for net in nets.values()]
    always = set.intersection(*writes) if else_model is not None else set()
    return _add(model, "If", blob_name(cond_blob), nets, sometimes_written=sorted(set.union(*writes) - always))


def loop(
    model: ModelHelper,
    cond_blob: Blob,
    external_blobs: Sequence[Blob],
    loop_model: ModelHelper | Net,
    cond_model: ModelHelper | Net | None = None,
) -> Any:
    """Run a net repeatedly, while a blob is true.

    Args:
        cond_blob: a bool, tested before each run.
        external_blobs: blobs outside that the nets may read or write.
        loop_model: the net, or a model whose main net is used.
        cond_model: a net that writes ``cond_blob``, run before each test; None: ``loop_model``
            writes it, and it exists before.

    Returns:
        References to the blobs of ``external_blobs`` that the nets write: one, a tuple of several, or None.

    Raises:
        NetError: a net reads a blob that is neither local nor in ``external_blobs``; no net writes
            ``cond_blob``, so that the loop would never end.
        TypeError: ``external_blobs`` is not a list, or a model is neither a Net nor a model.
    """
    condition = blob_name(cond_blob)
    known = [*_names("loop", external_blobs), condition]
    name = _new_scope(model.net, "loop")
    nets = {"loop_net": _subgraph(loop_model, known, name + "/loop")}
    if cond_model is not None:
        nets["cond_net"] = _subgraph(cond_model, known, name + "/cond")
    writer = nets.get("cond_net", nets["loop_net"])
    if condition not in writer.external_output:
        raise NetError(f"loop: net {writer.name!r} does not write the condition {condition!r}")
    return _add(model, "While", condition, nets, sometimes_written=nets["loop_net"].external_output)


def _names(helper: str, blobs: Any) -> list[str]:
    if isinstance(blobs, (str, bytes, BlobReference)) or not isinstance(blobs, Iterable):
        raise TypeError(f"{helper}: external_blobs must be a list of blobs, got {blobs!r}")
    return list(map(blob_name, blobs))


def _new_scope(net: Net, kind: str) -> str:
    """Return a scope for the local blobs of a branch or loop that no other one of the net has."""
    return str(net.NextBlob(f"{net.Name()}/{kind}"))


def _subgraph(model: ModelHelper | Net, known: Iterable[str], scope: str) -> NetDef:
    """Return a copy of a net whose local blobs are renamed into ``scope``."""
    if not hasattr(model, "Proto"):
        raise TypeError(f"a branch or loop must be a Net or a model, got {model!r}")
    net = NetDef()
    net.CopyFrom(model.Proto())
    outside = set(known)
    reads = undefined_inputs(net.op)
    if missing := [blob for blob in reads if blob not in outside]:
        raise NetError(
            f"net {net.name!r} reads {missing} before it writes them; add them to external_blobs, or write them first"
        )
    written = dict.fromkeys(written_blobs(net.op))
    net.external_input[:] = reads
    net.external_output[:] = [blob for blob in written if blob in outside]
    rename_blobs(net, {blob: scope + SEPARATOR + blob for blob in written if blob not in outside})
    return net


def _add(
    model: ModelHelper,
    op_type: str,
    condition: str,
    nets: dict[str, NetDef],
    sometimes_written: Iterable[str] = (),
) -> Any:
    """Append the operator; blobs that are only ``sometimes_written`` are among its inputs too."""
    reads = dict.fromkeys(blob for net in nets.values() for blob in net.external_input)
    reads.update(dict.fromkeys(sometimes_written))
    reads.pop(condition, None)  # it is the first input
    writes = dict.fromkeys(blob for net in nets.values() for blob in net.external_output)
    inputs = [BlobReference(blob) for blob in (condition, *reads)]
    return getattr(model.net, op_type)(inputs, [BlobReference(blob) for blob in writes], **nets)
