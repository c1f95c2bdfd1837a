"""The nets of block-wise model updates, made from the record of the replicas."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

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
    on the master, and a broadcast from it. Where changes are rounded, or exchanged while the next block runs, the
    master of each process forms that of its own replicas before the processes exchange.

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
    averages = _Averages(record, rule, devices, use_nccl, peer_access, debug_info, link)

    def net(name: str, *ops: OperatorDef) -> Net:
        made = Net(name)
        made.set_type(main.type, main.num_workers)
        if arguments(main).get(DETERMINISTIC_ARGUMENT):
            made.set_deterministic(True)
        for op in ops:
            op.debug_info = op.debug_info or debug_info
        made.extend_ops(ops)
        return made

    resets = _resets(main, record) if request.resets_momentum else []
    further = [devices.copies(name) for name in request.synchronized]
    init, warm_up = net("global_model_init", *averages.initial()), None
    if rule.warmup_iterations is not None:
        warm_up = net("warmup-broadcast", *averages.end_of_warm_up(further))
    if not rule.overlap:
        return BlockNets(init, net("global_model", *averages.update(further), *resets), warm_up)
    exchange = averages.exchange_of_changes()
    return BlockNets(
        init,
        net("global_model", *averages.delayed_update()),
        warm_up,
        net("global_model_send", *averages.send(), *resets),
        net("global_model_exchange", *exchange) if exchange else None,
    )


@dataclass(frozen=True)
class _Averages:
    """The operators of the nets.

    Args:
        record, rule: the replicas and their rule.
        devices: those of this process, the master first.
        use_nccl, peer_access, debug_info, link: see ``block_nets``.
    """

    record: Replicas
    rule: BlockRule
    devices: Devices
    use_nccl: bool
    peer_access: PeerAccess | None
    debug_info: str
    link: ProcessLink | None

    @property
    def _parameters(self) -> list[str]:
        return [self.devices.scopes[0] + name for name in self.record.parameters]

    @property
    def _computed(self) -> list[str]:
        return [self.devices.scopes[0] + name for name in self.record.computed]

    @property
    def _averaged(self) -> list[Sequence[str]]:
        return [self.devices.copies(name) for name in (*self.record.parameters, *self.record.computed)]

    @property
    def _changes(self) -> list[Sequence[str]]:
        names = (*self.record.parameters, *self.record.computed)
        return [self.devices.copies(BlockRule.change_name(name)) for name in names]

    def initial(self) -> list[OperatorDef]:
        """Return the operators that make the state of the rule."""
        parameters, rounded = self._parameters, self.record.block_residuals
        ops = self._on_master([op for parameter in parameters for op in _initial(parameter)])
        ops += _on(_HOST, [_zeros_like(p, kept) for p, kept in zip(parameters, rounded)])
        if self.rule.overlap:
            changed = (*parameters, *self._computed)
            ops += self._on_master([_zeros_like(blob, BlockRule.change_name(blob)) for blob in changed])
            ops += self._kept()
            flag = self.devices.scopes[0] + BlockRule.in_flight
            ops += _on(_HOST, [make_op("ConstantFill", [], [flag], shape=[1], value=0, dtype=TensorProto.INT64)])
        return [*ops, *_counter(self.devices.scopes[0], self.rule)]

    def end_of_warm_up(self, further: Sequence[Sequence[str]]) -> list[OperatorDef]:
        """Return the operators that copy the master's parameters to all replicas, and to the rule's state."""
        groups = [*self._averaged, *further]
        over_processes = [] if self.link is None else self.link.broadcast([group[0] for group in groups])
        held = [_copy(parameter, BlockRule.global_name(parameter)) for parameter in self._parameters]
        return [*over_processes, *self._copies(groups), *self._on_master(held)]

    def update(self, further: Sequence[Sequence[str]]) -> list[OperatorDef]:
        """Return the operators that end a block: they average, apply the rule, and copy the result to all replicas.

        Args:
            further: other blobs that are copied from the master.
        """
        record, parameters, rounded = self.record, self._parameters, self.record.block_residuals
        ops = self._sums(self._averaged)
        if rounded:
            ops += self._on_master([op for name in parameters for op in _change(name, name, len(record))])
        ops += self._exchange(self.link, parameters, self._computed)
        rules = list[OperatorDef]()
        for name in parameters:
            rules += [] if rounded else _change(name, name, record.world.size)
            rules += _rule(name, name, self.rule, record.processes if rounded else 1)
        means = [_scale(name, 1.0 / record.world.size) for name in self._computed]
        ops += self._on_master([*rules, *means])
        ops += [] if self.link is None else self.link.broadcast([group[0] for group in further])
        return [*ops, *self._copies([*self._averaged, *further])]

    def send(self) -> list[OperatorDef]:
        """Return the operators that end a block with an overlap: each process forms the change of its own replicas."""
        each = (*self.record.parameters, *self.record.computed)
        ops = self._kept()
        ops += self._on_each(lambda scope: [_copy(scope + name, _changed(scope + name)) for name in each])
        ops += self._sums(self._changes)
        own = len(self.record)
        changes = [op for name in self._parameters for op in _change(name, _changed(name), own)]
        return [*ops, *self._on_master([*changes, *(_scale(_changed(name), 1.0 / own) for name in self._computed)])]

    def exchange_of_changes(self) -> list[OperatorDef]:
        """Return the operators by which the processes exchange, with an overlap, over copies on the host."""
        if self.link is None:
            return []
        parameters, computed = list(map(_changed, self._parameters)), list(map(_changed, self._computed))
        link = dataclasses.replace(
            self.link, places={**self.link.places, **dict.fromkeys((*parameters, *computed), _HOST)}, by_nccl=False
        )
        return self._exchange(link, parameters, computed)

    def delayed_update(self) -> list[OperatorDef]:
        """Return the operators that apply the rule to what was exchanged, and add what replicas have done since."""
        processes = self.record.processes
        rules = [op for name in self._parameters for op in _rule(name, _changed(name), self.rule, processes)]
        means = [_scale(_changed(name), 1.0 / processes) for name in self._computed]
        ops = [*self._on_master([*rules, *means]), *self._copies(self._changes)]

        def applied(scope: str) -> Iterator[OperatorDef]:
            for blob in (scope + name for name in self.record.parameters):
                yield make_op("Sub", [blob, _sent(blob)], [blob])
                yield make_op("Add", [blob, _changed(blob)], [blob])
            for blob in (scope + name for name in self.record.computed):
                yield _copy(_changed(blob), blob)

        return [*ops, *self._on_each(lambda scope: list(applied(scope)))]

    def _kept(self) -> list[OperatorDef]:
        """Return the operators that copy the replicas' parameters, from which they go on."""
        return self._on_each(
            lambda scope: [_copy(scope + name, _sent(scope + name)) for name in self.record.parameters]
        )

    def _sums(self, groups: Sequence[Sequence[str]]) -> list[OperatorDef]:
        """Return the operators that make the master's blob of each group the sum over the devices."""
        if self.use_nccl and self.link is None:
            return list(nccl_allreduce(groups, self.devices, debug_info=self.debug_info).op)
        hands_back = self.link is None
        made = allreduce(
            groups, self.devices, peer_access=self.peer_access, hand_back=hands_back, debug_info=self.debug_info
        )
        return list(made.op)

    def _copies(self, groups: Sequence[Sequence[str]]) -> list[OperatorDef]:
        """Return the operators that copy the master's blob of each group to the other devices."""
        made = nccl_broadcast if self.use_nccl and self.link is None else broadcast
        return list(made(groups, self.devices, debug_info=self.debug_info).op)

    def _exchange(
        self, link: ProcessLink | None, parameters: Sequence[str], computed: Sequence[str]
    ) -> list[OperatorDef]:
        """Return the operators that sum blobs over the processes, those of parameters perhaps rounded."""
        if link is None:
            return []
        if rounded := self.record.block_residuals:
            return [*link.exchange("AllreduceInt8", parameters, rounded), *link.allreduce(computed)]
        return link.allreduce([*parameters, *computed])

    def _on_master(self, ops: Sequence[OperatorDef]) -> list[OperatorDef]:
        return list(_on(self.devices.options[0], ops))

    def _on_each(self, made: Callable[[str], Sequence[OperatorDef]]) -> list[OperatorDef]:
        """Return the operators that ``made`` returns for the scope of each device."""
        places = zip(self.devices.scopes, self.devices.options)
        return [op for scope, place in places for op in _on(place, made(scope))]


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
    if taken := sorted(known.intersection((*record.block_state, *record.block_residuals, *record.block_sent))):
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


def _change(parameter: str, blob: str, replicas: int) -> Iterator[OperatorDef]:
    """Yield the operators that make a blob, the sum of a parameter over replicas, the change of its mean."""
    yield _scale(blob, 1.0 / replicas)
    yield make_op("Sub", [blob, BlockRule.global_name(parameter)], [blob])


def _rule(parameter: str, blob: str, rule: BlockRule, changes: int) -> Iterator[OperatorDef]:
    """Yield the operators that apply the rule to a parameter of the master.

    Args:
        blob: has the sum of so many ``changes``, and gets the new global value.
    """
    held, momentum = BlockRule.global_name(parameter), BlockRule.momentum_name(parameter)
    change = BlockRule.previous_name(parameter)
    if rule.lookahead:
        yield _copy(momentum, change)
    yield _scale(blob, rule.learning_rate / changes)
    yield _scale(momentum, rule.momentum)
    yield make_op("Add", [momentum, blob], [momentum])
    yield make_op("Add", [held, momentum], [held])
    if rule.lookahead:
        yield make_op("Sub", [momentum, change], [change])
        yield _scale(change, rule.lookahead)
        yield make_op("Add", [held, change], [held])
    yield _copy(held, blob)


_changed, _sent = BlockRule.change_name, BlockRule.sent_name


def _zeros_like(blob: str, target: str) -> OperatorDef:
    return make_op("ConstantFill", [blob], [target], value=0.0)


def _scale(blob: str, factor: float) -> OperatorDef:
    return make_op("Scale", [blob], [blob], scale=float(factor))


def _copy(source: str, target: str) -> OperatorDef:
    return make_op("Copy", [source], [target])


def _on(place: DeviceOption, ops: Sequence[OperatorDef]) -> Sequence[OperatorDef]:
    """Set the device of operators."""
    for op in ops:
        op.device_option.CopyFrom(place)
    return ops
