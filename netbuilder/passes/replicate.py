"""Replicas of operators: what follows from those of one replica is made once, and then under the names of the others.

Whether replicas are equal up to their scopes follows from their operators and from the record's devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from netbuilder.graph.backward import Gradient
from netbuilder.graph.blob import SHARE_MARK
from netbuilder.graph.devices import Devices
from netbuilder.graph.gradient_context import gradient_functions
from netbuilder.graph.gradients import backward_pass
from netbuilder.ops.core.contexts import Sparse
from netbuilder.ops.core.random_streams import RANDOM_FIRST_SAMPLE, RANDOM_REPLICA, RANDOM_STREAM, draws, stream_of
from netbuilder.ops.core.renaming import arguments_with_blobs, rename_in_subgraphs, subgraphs
from netbuilder.proto import DeviceOption, OperatorDef
from netbuilder.proto.arguments import set_argument
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["EqualReplicas", "Template", "draw_as", "place", "replicated_backward"]

Seeds = Mapping[str, Gradient]


class Template:
    """An operator that is made again under other names.

    Args:
        op: the operator.
    """

    __slots__ = ("_bare", "_controls", "_inputs", "_outputs", "draws", "names_more")

    def __init__(self, op: OperatorDef) -> None:
        self._inputs, self._outputs, self._controls = list(op.input), list(op.output), list(op.control_input)
        self._bare = OperatorDef()
        self._bare.CopyFrom(op)
        for field in ("input", "output", "control_input"):
            self._bare.ClearField(field)
        self.draws = draws(op)
        # Arguments or subgraphs name blobs, too.
        self.names_more = bool(op.arg) and (bool(arguments_with_blobs(op)) or any(True for _ in subgraphs(op)))

    @property
    def written(self) -> list[str]:
        """The blobs that it writes."""
        return self._outputs

    @property
    def blobs(self) -> list[str]:
        """The blobs that it reads, waits for and writes; not those that ``names_more`` is about."""
        return [*self._inputs, *self._controls, *self._outputs]

    def operator(self, names: Mapping[str, str], into: OperatorDef | None = None) -> OperatorDef:
        """Return the operator with the names that ``names`` has for its blobs, as a new message or in an empty one."""
        op = OperatorDef() if into is None else into
        op.CopyFrom(self._bare)
        renamed = names.__getitem__
        op.input.extend(map(renamed, self._inputs))
        op.output.extend(map(renamed, self._outputs))
        if self._controls:
            op.control_input.extend(map(renamed, self._controls))
        if self.names_more:
            rename_in_subgraphs(op, renamed)
        return op


def place(op: OperatorDef, device: DeviceOption) -> None:
    """Set the device of an operator and of those in its subgraphs; random seeds and other fields stay."""
    op.device_option.device_type = device.device_type
    op.device_option.device_id = device.device_id
    for subgraph in subgraphs(op):
        for inner in subgraph.op:
            place(inner, device)


def draw_as(op: OperatorDef, scope: str, replica: int, first_sample: int | None = None) -> None:
    """Let an operator, and those in its subgraphs, draw the random numbers of a replica.

    Args:
        op: changed in place.
        scope: scope of the replica, which is removed from the random streams.
        replica: number of the replica among those of all processes.
        first_sample: number of its first sample, if the replicas have different numbers of samples.
    """
    if draws(op):
        set_argument(op, RANDOM_STREAM, stream_of(op).replace(scope, ""))
        set_argument(op, RANDOM_REPLICA, replica)
        if first_sample is not None:
            set_argument(op, RANDOM_FIRST_SAMPLE, first_sample)
    for subgraph in subgraphs(op):
        for inner in subgraph.op:
            draw_as(inner, scope, replica, first_sample)


class _OfFirst(Template):
    """An operator of the first replica, of which those of the others are made."""

    __slots__ = ("moves",)

    def __init__(self, op: OperatorDef, devices: Devices) -> None:
        super().__init__(op)
        option = op.device_option
        # It runs on the replica's device; other operators run on the same device for all replicas.
        self.moves = (
            op.HasField("device_option")
            and option.HasField("device_id")
            and (option.device_type, option.device_id) == (devices.device_type, devices.ids[0])
        )


class _Names(dict[str, str]):
    """Maps the blobs of the first replica to those of another one; others stay as they are."""

    def __init__(self, devices: Devices, replica: int) -> None:
        super().__init__()
        self._old, self._new, self._device_id = devices.scopes[0], devices.scopes[replica], devices.ids[replica]

    def __missing__(self, name: str) -> str:
        mark, blob = _after_mark(name)
        renamed = self[name] = mark + self._new + blob[len(self._old) :] if blob.startswith(self._old) else name
        return renamed

    def operator(self, template: _OfFirst) -> OperatorDef:
        """Return the replica of an operator of the first replica."""
        op = template.operator(self)
        if template.moves:
            op.device_option.device_id = self._device_id
        if template.draws:
            stream = stream_of(op).replace(self._old, self._new)
            for argument in op.arg:
                if argument.name == RANDOM_STREAM:
                    argument.s = stream.encode()
        return op

    def gradients(self, gradients: Seeds) -> dict[str, Gradient]:
        """Return where the replica's gradients are, given those of the first replica."""
        return {
            self[blob]: Sparse(self[gradient.indices], self[gradient.values])
            if isinstance(gradient, Sparse)
            else self[gradient]
            for blob, gradient in gradients.items()
        }


def _after_mark(name: str) -> tuple[str, str]:
    """Return the mark of a share of a gradient, "" if it is none, and the name without it, as blobs have it."""
    return (SHARE_MARK, name[len(SHARE_MARK) :]) if name.startswith(SHARE_MARK) else ("", name)


@dataclass(frozen=True)
class EqualReplicas:
    """Replicas whose operators are those of the first one, apart from their scopes and devices.

    Each uses its own blobs and some that are outside of all replicas, which it does not write.

    Args:
        devices: devices of the replicas.
        places: for each operator of the net its replica.
        first: the operators of the first replica.
    """

    devices: Devices
    places: list[int]
    first: list[OperatorDef]

    @classmethod
    def of(cls, ops: Sequence[OperatorDef], devices: Devices) -> EqualReplicas | None:
        """Return the replicas of a net's operators; None if they are not equal."""
        parts: list[list[OperatorDef]] = [[] for _ in devices.ids]
        places: list[int] = []
        for op in ops:
            blobs = op.output or op.input
            replica = devices.replica_of(blobs[0]) if blobs else None
            if replica is None:
                return None
            parts[replica].append(op)
            places.append(replica)
        first, *others = parts
        if not all(_uses_blobs_of_first(op, devices) for op in first):
            return None
        templates = [_OfFirst(op, devices) for op in first]
        for replica, part in enumerate(others, 1):
            names = _Names(devices, replica)
            if len(part) != len(first) or any(names.operator(t) != op for t, op in zip(templates, part)):
                return None
        return cls(devices, places, first)

    def others(self) -> Iterator[_Names]:
        """Yield the names of each other replica's blobs."""
        return (_Names(self.devices, replica) for replica in range(1, len(self.devices)))


def _uses_blobs_of_first(op: OperatorDef, devices: Devices) -> bool:
    return all(devices.replica_of(blob) == 0 for blob in op.output) and all(
        devices.replica_of(blob) in (0, None) for blobs in (op.input, op.control_input) for blob in blobs
    )


def replicated_backward(
    ops: Sequence[OperatorDef], seeds: Seeds, devices: Devices
) -> tuple[list[OperatorDef], dict[str, Gradient]] | None:
    """Return what one backward pass over all replicas makes, although only the first replica is differentiated.

    Args:
        ops: the operators of all replicas, in the order in which they run.
        seeds: loss -> its gradient.
        devices: devices of the replicas.

    Returns:
        The operators, in the order in which a walk over all of ``ops`` makes them, and the gradient of each blob. None
        if the replicas or their seeds are not equal, a gradient leaves its replica, or one may depend on more than the
        operator.

    Raises:
        NetError: the operators cannot be differentiated; indices in the message are those in the first replica.
    """
    equal = EqualReplicas.of(ops, devices)
    if equal is None or not all(map(_is_plain, equal.first)):
        return None
    own_seeds = {loss: gradient for loss, gradient in seeds.items() if devices.replica_of(loss) == 0}
    expected = dict(own_seeds)
    for names in equal.others():
        expected.update(names.gradients(own_seeds))
    if expected != seeds:
        return None
    backward = backward_pass(equal.first, own_seeds)
    written = {blob for op in backward.operators for blob in op.output}
    if any(devices.replica_of(_after_mark(blob)[1]) != 0 for blob in written.union(backward.gradients)):
        return None
    templates = [_OfFirst(op, devices) for op in backward.operators]
    made, found = [backward.operators], [backward.gradients]
    for names in equal.others():
        made.append(list(map(names.operator, templates)))
        found.append(names.gradients(backward.gradients))
    return list(_in_order(equal.places, made, backward.made_for)), _joined(seeds, found)


def _is_plain(op: OperatorDef) -> bool:
    """Whether the gradient depends on the operator alone; users' functions and subgraphs may have more to them."""
    return op.type not in gradient_functions and not any(True for _ in subgraphs(op))


def _in_order(
    places: Sequence[int], made: Sequence[Sequence[OperatorDef]], made_for: Sequence[int]
) -> Iterator[OperatorDef]:
    """Yield the gradient operators in reverse order of the forward operators, whose replicas are ``places``.

    Args:
        made: for each replica its gradient operators.
        made_for: for each of a replica's gradient operators the number of its forward operator in this replica.
    """
    left, given = Counter(places), Counter[int]()
    for replica in reversed(places):
        left[replica] -= 1
        while given[replica] < len(made_for) and made_for[given[replica]] == left[replica]:
            yield made[replica][given[replica]]
            given[replica] += 1


def _joined(seeds: Iterable[str], found: Sequence[dict[str, Gradient]]) -> dict[str, Gradient]:
    """Return the gradients of all replicas: those of the losses, then those of the last replica, and so on."""
    joined: dict[str, Gradient] = {}
    for gradients in reversed(found):
        joined.update(gradients)
    return {**{loss: joined[loss] for loss in seeds if loss in joined}, **joined}
