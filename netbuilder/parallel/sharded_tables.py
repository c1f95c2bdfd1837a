"""Tables outside the replicas whose rows are divided over the processes: lookups, gradients and updates."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence

from netbuilder.graph.blob import BlobReference, GradientSlice
from netbuilder.graph.replicas import Replicas
from netbuilder.graph.shapes import infer_shapes
from netbuilder.model import ModelHelper
from netbuilder.ops.core.indexing import rows_of_shard
from netbuilder.ops.core.registry import find, is_registered
from netbuilder.ops.core.renaming import subgraphs
from netbuilder.ops.updates.row_updates import JointUpdate
from netbuilder.passes.processes import ProcessLink
from netbuilder.proto import NetDef, NetError, OperatorDef
from netbuilder.proto.arguments import arguments, made_at, make_op, set_argument
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["LOOKUPS", "divide_table_updates", "divide_tables", "look_up_in_shards", "rows_to_owners", "whole_lookups"]

LOOKUPS = {
    "Gather": (0, 1),
    "SparseLengthsMax": (0, 1),
    "SparseLengthsMean": (0, 1),
    "SparseLengthsPositionalWeightedSum": (0, 2),
    "SparseLengthsSum": (0, 1),
    "SparseLengthsWeightedSum": (0, 2),
}
"""Operators that read rows of a table, and the places of the table and the indices among their inputs."""

_BACKWARD = {"SparseLengthsIndicesInGradientWeightedSumWithMainInputGradient": (3, 4)}
"""Likewise, of the backward pass."""

_BY_ROWS = ("ConstantFill", "GaussianFill", "MSRAFill", "UniformFill", "XavierFill")
"""Fills that can fill some rows of a table."""

_log = logging.getLogger("netbuilder")
_SQUARES = "SumSqrElements"
_NUMBERS = "_numbers"


def divide_tables(model: ModelHelper, record: Replicas, processes: int) -> dict[str, int]:
    """Let each process fill its own rows of the tables outside the replicas; return table -> all of its rows.

    A table is a parameter outside the replicas that a lookup reads.

    Args:
        model: with the replicas' forward pass; its init net, and the shapes that it knows, are changed.
        record: of the replicas.
        processes: their number.

    Raises:
        NetError: something else than lookups reads a table, its initializer cannot fill some rows of it, or its shape
            is not known.
    """
    tables: dict[str, int] = {}
    for name in record.outside:
        readers = [op for op in model.net.Proto().op if name in _reads(op)]
        if not any(op.type in LOOKUPS and op.input[0] == name for op in readers):
            continue
        for op in readers:
            _require_lookup(model, name, op)
        tables[name] = rows = _fill_own_rows(model, name, record.world.rank, processes)
        own = rows_of_shard(rows, processes)
        _log.info(
            "model %r: of the %d rows of table %r each of %d processes has %d", model.name, rows, name, processes, own
        )
    return tables


def _require_lookup(model: ModelHelper, table: str, op: OperatorDef) -> None:
    place, given = LOOKUPS.get(op.type, (None, None))[0], arguments(op)
    once = [*_reads(op), *op.output].count(table) == 1
    if place != 0 or op.input[0] != table or not once or given.get("dense_gradient") or given.get("axis"):
        raise NetError(
            f"model {model.name!r}: shard_tables=True divides table {table!r} over the processes, but {op.type} of "
            f"{list(op.output)}{made_at(op)} needs all of it; only lookups along axis 0 with sparse gradients "
            f"({', '.join(LOOKUPS)}) can be served; create the parameter in the forward builder, or omit shard_tables"
        )


def _fill_own_rows(model: ModelHelper, table: str, rank: int, processes: int) -> int:
    """Change the initializer of a table, if there is one; return all of its rows."""
    info = model.get_param_info(BlobReference(table))
    makers = [op for op in model.param_init_net.Proto().op if table in op.output]
    shape = tuple(info.shape) if info is not None and info.shape is not None else ()
    for op in makers:
        shape = tuple(arguments(op).get("shape") or ())
        if len(makers) > 1 or op.type not in _BY_ROWS or op.input or not shape:
            raise NetError(
                f"model {model.name!r}: shard_tables=True lets each process fill its rows of table {table!r}, but "
                f"{op.type} of {list(op.output)}{made_at(op)} cannot; use one of {', '.join(_BY_ROWS)} with a shape"
            )
        set_argument(op, "shards", processes)
        set_argument(op, "rank", rank)
    if not shape or not shape[0]:
        raise NetError(
            f"model {model.name!r}: shard_tables=True needs the shape of table {table!r}, with at least one row, got "
            f"{shape or 'none'}; create it by create_param"
        )
    if info is not None:
        info.shape = (rows_of_shard(shape[0], processes), *shape[1:])
    return int(shape[0])


def look_up_in_shards(model: ModelHelper, tables: Mapping[str, int], link: ProcessLink) -> None:
    """Let lookups of divided tables read the rows that the processes have exchanged before.

    Indices that are inputs of the net are exchanged for all tables and replicas together, before the first lookup.

    Args:
        model: with forward and backward pass, without exchange and update.
        tables: see ``divide_tables``.
        link: how processes are reached.
    """
    main = model.net.Proto()
    lookups = _found_lookups(main, tables)
    if not lookups:
        return
    groups: dict[int, list[_Lookup]] = {}
    fed = [each for each in lookups if not each.version]
    first = min((each.first for each in fed), default=0)
    for each in lookups:
        groups.setdefault(each.first if each.version else first, []).append(each)
    result = NetDef()
    result.CopyFrom(main)
    made = {(each.table, each.indices, each.version): each for each in lookups}
    for index, op_type, key in list(_reading(main, tables)):
        table, indices = {**LOOKUPS, **_BACKWARD}[op_type]
        result.op[index].input[table], result.op[index].input[indices] = made[key].rows, made[key].numbers
    for index in sorted(groups, reverse=True):
        result.op.insert(index, _lookup_operator(groups[index], tables, link))
    result.external_input.extend(world for world in link.worlds[:1] if world not in result.external_input)
    model.net.replace_message(result)


@dataclass(frozen=True)
class _Lookup:
    """A table and indices that some operators read.

    Args:
        first: position of the first of them.
        version: how often the indices have been written before it.
        from_end: whether all of them are Gather, whose indices may count from the end.
    """

    table: str
    indices: str
    version: int
    first: int
    from_end: bool

    @property
    def rows(self) -> str:
        """The blob of the rows."""
        return f"{self.indices}_{self.table.replace('/', '_')}_rows{self.version or ''}"

    @property
    def numbers(self) -> str:
        """The blob of the numbers of these rows."""
        return f"{self.rows}{_NUMBERS}"


def _reading(net: NetDef, tables: Mapping[str, int]) -> Iterator[tuple[int, str, tuple[str, str, int]]]:
    """Yield position and type of the operators that look up rows, with table, indices and version of the indices."""
    versions: dict[str, int] = {}
    for index, op in enumerate(net.op):
        slots = LOOKUPS.get(op.type) or _BACKWARD.get(op.type)
        if slots is not None and op.input[slots[0]] in tables:
            table, indices = (op.input[slot] for slot in slots)
            yield index, op.type, (table, indices, versions.get(indices, 0))
        for blob in op.output:
            versions[blob] = versions.get(blob, 0) + 1


def _found_lookups(net: NetDef, tables: Mapping[str, int]) -> list[_Lookup]:
    readers: dict[tuple[str, str, int], list[tuple[int, str]]] = {}
    for index, op_type, key in _reading(net, tables):
        readers.setdefault(key, []).append((index, op_type))
    return [_Lookup(*key, found[0][0], all(kind == "Gather" for _, kind in found)) for key, found in readers.items()]


def _lookup_operator(group: Sequence[_Lookup], tables: Mapping[str, int], link: ProcessLink) -> OperatorDef:
    return link.over_host(
        "LookupRows",
        "rows of tables",
        [blob for each in group for blob in (each.table, each.indices)],
        [blob for each in group for blob in (each.rows, each.numbers)],
        rows=[tables[each.table] for each in group],
        from_end=[int(each.from_end) for each in group],
    )


def rows_to_owners(model: ModelHelper, tables: Mapping[str, int], link: ProcessLink) -> None:
    """Append the exchange of the tables' gradients: each process gets those of its rows."""
    pairs, owned, rows = list[str](), list[str](), list[int]()
    for name, count in tables.items():
        gradient = model.param_to_grad.get(BlobReference(name))
        if isinstance(gradient, GradientSlice):
            own = GradientSlice(BlobReference(f"{name}_own_indices"), BlobReference(f"{name}_own_rows"))
            model.param_to_grad[BlobReference(name)] = own
            pairs += map(str, gradient)
            owned += map(str, own)
            rows.append(count)
    if rows:
        model.net.extend_ops([link.over_host("RowsToOwners", "rows to their owners", pairs, owned, rows=rows)])


def divide_table_updates(
    model: ModelHelper, record: Replicas, tables: Mapping[str, int], link: ProcessLink, start: int
) -> Replicas:
    """Check the updates of divided tables; return the record with the blobs whose rows are divided.

    Norms of gradients are added up over the processes.

    Args:
        model: with the update, which is appended to.
        record: of the replicas.
        tables: see ``divide_tables``.
        link: how processes are reached.
        start: position of the update's first operator.

    Raises:
        NetError: an operator of the update needs all rows of a table, or all of its gradient.
    """
    divided, main = _Divided(model, tables, link), model.net.Proto()
    result = NetDef()
    result.CopyFrom(main)
    del result.op[start:]
    for op in main.op[start:]:
        result.op.extend(divided.with_sums(op))
    if len(result.op) > len(main.op):
        model.net.replace_message(result)
    return dataclasses.replace(record, sharded=tuple(f"{rows}:{blob}" for blob, rows in divided.rows.items()))


class _Divided:
    """Follows what an update computes of tables and their gradients, of which each process has its own rows.

    Attributes:
        rows: the tables, and what optimizers keep for their rows -> number of all rows.
    """

    def __init__(self, model: ModelHelper, tables: Mapping[str, int], link: ProcessLink) -> None:
        self.rows = dict(tables)
        self._model, self._link = model, link
        self._of = {name: name for name in tables}  # blob -> the table that it is of
        for name in tables:
            gradient = model.param_to_grad.get(BlobReference(name))
            if isinstance(gradient, GradientSlice):
                self._of |= dict.fromkeys(map(str, gradient), name)
        self._specs = infer_shapes([model.param_init_net.Proto()])
        self._made = {blob for op in model.param_init_net.Proto().op for blob in op.output}

    def with_sums(self, given: OperatorDef) -> list[OperatorDef]:
        """Return an operator of the update, with the sums over the processes that it needs."""
        op = OperatorDef()
        op.CopyFrom(given)
        found = {self._of[blob] for blob in _reads(op) if blob in self._of}
        if not found:
            for blob in op.output:
                self._of.pop(blob, None)
            return [op]
        if op.type == _SQUARES:
            return [op, *self._link.allreduce(op.output)]
        if len(found) > 1:
            self._refuse(op, f"it reads rows of the tables {sorted(found)}")
        (table,) = found
        sums = self._sums_of_squares(op)
        whole = op.output[-1] if sums else None
        for blob in op.output:
            if blob in self._made and blob not in self.rows and blob != whole:
                shape, own = self._specs.shapes.get(blob), self._specs.shapes.get(table)
                if not shape or own is None or shape[0] != own[0] or blob in map(str, self._model.params):
                    self._refuse(op, f"it changes {blob!r}, which is of all rows of {table!r}")
                self.rows[blob] = self.rows[table]
            if blob != whole:
                self._of[blob] = table
        return [*sums, op]

    def _sums_of_squares(self, op: OperatorDef) -> list[OperatorDef]:
        """Give an operator the sum of squares of all gradients, if it needs that; return what computes it."""
        kind = find(op.type) if is_registered(op.type) else None
        if kind is None or not issubclass(kind, JointUpdate):
            return []
        gradient, total = op.input[kind.inputs.index("grad")], f"{op.output[0]}_grad_squares"
        square = make_op(_SQUARES, [gradient], [total], device_option=op.device_option)
        square.debug_info = op.debug_info
        op.input.append(total)
        return [square, *self._link.allreduce([total])]

    def _refuse(self, op: OperatorDef, why: str) -> None:
        raise NetError(
            f"model {self._model.name!r}: shard_tables=True: {op.type} of {list(op.output)}{made_at(op)} cannot update "
            f"tables that are divided over the processes: {why}; give the tables an optimizer of their own "
            "(ParameterInfo.optimizer), such as AdagradOptimizer or AdamOptimizer"
        )


def _reads(op: OperatorDef) -> list[str]:
    return [*op.input, *(blob for net in subgraphs(op) for inner in net.op for blob in _reads(inner))]


def whole_lookups(net: NetDef) -> NetDef:
    """Return a net whose lookups read whole tables again, as a predictor does, which is one process."""
    lookups = [op for op in net.op if op.type == "LookupRows"]
    if not lookups:
        return net
    renames: dict[str, str] = {}
    for op in lookups:
        renames |= zip(op.output, op.input[1:])
    result = NetDef()
    result.CopyFrom(net)
    del result.op[:]
    for op in net.op:
        if op.type != "LookupRows":
            added = result.op.add()
            added.CopyFrom(op)
            added.input[:] = [renames.get(blob, blob) for blob in op.input]
    return result
