"""The record of replicas: which blobs of a data-parallel net are copies of one another, and which exist once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from netbuilder.graph.blob import GradientSlice
from netbuilder.graph.block_updates import BlockRule
from netbuilder.graph.devices import Devices
from netbuilder.proto import BlobError, NetDef, NetError
from netbuilder.proto.arguments import arguments, make_argument
from netbuilder.proto.call_checks import checked
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["GradientGroup", "Replicas", "World", "gradient_group", "has_record", "remove_record"]

_KEY = "replica_"
_PAIR = ":"  # between the indices and the values of a sparse gradient


@dataclass(frozen=True)
class GradientGroup:
    """The gradients of one parameter on all replicas; names are without the replicas' scopes.

    Args:
        parameter: the parameter.
        values: its gradient; if sparse, the values of its rows.
        indices: the indices of the rows of a sparse gradient; "" for a dense one.
    """

    parameter: str
    values: str
    indices: str = ""

    @property
    def is_sparse(self) -> bool:
        return bool(self.indices)

    def __str__(self) -> str:
        return f"{self.indices}{_PAIR}{self.values}" if self.is_sparse else self.values


@dataclass(frozen=True)
class World:
    """The position of this process's replicas among those of all processes that train one model.

    Args:
        size: number of replicas of all processes; 0: only those of this process.
        first_replica: index of this process's first replica among them; its other replicas follow.
        rank: rank of this process.
        common: blobs of the common worlds through which the net's operators exchange values with other processes;
            empty: they do not.
        barrier: blob of the common world of the barrier before each run of the main net; "": there is none.
    """

    size: int = 0
    first_replica: int = 0
    rank: int = 0
    common: tuple[str, ...] = ()
    barrier: str = ""

    def check(self, devices: Devices) -> None:
        """Raise NetError unless rank, first replica and devices of this process are consistent with the world size."""
        end = self.first_replica + len(devices)
        if self.rank < 0 or self.first_replica < self.rank or end > self.size:
            raise NetError(
                f"a process of rank {self.rank} with replicas {self.first_replica} to {end - 1} does not fit into a "
                f"world of {self.size} replicas, in which each process of lower rank has at least one replica"
            )


@dataclass(frozen=True)
class Replicas:
    """The record that ``Parallelize`` makes of a data-parallel net.

    Names are without the replicas' scopes, except in ``losses``, ``outside``, ``accumulated``, ``accumulated_rows`` and
    ``residuals``: ``blobs("fc_w")`` are the copies of a parameter, ``devices.scopes`` the scopes.

    Args:
        devices: one per replica.
        parameters: trained parameters of each replica, in the order in which they were created.
        computed: parameters that operators compute, such as running means.
        gradients: gradients of the parameters that have one.
        losses: for each replica the full names of its losses.
        outside: full names of the parameters created before the replicas, which exist once.
        shared: the replicas use one copy of each parameter, the first replica's.
        broadcasts_computed: the net copies the computed parameters of the first replica to the others.
        weighted_shares: each replica has a blob with the weight of its share of a batch.
        accumulate_steps: number of micro-batches whose gradients are summed before an update.
        accumulated: full names of the blobs that hold these sums.
        accumulated_rows: full names of the blobs that hold the indices and rows of sparse gradients until the update.
        shares_memory: gradients that are not needed at the same time share blobs.
        world: the replicas of all processes; by default only those of this process.
        block: the replicas train on their own, and this rule brings them together; None: gradients are exchanged.
        residuals: full names of the blobs with what this process has not given of its gradients to the other processes.
        combines_means: the net has means over the samples of all shares of a batch, whose divisors the data determine.
        step_divisors: blobs, one per replica, that are fed with the divisors of all micro-batches of a step.
        bucket_size: blob with the size of the buckets of gradients between processes, which is chosen in the first
            steps and is 0 until then; "": the size does not change.
        bucket_bytes: with ``bucket_size``, the size that the net has.
        strategy: with ``bucket_size``, the strategy of the exchange, as text.
        sharded: tables outside the replicas whose rows are divided over the processes, and what optimizers keep for
            their rows: "rows:name", with the number of all rows.
    """

    devices: Devices
    parameters: tuple[str, ...] = ()
    computed: tuple[str, ...] = ()
    gradients: tuple[GradientGroup, ...] = ()
    losses: tuple[tuple[str, ...], ...] = ()
    outside: tuple[str, ...] = ()
    shared: bool = False
    broadcasts_computed: bool = True
    weighted_shares: bool = False
    accumulate_steps: int = 1
    accumulated: tuple[str, ...] = ()
    accumulated_rows: tuple[str, ...] = ()
    shares_memory: bool = False
    world: World = World()
    block: BlockRule | None = None
    residuals: tuple[str, ...] = ()
    combines_means: bool = False
    step_divisors: tuple[str, ...] = ()
    sharded: tuple[str, ...] = ()
    bucket_size: str = ""
    bucket_bytes: int = 0
    strategy: str = ""

    def __post_init__(self) -> None:
        if not self.world.size:
            object.__setattr__(self, "world", World(len(self.devices)))
        self.world.check(self.devices)

    def __len__(self) -> int:
        """The number of replicas of this process; those of all processes are ``world.size``."""
        return len(self.devices)

    @property
    def processes(self) -> int:
        """The number of processes, each of which has as many replicas."""
        return self.world.size // len(self)

    @property
    def rows_of_sharded(self) -> dict[str, int]:
        """Full names of the blobs whose rows are divided over the processes -> the number of all rows."""
        pairs = (text.partition(_PAIR) for text in self.sharded)
        return {name: int(rows) for rows, _, name in pairs}

    @property
    def trains(self) -> bool:
        """Whether the net has a backward pass."""
        return any(self.losses)

    @property
    def reads_weights(self) -> bool:
        """Whether the net reads the weights of the replicas' shares, if they have some."""
        return self.trains or self.combines_means

    @checked()
    def blobs(self, name: str) -> tuple[str, ...]:
        """Return the copies of a blob, one per replica; for a shared parameter, the first replica's repeated."""
        copies = self.devices.copies(name)
        return copies[:1] * len(copies) if self.shared and name in self._parameter_set else copies

    @cached_property
    def _parameter_set(self) -> frozenset[str]:
        return frozenset(self.parameters)

    @property
    def shared_blobs(self) -> tuple[str, ...]:
        """Blobs of the first replica that all replicas read."""
        return tuple(self.devices.scopes[0] + name for name in self.parameters) if self.shared else ()

    @property
    def block_state(self) -> tuple[str, ...]:
        """Full names of the blobs of the block rule that training needs to resume; empty without one."""
        if self.block is None:
            return ()
        kinds = (self.block.global_name, self.block.momentum_name)
        names = [kind(name) for name in self.parameters for kind in kinds]
        names += [self.block.counter] if self.block.iterations else []
        if self.block.overlap:
            names += [*map(self.block.change_name, (*self.parameters, *self.computed)), self.block.in_flight]
        return tuple(self.devices.scopes[self.block.master] + name for name in names)

    @property
    def block_sent(self) -> tuple[str, ...]:
        """Full names of the replicas' parameters at the end of the last block; empty without an overlap."""
        if self.block is None or not self.block.overlap:
            return ()
        return tuple(scope + self.block.sent_name(name) for scope in self.devices.scopes for name in self.parameters)

    @property
    def block_residuals(self) -> tuple[str, ...]:
        """Full names of what this process has not given of the parameters' changes; empty where nothing is rounded."""
        if self.block is None or self.block.bits == 32 or self.processes == 1:
            return ()
        return tuple(self.devices.scopes[0] + self.block.residual_name(name) for name in self.parameters)

    @checked()
    def short_names(self, blobs: Iterable[Any], known: Iterable[str]) -> list[str]:
        """Return names without a replica's scope for blobs given with or without it.

        Args:
            blobs: strings or references.
            known: the valid short names.

        Raises:
            BlobError: a blob is not among them.
        """
        names = set(known)
        result = []
        for blob in blobs:
            name = str(blob)
            if name not in names:
                name = self.devices.short_name(name)
            if name not in names:
                raise BlobError(
                    f"blob {str(blob)!r}: the replicas on {self.devices} have no blob of this name; "
                    f"they have {_some(sorted(names))}"
                )
            result.append(name)
        return result

    @checked()
    def store(self, net: NetDef) -> None:
        """Write the record into the net's arguments; it replaces an earlier record."""
        found: dict[str, Any] = {
            "device_type": self.devices.device_type,
            "devices": list(self.devices.ids),
            "prefixes": list(self.devices.scopes),
            "gradients_of": [group.parameter for group in self.gradients],
            "gradients": [str(group) for group in self.gradients],
            "losses": [loss for losses in self.losses for loss in losses],
            "losses_each": [len(losses) for losses in self.losses],
        }
        found.update({} if self.world == World(len(self)) else _changed(self.world, _WORLD))
        found.update({} if self.block is None else self.block.arguments())
        found.update(_changed(self, _PLAIN))
        remove_record(net)
        net.arg.extend(make_argument(_KEY + key, value) for key, value in found.items())

    @classmethod
    @checked()
    def load(cls, net: NetDef) -> Replicas:
        """Return the record that ``store`` wrote into a net.

        Raises:
            NetError: the net has no record, or the record is damaged.
        """
        found = {name[len(_KEY) :]: value for name, value in arguments(net).items() if name.startswith(_KEY)}
        if "devices" not in found:
            raise NetError(f"net {net.name!r} has no record of replicas, because Parallelize did not make it")
        try:
            losses = iter(_texts(found["losses"]))
            return cls(
                devices=Devices(int(found["device_type"]), tuple(found["devices"])),
                gradients=tuple(map(_gradient, _texts(found["gradients_of"]), _texts(found["gradients"]))),
                losses=tuple(tuple(next(losses) for _ in range(n)) for n in found["losses_each"] or ()),
                world=World(**_read(found, World, _WORLD)),
                block=BlockRule.of_arguments(found),
                **_read(found, cls, _PLAIN),
            )
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise NetError(f"net {net.name!r}: its record of replicas is damaged: {error!r}") from error


_WORLD = {
    "size": "world_size",
    "first_replica": "first",
    "rank": "rank",
    "common": "common_worlds",
    "barrier": "barrier",
}
"""The fields of a world, and the arguments that they are stored in, unless they have their default."""

_PLAIN = {
    field.name: field.name
    for field in dataclasses.fields(Replicas)
    if field.name not in ("devices", "gradients", "losses", "world", "block")
}
"""The fields of a record that are stored as they are, likewise."""


def _changed(value: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments for those fields that have not their default."""
    fields = ((field, getattr(value, field.name)) for field in dataclasses.fields(value) if field.name in names)
    return {
        names[field.name]: list(given) if isinstance(given, tuple) else given
        for field, given in fields
        if given != field.default
    }


def _read(found: Mapping[str, Any], kind: type, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a record or a world that arguments have."""
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    return {field: _value(found[name], defaults[field]) for field, name in names.items() if name in found}


def _value(stored: Any, default: Any) -> Any:
    """Return a stored value as one of the kind of its field's default."""
    if isinstance(default, tuple):
        return _texts(stored)
    return stored.decode() if isinstance(default, str) else type(default)(stored)


def _gradient(parameter: str, text: str) -> GradientGroup:
    indices, _, values = text.rpartition(_PAIR)
    return GradientGroup(parameter, values, indices)


def _texts(stored: Any) -> tuple[str, ...]:
    return tuple(text.decode() for text in stored or ())


def _some(names: Sequence[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


@checked()
def has_record(net: NetDef) -> bool:
    """Whether ``Parallelize`` made the net and stored its record."""
    return any(argument.name == _KEY + "devices" for argument in net.arg)


def remove_record(net: NetDef) -> None:
    """Remove the record, if there is one, from the arguments of a net that is no longer data-parallel."""
    others = [argument for argument in net.arg if not argument.name.startswith(_KEY)]
    del net.arg[:]
    net.arg.extend(others)


def gradient_group(parameter: str, gradient: Any, devices: Devices) -> GradientGroup:
    """Return the group of a parameter's gradient, made from the gradient on one replica."""
    if isinstance(gradient, GradientSlice):
        values, indices = (devices.short_name(str(blob)) for blob in (gradient.values, gradient.indices))
        return GradientGroup(parameter, values, indices)
    return GradientGroup(parameter, devices.short_name(str(gradient)))
