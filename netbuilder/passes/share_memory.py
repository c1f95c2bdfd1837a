"""Memory passes: blobs that are not needed at the same time get the same name; Free operators after last uses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from netbuilder.graph.defuse import undefined_inputs
from netbuilder.graph.lifetimes import Lifetime, Slot, lifetimes, pack_into_slots
from netbuilder.graph.observability import results
from netbuilder.graph.scope import SEPARATOR
from netbuilder.ops.core.renaming import names_in_net, rename_arguments, subgraphs
from netbuilder.passes.net_pass import PassContext, PassResult, net_pass
from netbuilder.proto import NetDef, NetError, OperatorDef
from netbuilder.proto.arguments import make_op

__all__ = [
    "best_fit", "free_when_used", "free_when_used_pass", "live_blobs", "share_gradients", "share_gradients_pass",
    "share_memory", "share_memory_pass", "shared_names",
]  # fmt: skip

_PREFIX, _SUFFIX = "__m", "_shared"


Pack = Callable[[Iterable[Lifetime[str]]], list[Slot[str]]]


def live_blobs(ops: Sequence[OperatorDef], sizes: Mapping[str, int] | None = None) -> list[Lifetime[str]]:
    """Return the lifetimes of the blobs that operators write, in the order of first writes.

    Blobs that are read before they are written, that occur in subgraphs, or that operators of several
    devices use, are excluded.

    Args:
        ops: in the order in which they run.
        sizes: name -> size in bytes.
    """
    device = ((op.device_option.device_type, op.device_option.device_id) for op in ops)
    found = lifetimes((place, (*op.input, *op.output)) for place, op in zip(device, ops))
    in_subgraphs = {name for op in ops for subgraph in subgraphs(op) for name in names_in_net(subgraph)}
    fixed = in_subgraphs.union(undefined_inputs(ops))
    made = [life for name, life in found.items() if name not in fixed and life.place is not None]
    for life in made:
        life.nbytes = (sizes or {}).get(life.key, 0)
    return made


def best_fit(blobs: Iterable[Lifetime[str]]) -> list[Slot[str]]:
    """Assign blobs to slots that share memory: each to the free slot of nearest size, of equals to the fullest.

    Args:
        blobs: lifetimes, see ``live_blobs``.
    """

    def cost(slot: Slot[str], blob: Lifetime[str]) -> tuple[int, int]:
        return abs(max(life.nbytes for life in slot) - blob.nbytes), -len(slot)

    return pack_into_slots(sorted(blobs, key=lambda blob: blob.start), cost)


def shared_names(blobs: Iterable[Lifetime[str]], prefix: str = "", pack: Pack = best_fit) -> dict[str, str]:
    """Return new names of blobs, the same for those that share memory; a blob that shares with none keeps its name.

    Args:
        blobs: lifetimes, see ``live_blobs``.
        prefix: prefix of the new names.
        pack: assigns blobs to slots.
    """
    several = [slot for slot in pack(blobs) if len(slot) > 1]
    return {blob.key: f"{prefix}{_PREFIX}{number}{_SUFFIX}" for number, slot in enumerate(several) for blob in slot}


@net_pass
def share_memory_pass(
    net: NetDef, context: PassContext, *, may_share: Callable[[str], bool], prefix: str = "", pack: Pack = best_fit
) -> PassResult:
    """Give blobs that are not needed at the same time the same name. Reads ``keep`` and ``sizes``.

    The results are bitwise identical; of blobs that share a name, only the last value can be fetched. The order of
    operators is unchanged, and all executors respect the write-after-read dependencies in it.

    Args:
        may_share: whether a blob may get another name.
        prefix: name scope of the new names, without the final "/".
        pack: assigns blobs to slots that share memory.

    Returns:
        The net; extra ``names``: old name -> new name.

    Raises:
        NetError: the net has one of the new names already, because it has been through this pass.
    """
    fixed = {*net.external_input, *net.external_output, *context.keep}
    blobs = [blob for blob in live_blobs(net.op, context.sizes) if blob.key not in fixed and may_share(blob.key)]
    names = shared_names(blobs, prefix + SEPARATOR if prefix else "", pack)
    result = NetDef()
    result.CopyFrom(net)
    existing = {name for op in net.op for name in (*op.input, *op.output)}
    if clash := sorted(existing & set(names.values())):
        raise NetError(f"net {net.name!r}: shares memory already, it has blobs {clash[:3]}; run the pass only once")
    for op in result.op:
        for blobs_of_op in (op.input, op.output):
            blobs_of_op[:] = [names.get(name, name) for name in blobs_of_op]
        rename_arguments(op, names)
    return PassResult(result, {"names": names})


def share_memory(
    net: NetDef,
    may_share: Callable[[str], bool],
    *,
    keep: Collection[str] = (),
    sizes: Mapping[str, int] | None = None,
    prefix: str = "",
    pack: Pack = best_fit,
) -> tuple[NetDef, dict[str, str]]:
    """Return the net and the names of ``share_memory_pass``.

    Args:
        keep: blobs that keep their names, in addition to external inputs and outputs.
        sizes: name -> size in bytes, so that blobs of equal size share.
    """
    context = PassContext(keep=keep, sizes=sizes)
    result = share_memory_pass(net, context, may_share=may_share, prefix=prefix, pack=pack)
    return result.net, result.extras["names"]


@net_pass
def share_gradients_pass(
    net: NetDef,
    context: PassContext,
    *,
    scopes: Iterable[str],
    gradients: Collection[str],
    activations: bool = False,
) -> PassResult:
    """Give gradients that are not needed at the same time the same name. Reads ``keep`` and ``sizes``.

    Args:
        scopes: name scopes; only blobs under the same one of these scopes share; "": all blobs.
        gradients: the blobs that are gradients, see ``graph.gradient_shares.gradient_blobs``.
        activations: share activations that operators read as well, but for losses, metrics, learning rates and the
            iteration's number.

    Returns:
        The net; extra ``names``: old name -> new name.

    Raises:
        NetError: the net has been through this pass.
    """
    names: dict[str, str] = {}
    # What is fetched after a run keeps its name. Besides, a learning rate with another value's name, or computed from a
    # number that has one, would be computed after that value's last use, and the updates with it: gradients would be
    # kept until then.
    of_rates = {name for op in net.op if op.type == "LearningRate" for name in op.input}
    read = {name for op in net.op for name in op.input} - results(net) - of_rates if activations else set()
    for scope in scopes:
        prefix = scope.rstrip(SEPARATOR)

        def may_share(name: str, prefix: str = prefix) -> bool:
            inside = not prefix or name.startswith(prefix + SEPARATOR)
            return inside and (name in gradients or name in read)

        result = share_memory_pass(net, context, may_share=may_share, prefix=prefix)
        net = result.net
        names.update(result.extras["names"])
    return PassResult(net, {"names": names})


def share_gradients(
    net: NetDef,
    scopes: Iterable[str],
    gradients: Collection[str],
    *,
    keep: Collection[str] = (),
    sizes: Mapping[str, int] | None = None,
    activations: bool = False,
) -> tuple[NetDef, dict[str, str]]:
    """Return the net and the names of ``share_gradients_pass``; ``keep`` and ``sizes`` as in ``share_memory``."""
    context = PassContext(keep=keep, sizes=sizes)
    result = share_gradients_pass(net, context, scopes=scopes, gradients=gradients, activations=activations)
    return result.net, result.extras["names"]


@net_pass
def free_when_used_pass(
    net: NetDef, context: PassContext, *, selector: Callable[[str], bool] | None = None
) -> PassResult:
    """Insert an operator Free after the last use of each blob that the net writes. Reads ``keep``.

    Not freed are external inputs and outputs, blobs that are never used after they are written, and blobs with a second
    name (Alias), under which the same memory may be read.

    Args:
        selector: which of the other blobs are freed; None: all.
    """
    fixed = {*net.external_input, *net.external_output, *map(str, context.keep)}
    fixed.update(name for op in net.op if op.type == "Alias" for name in (*op.input, *op.output))
    due: dict[int, list[str]] = {}
    for blob in live_blobs(net.op):
        if blob.key not in fixed and blob.end > blob.start and (selector is None or selector(blob.key)):
            due.setdefault(blob.end, []).append(blob.key)
    result = NetDef()
    result.CopyFrom(net)
    del result.op[:]
    for index, op in enumerate(net.op):
        result.op.add().CopyFrom(op)
        for name in due.get(index, ()):
            free = make_op("Free", [name], [name])
            if op.HasField("device_option"):
                free.device_option.CopyFrom(op.device_option)
            result.op.append(free)
    return PassResult(result)


def free_when_used(net: NetDef, keep: Collection[str], selector: Callable[[str], bool] | None = None) -> NetDef:
    """Return the net of ``free_when_used_pass``; blobs in ``keep`` are not freed."""
    return free_when_used_pass(net, PassContext(keep=keep), selector=selector).net
