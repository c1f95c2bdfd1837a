"""The nets of block-wise model updates, made from the record of the replicas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from netbuilder.graph.block_updates import BlockNets, BlockRule
from netbuilder.graph.devices import Devices
from netbuilder.graph.net import Net
from netbuilder.graph.replicas import Replicas
from netbuilder.ops.core.precision import DETERMINISTIC_ARGUMENT
from netbuilder.ops.core.registry import find, is_registered
from netbuilder.passes.processes import ProcessLink
from netbuilder.passes.reductions import PeerAccess, allreduce, broadcast, nccl_allreduce, nccl_broadcast
from netbuilder.proto import PROTO_CPU, DeviceOption, NetDef, NetError, OperatorDef, TensorProto
from netbuilder.proto.arguments import arguments, make_device_option, make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BlockRequest", "block_nets", "global_from_first"]

_HOST = make_device_option(PROTO_CPU, 0)


@dataclass(frozen=True)
class BlockRequest:
    """The requested block-wise updates.

    Args:
        rule: the rule.
        synchronized: further blobs that get the master's values at the end of each block, with or without a scope.
        resets_momentum: set the momenta of the replicas' own updates to 0 at the end of each block.
    """

    rule: BlockRule
    synchronized: tuple[str, ...] = ()
    resets_momentum: bool = False


def block_nets(
    main: NetDef,
    record: Replicas,
    request: BlockRequest,
    *,
    use_nccl: bool,
    peer_access: PeerAccess | None,
    debug_info: str,
    link: ProcessLink | None = None,
) -> BlockNets:
    """Return the nets by which replicas that train on their own are brought together.

    Parameters follow the rule; computed parameters are averaged. All of it is an allreduce over the replicas, operators
    on the master, and a broadcast from it. Where changes are rounded, the master of each process forms that of its own
    replicas before the processes exchange.

    Args:
        main: the main net, with the replicas' own updates; the nets have its executor.
        record: the record of the replicas.
        request: the request; ``synchronized`` are short names.
        use_nccl: average and copy by NCCL's operators.
        peer_access: as for ``allreduce``.
        debug_info: line of the user's program.
        link: how values are exchanged with other processes, each of which has a master; None: there is one process.

    Raises:
        NetError: the replicas' own updates have no momenta to reset, or a blob of the rule's state exists already.
    """
    rule = request.rule
    _check_names(main, record)
    ids = record.devices.ids
    first = ids[rule.master]
    devices = Devices(record.devices.device_type, (first, *(number for number in ids if number != first)))
    averaged = [devices.copies(name) for name in (*record.parameters, *record.computed)]
    further = [devices.copies(name) for name in request.synchronized]
    place, scope = devices.options[0], devices.scopes[0]
    parameters = [scope + name for name in record.parameters]
    all_further, all_copies = list[OperatorDef](), list[OperatorDef]()  # to the masters of other processes
    rounded = record.block_residuals
    changes = [list(_change(name, len(record) if rounded else record.world.size)) for name in parameters]
    if link is not None:
        sums = allreduce(averaged, devices, peer_access=peer_access, hand_back=False, debug_info=debug_info)
        if rounded:
            sums.op.extend(_on(place, [op for change in changes for op in change]))
            sums.op.extend(link.exchange("AllreduceInt8", parameters, rounded))
            sums.op.extend(link.allreduce([scope + name for name in record.computed]))
        else:
            sums.op.extend(link.allreduce([group[0] for group in averaged]))
        copies = broadcast([*averaged, *further], devices, debug_info=debug_info)
        all_further = link.broadcast([group[0] for group in further])
        all_copies = link.broadcast([group[0] for group in (*averaged, *further)])
    elif use_nccl:
        sums = nccl_allreduce(averaged, devices, debug_info=debug_info)
        copies = nccl_broadcast([*averaged, *further], devices, debug_info=debug_info)
    else:
        sums = allreduce(averaged, devices, peer_access=peer_access, debug_info=debug_info)
        copies = broadcast([*averaged, *further], devices, debug_info=debug_info)
    rules = [
        op
        for name, change in zip(parameters, changes)
        for op in (*(() if rounded else change), *_rule(name, rule, record.processes if rounded else 1))
    ]
    means = [_scale(scope + name, 1.0 / record.world.size) for name in record.computed]

    def net(name: str, *ops: OperatorDef) -> Net:
        made = Net(name)
        made.set_type(main.type, main.num_workers)
        if arguments(main).get(DETERMINISTIC_ARGUMENT):
            made.set_deterministic(True)
        for op in ops:
            op.debug_info = op.debug_info or debug_info
        made.extend_ops(ops)
        return made

    init = [op for parameter in parameters for op in _initial(parameter)]
    empty = [make_op("ConstantFill", [p], [kept], value=0.0) for p, kept in zip(parameters, rounded)]
    resets = _resets(main, record) if request.resets_momentum else []
    update = [*sums.op, *_on(place, [*rules, *means]), *all_further, *copies.op, *resets]
    warm_up = None
    if rule.warmup_iterations is not None:
        held = [_copy(parameter, BlockRule.global_name(parameter)) for parameter in parameters]
        warm_up = net("warmup-broadcast", *all_copies, *copies.op, *_on(place, held))
    return BlockNets(
        init=net("global_model_init", *_on(place, init), *_on(_HOST, empty), *_counter(scope, rule)),
        update=net("global_model", *update),
        warm_up=warm_up,
    )


def global_from_first(record: Replicas, names: Iterable[str]) -> list[OperatorDef]:
    """Return the operators that copy the parameters among ``names`` from the first replica to the rule's state."""
    if record.block is None:
        return []
    master, chosen = record.block.master, set(names).intersection(record.parameters)
    first, scope = record.devices.scopes[0], record.devices.scopes[master]
    copies = [_copy(first + name, BlockRule.global_name(scope + name)) for name in record.parameters if name in chosen]
    return list(_on(record.devices.options[master], copies))


def _check_names(main: NetDef, record: Replicas) -> None:
    known = {blob for op in main.op for blob in (*op.input, *op.output)}
    if taken := sorted(known.intersection((*record.block_state, *record.block_residuals))):
        raise NetError(
            f"net {main.name!r}: block-wise updates keep their state in {taken}, but blobs of these names exist "
            "already; rename them"
        )


def _resets(main: NetDef, record: Replicas) -> list[OperatorDef]:
    """Return the operators that set the momenta of the replicas' own updates to 0."""
    found = {}
    for op in main.op:
        if is_registered(op.type) and find(op.type).inputs[:2] == ("grad", "moment"):
            replica = record.devices.replica_of(op.output[1])
            found[op.output[1]] = op.device_option if replica is None else record.devices.options[replica]
    if not found:
        raise NetError(
            f"net {main.name!r}: reset_momentum_sgd=True, but its updates have no momentum; omit it, or let "
            "param_update_builder_fun add SGD with momentum"
        )
    return [make_op("ConstantFill", [blob], [blob], device_option=place, value=0.0) for blob, place in found.items()]


def _initial(parameter: str) -> Iterator[OperatorDef]:
    yield make_op("ConstantFill", [parameter], [BlockRule.momentum_name(parameter)], value=0.0)
    yield _copy(parameter, BlockRule.global_name(parameter))


def _counter(scope: str, rule: BlockRule) -> list[OperatorDef]:
    """Return the operator that makes the counter of iterations, if the rule has one."""
    if not rule.iterations:
        return []
    start = -(rule.warmup_iterations or 0)
    fill = make_op("ConstantFill", [], [scope + rule.counter], shape=[1], value=start, dtype=TensorProto.INT64)
    return [*_on(_HOST, [fill])]


def _change(parameter: str, replicas: int) -> Iterator[OperatorDef]:
    """Yield the operators that make the sum of a parameter over replicas the change of its mean."""
    yield _scale(parameter, 1.0 / replicas)
    yield make_op("Sub", [parameter, BlockRule.global_name(parameter)], [parameter])


def _rule(parameter: str, rule: BlockRule, changes: int) -> Iterator[OperatorDef]:
    """Yield the operators that apply the rule to a parameter of the master, which has the sum of so many changes."""
    held, momentum = BlockRule.global_name(parameter), BlockRule.momentum_name(parameter)
    change = BlockRule.previous_name(parameter)
    if rule.lookahead:
        yield _copy(momentum, change)
    yield _scale(parameter, rule.learning_rate / changes)
    yield _scale(momentum, rule.momentum)
    yield make_op("Add", [momentum, parameter], [momentum])
    yield make_op("Add", [held, momentum], [held])
    if rule.lookahead:
        yield make_op("Sub", [momentum, change], [change])
        yield _scale(change, rule.lookahead)
        yield make_op("Add", [held, change], [held])
    yield _copy(held, parameter)


def _scale(blob: str, factor: float) -> OperatorDef:
    return make_op("Scale", [blob], [blob], scale=float(factor))


def _copy(source: str, target: str) -> OperatorDef:
    return make_op("Copy", [source], [target])


def _on(place: DeviceOption, ops: Sequence[OperatorDef]) -> Sequence[OperatorDef]:
    """Set the device of operators."""
    for op in ops:
        op.device_option.CopyFrom(place)
    return ops
