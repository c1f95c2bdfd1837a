"""How the blobs of a step net are connected to external ones: links, aliases and states, read and checked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import ClassVar

from netbuilder.ops.core.operator import NetNames, Operator
from netbuilder.ops.recurrent.steps import StepNet
from netbuilder.proto import ArgumentError, NetDef, NetError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Alias", "Link", "Recurrent", "State"]


@dataclass(frozen=True)
class Link:
    """In step t, the step net's blob ``internal`` is the ``window`` rows of ``external`` from row t + ``offset`` on."""

    internal: str
    external: str
    offset: int
    window: int = 1


@dataclass(frozen=True)
class Alias:
    """The output ``output`` is ``source``, a state, from row ``offset`` on; negative offsets count from its end."""

    source: str
    output: str
    offset: int


@dataclass(frozen=True)
class State:
    """A state: its name, the index of the input that is its initial value, and its aliases among the outputs."""

    name: str
    initial: int
    aliases: tuple[Alias, ...]


@dataclass(frozen=True)
class Recurrent(Operator):
    """Base of RecurrentNetwork and its gradient: the arguments, under Caffe2's names.

    Args:
        step_net: what a time step computes.
        timestep: the step net's name for the step number, an int32 tensor of one element.
        recurrent_states, initial_recurrent_state_ids: names of the states, and the indices of their initial values
            among the inputs.
        link_internal, link_external, link_offset, link_window: see ``Link``; the windows are 1 if not given.
        alias_src, alias_dst, alias_offset: see ``Alias``.
        param: the indices of the inputs that are the same in all steps and whose gradients are requested.
        param_grads: their gradients' names in the backward step net; by default the inputs' with the suffix "_grad".
        backward_step_net: the gradient of a step.
        backward_link_internal, backward_link_external, backward_link_offset, backward_link_window: its links; the
            gradient of ``external`` has the suffix "_grad".
        outputs_with_grads: the indices of the outputs whose gradients reach the operator.
        recompute_blobs_on_backward: blobs of the step net that are not kept: the backward step net recomputes them.
        enable_rnn_executor: for Caffe2's executor; ignored here.
        num_workspaces_on_fwd_only: the same.
    """

    open_arguments = ("rnn_executor",)
    net_names: ClassVar[NetNames] = "ends"
    copy_arguments = False
    blob_arguments: ClassVar[tuple[str, ...]] = (
        "timestep",
        "recurrent_states",
        "link_internal",
        "link_external",
        "alias_src",
        "alias_dst",
        "param_grads",
        "backward_link_internal",
        "backward_link_external",
        "recompute_blobs_on_backward",
    )
    step_net: NetDef | None = None
    timestep: str = "timestep"
    recurrent_states: tuple[str, ...] = ()
    initial_recurrent_state_ids: tuple[int, ...] = ()
    link_internal: tuple[str, ...] = ()
    link_external: tuple[str, ...] = ()
    link_offset: tuple[int, ...] = ()
    link_window: tuple[int, ...] = ()
    alias_src: tuple[str, ...] = ()
    alias_dst: tuple[str, ...] = ()
    alias_offset: tuple[int, ...] = ()
    param: tuple[int, ...] = ()
    param_grads: tuple[str, ...] = ()
    backward_step_net: NetDef | None = None
    backward_link_internal: tuple[str, ...] = ()
    backward_link_external: tuple[str, ...] = ()
    backward_link_offset: tuple[int, ...] = ()
    backward_link_window: tuple[int, ...] = ()
    outputs_with_grads: tuple[int, ...] = ()
    recompute_blobs_on_backward: tuple[str, ...] = ()
    enable_rnn_executor: int = 0
    num_workspaces_on_fwd_only: int = 0

    @property
    def has_side_effects(self) -> bool:
        return self.step_net is not None and any(each.op.has_side_effects for each in self.step.ops)

    @property
    def forward_inputs(self) -> tuple[str, ...]:
        """The names of the forward operator's inputs."""
        return self.input_names

    @cached_property
    def links(self) -> tuple[Link, ...]:
        return self._links("link_internal", "link_external", "link_offset", "link_window")

    @cached_property
    def backward_links(self) -> tuple[Link, ...]:
        return self._links(
            "backward_link_internal", "backward_link_external", "backward_link_offset", "backward_link_window"
        )

    def _links(self, internal: str, external: str, offset: str, window: str) -> tuple[Link, ...]:
        columns = [getattr(self, name) for name in (internal, external, offset)]
        windows = getattr(self, window) or (1,) * len(columns[0])
        self._same_length((internal, external, offset, window), [*columns, windows])
        links = tuple(Link(*row) for row in zip(*columns, windows))
        for link in links:
            if link.window < 1 or link.offset < 0:
                raise ArgumentError(
                    f"{self.type}: the link of {link.internal!r} to {link.external!r} needs a window of at least 1 "
                    f"and an offset of at least 0, got window {link.window} and offset {link.offset}"
                )
        return links

    @cached_property
    def states(self) -> tuple[State, ...]:
        names, initial = self.recurrent_states, self.initial_recurrent_state_ids
        self._same_length(("recurrent_states", "initial_recurrent_state_ids"), (names, initial))
        columns = (self.alias_src, self.alias_dst, self.alias_offset)
        self._same_length(("alias_src", "alias_dst", "alias_offset"), columns)
        aliases = [Alias(*row) for row in zip(*columns)]
        for alias in aliases:
            self._known("alias_src", alias.source, names, "states")
        return tuple(
            State(name, number, tuple(alias for alias in aliases if alias.source == name))
            for name, number in zip(names, initial)
        )

    @property
    def param_gradients(self) -> tuple[str, ...]:
        """The names of the gradients of ``param`` in the backward step net."""
        return self.param_grads or tuple(f"{self.forward_inputs[i]}_grad" for i in self.param)

    def output_aliases(self, outputs: Sequence[str]) -> dict[str, Alias]:
        """Return the alias that each forward output is; an output named as a state is all of that state."""
        found = {name: Alias(name, name, 0) for name in outputs if name in self.recurrent_states}
        found.update((alias.output, alias) for state in self.states for alias in state.aliases)
        return found

    def _same_length(self, names: Sequence[str], columns: Iterable[Sequence[object]]) -> None:
        lengths = [len(column) for column in columns]
        if len(set(lengths)) > 1:
            got = ", ".join(f"{name} {length}" for name, length in zip(names, lengths))
            raise ArgumentError(f"{self.type}: these arguments must have the same length; got {got}")

    def _known(self, what: str, name: str, among: Sequence[str], kind: str) -> None:
        if name not in among:
            raise NetError(f"{self.type}: {what} names blob {name!r}, which is none of its {kind} {list(among)}")

    @cached_property
    def step(self) -> StepNet:
        """The step net, decoded."""
        assert self.step_net is not None
        return StepNet(self.step_net)

    @cached_property
    def backward(self) -> StepNet:
        """The backward step net, decoded."""
        assert self.backward_step_net is not None
        return StepNet(self.backward_step_net)

    @cached_property
    def linked(self) -> dict[str, Link]:
        """The links by the step net's name."""
        return {link.internal: link for link in self.links}

    def check(self) -> None:
        if self.step_net is None:
            raise ArgumentError(f"{self.type}: the argument step_net, a net, must be given")
        self._check_states()
        self._check_links()
        self._check_reads()
        self._check_params()

    def _check_states(self) -> None:
        inputs = self.forward_inputs
        for state in self.states:
            if not 0 <= state.initial < len(inputs):
                raise NetError(
                    f"{self.type}: state {state.name!r} has no initial value: initial_recurrent_state_ids says input "
                    f"{state.initial}, and there are {len(inputs)}"
                )

    def _check_links(self) -> None:
        writes = self.step.written
        externals = (*self.forward_inputs, *self.recurrent_states)
        for link in self.links:
            self._known("link_external", link.external, externals, "inputs and states")
            if link.internal in writes and link.external in self.forward_inputs:
                raise NetError(
                    f"{self.type}: the step net overwrites {link.internal!r}, which is linked to input "
                    f"{link.external!r}; give the operator's output another name"
                )
            if link.internal not in writes and link.internal not in self.step.read:
                continue  # no operator reads it
            if link.internal not in writes and link.external in self.recurrent_states:
                self._check_row(link)
        for name in self.forward_inputs:
            if name in writes and name not in self.linked:
                raise NetError(
                    f"{self.type}: the step net overwrites input {name!r}, which is the same in all steps; give the "
                    "operator's output another name"
                )

    def _check_row(self, link: Link) -> None:
        """Raise NetError if a step reads rows of a state that neither it nor an earlier step has written.

        Initial rows count as written.
        """
        written = [
            other for other in self.links if other.external == link.external and other.internal in self.step.written
        ]
        if not written:
            raise NetError(
                f"{self.type}: state {link.external!r} is read as {link.internal!r}, and no blob that the step net "
                "writes is linked to it"
            )
        last = max(other.offset + other.window for other in written) - 1  # of the step before
        if self._reads_own_rows(link) and link.offset + link.window == last + 1:
            return
        if link.offset + link.window > last:
            raise NetError(
                f"{self.type}: {link.internal!r} reads the rows from t + {link.offset} to t + "
                f"{link.offset + link.window - 1} of state {link.external!r}, of which step t has only those before "
                f"t + {last}: the window or the offset is wrong"
            )

    def _reads_own_rows(self, link: Link) -> bool:
        """Whether a step reads ``link`` only after it has written all rows of the state that it writes."""
        writers = {o.internal for o in self.links if o.external == link.external and o.internal in self.step.written}
        wrote = max(i for i, op in enumerate(self.step.ops) if not writers.isdisjoint(op.outputs))
        return all(i > wrote for i, op in enumerate(self.step.ops) if link.internal in op.inputs)

    @cached_property
    def own_rows(self) -> list[str]:
        """The blobs through which a step reads rows of a state that it has written itself."""
        ends = {o.external: o.offset + o.window for o in self.links if o.internal in self.step.written}
        return [
            link.internal
            for link in self.links
            if link.internal in self.step.read and link.offset + link.window >= ends.get(link.external, math.inf)
        ]

    def _check_reads(self) -> None:
        known = {*self.linked, *self.forward_inputs, self.timestep}
        for name, op in self.step.read.items():
            if name not in known:
                raise NetError(
                    f"{self.type}: {self.step.describe(op)} reads blob {name!r}, which is neither linked, nor an input "
                    f"of {self.type}, nor made by an earlier operator of the step net"
                )

    def _check_params(self) -> None:
        if self.param_grads:
            self._same_length(("param", "param_grads"), (self.param, self.param_grads))
        for number in self.param:
            if not 0 <= number < len(self.forward_inputs):
                raise NetError(f"{self.type}: param names input {number}, and there are {len(self.forward_inputs)}")
