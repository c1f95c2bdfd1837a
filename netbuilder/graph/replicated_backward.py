"""The backward pass of replicas: that of the first one, with the blobs and the devices of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from netbuilder.graph.backward import BackwardPass, Gradient
from netbuilder.graph.devices import Devices
from netbuilder.graph.gradient_context import gradient_functions
from netbuilder.ops.core.contexts import Sparse
from netbuilder.ops.core.renaming import subgraphs
from netbuilder.proto import OperatorDef

__all__ = ["replicated_backward"]

Seeds = Mapping[str, Gradient | None]


def replicated_backward(
    ops: Sequence[OperatorDef],
    seeds: Seeds,
    devices: Devices,
    run: Callable[[Sequence[OperatorDef], Seeds], BackwardPass],
) -> tuple[list[OperatorDef], dict[str, Gradient]] | None:
    """Return what one backward pass over all replicas makes, although only the first replica is differentiated.

    None if that is not possible: a replica has other operators than the first one, apart from the scope of blobs and
    the device; it uses a blob of another one, or a gradient leaves it; or a gradient may depend on more than the
    operator.

    Args:
        ops: the operators of all replicas, in the order in which they run.
        seeds: loss -> its gradient.
        devices: devices of the replicas.
        run: returns the backward pass of some operators with some seeds, after its run.

    Returns:
        The operators, in the order in which a walk over all of ``ops`` makes them, and the gradient of each blob.
    """
    places = [_replica(op, devices) for op in ops]
    if None in places or None in seeds.values():
        return None
    first, *others = ([op for op, place in zip(ops, places) if place == replica] for replica in range(len(devices)))
    if not all(_is_plain(op) and _uses_blobs_of(0, op, devices) for op in first):
        return None
    scope = devices.scopes[0]
    own_seeds = {loss: gradient for loss, gradient in seeds.items() if loss.startswith(scope)}
    backward = run(first, own_seeds)
    written = (blob for op in backward.operators for blob in op.output)
    if not all(scope in blob for blobs in (written, backward.gradients) for blob in blobs):
        return None
    expected = dict(own_seeds)
    made, found = [backward.operators], [backward.gradients]
    forward, gradients = ([_Template(op, devices) for op in part] for part in (first, backward.operators))
    for replica, part in enumerate(others, 1):
        names, number = _Names(scope, devices.scopes[replica]), devices.ids[replica]
        if len(part) != len(first) or any(t.operator(names, number) != op for t, op in zip(forward, part)):
            return None
        expected.update(names.of_gradients(own_seeds))
        made.append([template.operator(names, number) for template in gradients])
        found.append(names.of_gradients(backward.gradients))
    if expected != seeds:
        return None
    return list(_in_order(places, made, backward.made_for)), _joined(seeds, found)


def _replica(op: OperatorDef, devices: Devices) -> int | None:
    """Return the replica to which an operator belongs by its first blob; None: to none of them."""
    blobs = op.output or op.input
    return devices.replica_of(blobs[0]) if blobs else None


def _is_plain(op: OperatorDef) -> bool:
    """Whether the gradient depends on the operator alone; users' functions and subgraphs may have more to them."""
    return op.type not in gradient_functions and not any(True for _ in subgraphs(op))


def _uses_blobs_of(replica: int, op: OperatorDef, devices: Devices) -> bool:
    """Whether an operator writes blobs of a replica, and reads only these and blobs outside of all replicas."""
    return all(devices.replica_of(blob) == replica for blob in op.output) and all(
        devices.replica_of(blob) in (replica, None) for blobs in (op.input, op.control_input) for blob in blobs
    )


class _Names(dict[str, str]):
    """Maps the blobs of the first replica to those of another one; names without its scope stay as they are."""

    def __init__(self, old: str, new: str) -> None:
        super().__init__()
        self.old, self.new = old, new

    def __missing__(self, name: str) -> str:
        renamed = self[name] = name.replace(self.old, self.new)
        return renamed

    def of_gradients(self, gradients: Mapping[str, Any]) -> dict[str, Gradient]:
        return {
            self[blob]: Sparse(self[gradient.indices], self[gradient.values])
            if isinstance(gradient, Sparse)
            else self[gradient]
            for blob, gradient in gradients.items()
        }


class _Template:
    """An operator of the first replica, from which those of the others are made.

    Args:
        op: the operator.
        devices: devices of the replicas.
    """

    __slots__ = ("_bare", "_controls", "_inputs", "_moves", "_outputs", "_texts")

    def __init__(self, op: OperatorDef, devices: Devices) -> None:
        self._inputs, self._outputs, self._controls = list(op.input), list(op.output), list(op.control_input)
        self._moves = op.HasField("device_option") and (
            (op.device_option.device_type, op.device_option.device_id) == (devices.device_type, devices.ids[0])
            and op.device_option.HasField("device_id")
        )
        scope = devices.scopes[0].encode()
        self._texts = [
            i for i, a in enumerate(op.arg) if scope in a.s or a.strings and any(scope in text for text in a.strings)
        ]
        self._bare = OperatorDef()
        self._bare.CopyFrom(op)
        for field in ("input", "output", "control_input"):
            self._bare.ClearField(field)

    def operator(self, names: _Names, device_id: int) -> OperatorDef:
        """Return the operator of the replica with these names on this device."""
        op = OperatorDef()
        op.CopyFrom(self._bare)
        op.input.extend([names[name] for name in self._inputs])
        op.output.extend([names[name] for name in self._outputs])
        if self._controls:
            op.control_input.extend([names[name] for name in self._controls])
        if self._moves:
            op.device_option.device_id = device_id
        for i in self._texts:
            argument, old, new = op.arg[i], names.old.encode(), names.new.encode()
            if argument.HasField("s"):
                argument.s = argument.s.replace(old, new)
            argument.strings[:] = [text.replace(old, new) for text in argument.strings]
        return op


def _in_order(
    places: Sequence[int | None], made: Sequence[Sequence[OperatorDef]], made_for: Sequence[int]
) -> Iterator[OperatorDef]:
    """Yield the gradient operators in reverse order of the forward operators, whose replicas are ``places``.

    Args:
        made: for each replica its gradient operators.
        made_for: for each of a replica's gradient operators the number of its forward operator in this replica.
    """
    left, given = Counter(places), Counter[int | None]()
    for place in reversed(places):
        assert place is not None
        left[place] -= 1
        while given[place] < len(made_for) and made_for[given[place]] == left[place]:
            yield made[place][given[place]]
            given[place] += 1


def _joined(seeds: Seeds, found: Sequence[dict[str, Gradient]]) -> dict[str, Gradient]:
    """Return the gradients of all replicas: those of the losses, then those of the last replica, and so on."""
    joined: dict[str, Gradient] = {}
    for gradients in reversed(found):
        joined.update(gradients)
    return {**{loss: joined[loss] for loss in seeds if loss in joined}, **joined}
