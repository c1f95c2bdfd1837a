"""The blobs of a model that a checkpoint holds: those of one replica, under names without its device prefix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import TypeVar

from netbuilder.model import ModelHelper
from netbuilder.ops.core.indexing import rows_of_shard
from netbuilder.parallel import GetCheckpointParams, Replicas, has_record
from netbuilder.parallel.owned_updates import owned_state
from netbuilder.proto import NetError
from netbuilder.proto.call_checks import checked
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["CheckpointBlobs", "checkpoint_blobs"]

T = TypeVar("T")


@dataclass(frozen=True)
class CheckpointBlobs:
    """The blobs of a model that a checkpoint holds.

    Args:
        names: name in the checkpoint -> blob in the workspace; for a data-parallel model, the first replica's.
        parameters: the names of parameters, trained or computed; the others are the optimizer's state.
        record: the replicas; None: the model is not data-parallel.
        owners: name -> rank of the process that alone has it.
    """

    names: dict[str, str]
    parameters: frozenset[str]
    record: Replicas | None = None
    owners: Mapping[str, int] = field(default_factory=dict)

    @property
    def divided(self) -> dict[str, int]:
        """Names of those whose rows are divided over the processes -> number of all rows."""
        rows = {} if self.record is None else self.record.rows_of_sharded
        return {name: rows[blob] for name, blob in self.names.items() if blob in rows}

    @property
    def here(self) -> dict[str, str]:
        """Name -> blob of those of which this process has something."""
        rank = 0 if self.record is None else self.record.world.rank
        return {name: blob for name, blob in self.names.items() if self.owners.get(name, rank) == rank}

    def own_rows(self, name: str, rows: int) -> slice:
        """Return which of so many rows of a blob this process has."""
        assert self.record is not None
        rank = self.record.world.rank
        if name in self.owners:
            return slice(0, rows if self.owners[name] == rank else 0)
        each = rows_of_shard(rows, self.record.processes)
        return slice(min(rank * each, rows), min((rank + 1) * each, rows))

    def replicated(self, names: Iterable[str]) -> list[str]:
        """Return those of these names for which each replica has a blob of its own, in the same order."""
        if self.record is None or len(self.record) == 1:
            return []
        stored = dict.fromkeys(names)
        once = set(self.record.parameters) if self.record.shared else set()
        of_rule = (*self.record.block_state, *self.record.block_residuals)
        once.update(map(self.record.devices.short_name, of_rule))
        replica_of = self.record.devices.replica_of
        return [
            name
            for name in stored
            if name not in once
            and name not in self.owners
            and replica_of(self.names[name]) == 0
            and not all(_name_of(name, replica) in stored for replica in range(1, len(self.record)))
        ]

    @property
    def differs_between_processes(self) -> bool:
        """Whether several processes train replicas with values of their own, by block-wise updates."""
        record = self.record
        return record is not None and record.block is not None and record.world.size > len(record)

    def over_processes(self) -> dict[str, str]:
        """Return name among the blobs of this process -> name in the checkpoint, which has those of all processes."""
        assert self.record is not None
        first, replica_of = self.record.world.first_replica, self.record.devices.replica_of
        found = {}
        for name, blob in self.names.items():
            replica = None if blob in self.record.block_state else replica_of(blob)
            short = self.record.devices.short_name(blob)
            found[name] = name if replica is None else _name_of(short, first + replica)
        return found

    def of_this_process(self, stored: Mapping[str, T]) -> dict[str, T]:
        """Return those blobs of a checkpoint that are not of other processes, by their names among those of this one.

        A checkpoint that has one replica is returned as it is.
        """
        assert self.record is not None
        own, blocks = self.over_processes(), set(self.record.block_state)
        short_name, replica_of = self.record.devices.short_name, self.record.devices.replica_of
        each = {short_name(blob) for blob in self.names.values() if replica_of(blob) == 0 and blob not in blocks}
        everywhere = {_name_of(short, number) for short in each for number in range(self.record.world.size)}
        if not everywhere.difference(each).intersection(stored):
            return dict(stored)
        rest = {name: value for name, value in stored.items() if name not in everywhere}
        return {**rest, **{name: stored[there] for name, there in own.items() if there in stored}}


@checked()
def checkpoint_blobs(model: ModelHelper) -> CheckpointBlobs:
    """Return the blobs of a model that training needs to resume.

    These are its parameters, its computed parameters, and blobs that its init net makes and its main net changes, such
    as momenta and iteration counters. For a data-parallel model, these are the first replica's, and the blobs outside
    of replicas. With block-wise updates, those of the other replicas are stored as ``replica_1/fc_w`` and so on.

    Raises:
        NetError: two blobs would get the same name.

    >>> from netbuilder.model import brew
    >>> model = ModelHelper("scorer")
    >>> _ = brew.fc(model, "data", "fc", 3, 4)
    >>> checkpoint_blobs(model).names
    {'fc_b': 'fc_b', 'fc_w': 'fc_w'}
    """
    if not has_record(model.net.Proto()):
        return _of_one_device(model)
    record = Replicas.load(model.net.Proto())
    names: dict[str, str] = {}
    for blob in sorted(map(str, GetCheckpointParams(model))):
        short = record.devices.short_name(blob)
        replica = record.devices.replica_of(blob)
        if replica and blob not in record.block_state:
            short = _name_of(short, replica)
        if short in names:
            raise NetError(
                f"model {model.name!r}: the blobs {names[short]!r} and {blob!r} would both be stored as {short!r}; "
                "rename one of them"
            )
        names[short] = blob
    parameters = {*record.parameters, *record.computed, *record.outside}
    owned = owned_state(model.param_init_net.Proto())
    owners = {name: owned[blob] for name, blob in names.items() if blob in owned}
    return CheckpointBlobs(names, frozenset(parameters.intersection(names)), record, owners)


def _name_of(name: str, replica: int) -> str:
    """Return the name in a checkpoint of a replica's blob, where each replica has values of its own."""
    return f"replica_{replica}/{name}" if replica else name


def _of_one_device(model: ModelHelper) -> CheckpointBlobs:
    parameters = {str(blob) for blob in (*model.params, *model.GetComputedParams(""))}
    made = {blob for op in model.param_init_net.Proto().op for blob in op.output}
    changed = {blob for op in model.net.Proto().op for blob in op.output if blob in made}
    return CheckpointBlobs({name: name for name in sorted(parameters | changed)}, frozenset(parameters))
