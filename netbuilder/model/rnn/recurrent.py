"""recurrent_net: appends an operator that runs a step net once for each step of a sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from netbuilder.graph.blob import BlobReference, ScopedName, gradient_name
from netbuilder.graph.net import Net
from netbuilder.graph.scope import SEPARATOR
from netbuilder.model.rnn.backward_step import BackwardStep, backward_step
from netbuilder.proto import GradientError, NetDef, NetError, OperatorDef
from netbuilder.proto.arguments import set_argument
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["recurrent_net", "set_rnn_executor_config"]

Blob = str | BlobReference

TIMESTEP = "timestep"
STEP_WORKSPACES = "step_workspaces"


def recurrent_net(
    net: Net,
    cell_net: Net,
    inputs: Sequence[tuple[Blob, Blob]],
    initial_cell_inputs: Sequence[tuple[Blob, Blob]],
    links: Mapping[Blob, Blob],
    timestep: Blob | None = None,
    scope: str | None = None,
    outputs_with_grads: Sequence[int] = (0,),
    recompute_blobs_on_backward: Sequence[Blob] | None = None,
    forward_only: bool = False,
) -> tuple[BlobReference, ...]:
    """Append a RecurrentNetwork operator: ``cell_net`` runs once for each element along axis 0 of its inputs.

    Args:
        net: the net that gets the operator.
        cell_net: the step net; its inputs that are neither elements of a sequence, nor states, nor the timestep,
            are read from outside and are the same in all steps.
        inputs: pairs (blob of the step net, sequence); the sequence has the shape (steps, samples, ...), the blob
            (1, samples, ...).
        initial_cell_inputs: for each state, (blob of the step net with the state before the step, initial value).
        links: for each of these blobs the blob of the step net with the state after the step.
        timestep: blob of the step net with the number of the step, an int32; None: ``timestep``.
        scope: prefix of the names of the operator's own blobs; None: the net's name and "recurrent".
        outputs_with_grads: indices of the outputs that have gradients.
        recompute_blobs_on_backward: blobs of the step net that are not stored, but recomputed in the backward pass.
        forward_only: build no backward pass, and store nothing for it.

    Returns:
        For each state all its values, (steps, samples, ...), and the last one, (1, samples, ...).

    Raises:
        NetError: a state has no link, or a blob is not in the step net.
        GradientError: the step net cannot be differentiated; with ``forward_only`` it need not be.
    """
    parts = _Parts(net, cell_net, inputs, initial_cell_inputs, links, timestep, scope)
    if forward_only:
        parts.keywords["step_net"] = parts.step()
    else:
        gradients = {str(after): gradient_name(str(after)) for after in parts.after}
        backward = backward_step(cell_net.Proto(), gradients, [str(blob) for blob in recompute_blobs_on_backward or ()])
        _add_backward(parts, backward, outputs_with_grads)
    outputs: tuple[BlobReference, ...] = net.RecurrentNetwork(parts.read, parts.written, **parts.keywords)
    return outputs[:-1]


@dataclass
class _Parts:
    """The inputs, outputs and arguments of the operator, except for those of the backward pass."""

    net: Net
    cell_net: Net
    inputs: Sequence[tuple[Blob, Blob]]
    initial: Sequence[tuple[Blob, Blob]]
    links: Mapping[Blob, Blob]
    timestep: Blob | None
    scope: str | None
    keywords: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = {str(before): str(after) for before, after in self.links.items()}
        self._check(names)
        self.before = [str(before) for before, _ in self.initial]
        self.after = [BlobReference(names[before], self.cell_net) for before in self.before]
        self.counter = TIMESTEP if self.timestep is None else str(self.timestep)
        own = {*self.before, self.counter, *(str(blob) for blob, _ in self.inputs)}
        self.outside = [name for name in map(str, self.cell_net.external_inputs) if name not in own]
        sequences = [sequence for _, sequence in self.inputs]
        first_values = [first for _, first in self.initial]
        self.read: list[Blob] = [*sequences, *first_values, *(BlobReference(name) for name in self.outside)]
        self.written: list[Blob] = [
            blob for after in self.after for blob in (BlobReference(f"{after}_all"), BlobReference(f"{after}_last"))
        ]
        self.written.append(f"{self.prefix}{STEP_WORKSPACES}")
        self._add_keywords()

    @property
    def prefix(self) -> str:
        scope = f"{self.net.Name()}{SEPARATOR}recurrent" if self.scope is None else self.scope
        return scope + SEPARATOR if scope else ""

    def states(self, before: str) -> str:
        """Return the name of the blob with all values of a state, including the initial value."""
        return f"{self.prefix}{before}_states"

    def step(self) -> NetDef:
        step = NetDef()
        step.CopyFrom(self.cell_net.Proto())
        if not step.type:
            step.type = "simple"
        return step

    def _check(self, names: Mapping[str, str]) -> None:
        where = f"recurrent_net: step net {self.cell_net}"
        if not self.inputs:
            raise NetError(f"{where}: inputs must have at least one sequence, got none")
        for before, _ in self.initial:
            if str(before) not in names:
                raise NetError(f"{where}: state {str(before)!r} has no link to the blob of its next value")
        for before in names:
            if before not in {str(blob) for blob, _ in self.initial}:
                raise NetError(f"{where}: state {before!r} has a link, but no initial value in initial_cell_inputs")
        for blob in (*names.values(), *(str(blob) for blob, _ in self.inputs)):
            if not self.cell_net.BlobIsDefined(blob):
                raise NetError(f"{where} does not define blob {blob!r}")

    def _add_keywords(self) -> None:
        states = [self.states(before) for before in self.before]
        first = len(self.inputs)
        self.keywords.update(
            alias_src=[name for name in states for _ in range(2)],
            alias_dst=[str(blob) for blob in self.written[:-1]],
            alias_offset=[1, -1] * len(states),
            recurrent_states=states,
            initial_recurrent_state_ids=list(range(first, first + len(states))),
            link_internal=[name for pair in zip(self.before, map(str, self.after)) for name in pair]
            + [str(blob) for blob, _ in self.inputs],
            link_external=[name for name in states for _ in range(2)] + [ScopedName(blob) for _, blob in self.inputs],
            link_offset=[0, 1] * len(states) + [0] * len(self.inputs),
            enable_rnn_executor=1,
            step_net=self.step(),
            timestep=self.counter,
        )


def _add_backward(parts: _Parts, backward: BackwardStep, outputs_with_grads: Sequence[int]) -> None:
    internal: list[str] = []
    external: list[str] = []
    offsets: list[int] = []

    def link(inside: str, outside: str, offset: int) -> None:
        internal.append(inside)
        external.append(gradient_name(outside))
        offsets.append(offset)

    for before, after in zip(parts.before, map(str, parts.after)):
        link(gradient_name(after), parts.states(before), 1)
        if (found := backward.own(before)) is not None:
            link(found, parts.states(before), 0)
    for (blob, _), sequence in zip(parts.inputs, parts.keywords["link_external"][-len(parts.inputs) :]):
        if (found := backward.own(str(blob))) is not None:
            link(found, sequence, 0)
    params, gradients = _parameters(parts, backward)
    parts.keywords.update(
        param=params,
        backward_link_internal=internal,
        backward_link_external=external,
        backward_link_offset=offsets,
        outputs_with_grads=_checked_outputs(parts, outputs_with_grads),
        recompute_blobs_on_backward=backward.recomputed,
        param_grads=gradients,
        backward_step_net=backward.net(),
    )


def _parameters(parts: _Parts, backward: BackwardStep) -> tuple[list[int], list[str]]:
    """Return the indices of the inputs that are the same in all steps and have a gradient, and these gradients."""
    first = len(parts.inputs) + len(parts.before)
    found = [(first + i, backward.shared(name)) for i, name in enumerate(parts.outside)]
    return [i for i, gradient in found if gradient is not None], [g for _, g in found if g is not None]


def _checked_outputs(parts: _Parts, numbers: Sequence[int]) -> list[int]:
    count = len(parts.written) - 1
    wrong = [number for number in numbers if not 0 <= number < count]
    if wrong:
        raise GradientError(
            f"recurrent_net: step net {parts.cell_net}: outputs_with_grads must be in [0, {count}), got {wrong}; the "
            f"outputs are {', '.join(f'{i}: {name}' for i, name in enumerate(parts.written[:-1]))}"
        )
    return list(numbers)


def set_rnn_executor_config(
    rnn_op: OperatorDef, num_threads: int | None = None, max_cuda_streams: int | None = None
) -> None:
    """Set Caffe2's hints for its executor of step nets in an operator; plans of this library ignore them.

    Args:
        rnn_op: a RecurrentNetwork operator or its gradient.
        num_threads: number of threads for overlapping steps.
        max_cuda_streams: number of GPU streams for overlapping steps.

    Raises:
        NetError: ``rnn_op`` is another operator.
    """
    if rnn_op.type not in ("RecurrentNetwork", "RecurrentNetworkGradient"):
        raise NetError(
            f"set_rnn_executor_config: rnn_op must be a RecurrentNetwork or its gradient, got {rnn_op.type!r}"
        )
    for name, value in (("rnn_executor.num_threads", num_threads), ("rnn_executor.max_cuda_streams", max_cuda_streams)):
        if value is not None:
            set_argument(rnn_op, name, value)
