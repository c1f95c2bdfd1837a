"""RNNCell, the base class of recurrent cells, and the initializers of their states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, overload

from netbuilder.graph.blob import BlobReference, ScopedBlobReference
from netbuilder.graph.scope import SEPARATOR
from netbuilder.model.initializers import Initializer
from netbuilder.model.model_helper import ModelHelper
from netbuilder.model.rnn.recurrent import recurrent_net
from netbuilder.proto import ArgumentError, NetError
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "Blob",
    "ExtraInputs",
    "RNNCell",
    "StateInitializer",
    "StepInputs",
    "ZeroStates",
    "as_reference",
    "joined_name",
    "step_model",
]


Blob = str | BlobReference
ExtraInputs = Sequence[tuple[Blob, int]]
"""Additional inputs of a step, each with its width."""


class StateInitializer(Protocol):
    """Creates the initial values of a cell's states."""

    def create_states(self, model: ModelHelper) -> list[BlobReference]:
        """Return a blob for each state, of shape (width,), the same for all samples."""


@overload
def as_reference(blob: Blob) -> BlobReference: ...


@overload
def as_reference(blob: None) -> None: ...


@overload
def as_reference(blob: Blob | None) -> BlobReference | None: ...


def as_reference(blob: Blob | None) -> BlobReference | None:
    """Return a reference: strings get the current name scope; None remains None."""
    return blob if blob is None or isinstance(blob, BlobReference) else ScopedBlobReference(blob)


@dataclass(frozen=True)
class StepInputs:
    """The inputs of one step of a cell; strings get the current name scope.

    Args:
        input_t: the input, prepared by ``prepare_input``.
        seq_lengths: (samples,) int32: number of steps of each sample; None: all.
        states: the states before the step, (1, samples, width) each.
        timestep: the number of the step, an int32.
        extra_inputs: additional inputs, with their widths.
    """

    input_t: Blob
    seq_lengths: Blob | None
    states: Sequence[Blob]
    timestep: Blob
    extra_inputs: ExtraInputs = ()

    def as_references(self) -> StepInputs:
        """Return the same inputs as references."""
        extra = [(as_reference(blob), width) for blob, width in self.extra_inputs]
        states = [as_reference(state) for state in self.states]
        return StepInputs(
            as_reference(self.input_t), as_reference(self.seq_lengths), states, as_reference(self.timestep), extra
        )


def joined_name(scope: str | None, name: str) -> str:
    """Return ``scope/name``, or ``name`` without a scope."""
    return name if scope is None else f"{scope}{SEPARATOR}{name}"


def step_model(model: ModelHelper, name: str | None) -> ModelHelper:
    """Return a model for a step net; ``model``'s init net initializes its parameters, which ``model`` lists."""
    step = ModelHelper(name=name, param_model=model, init_params=model.init_params, arg_scope=model.arg_scope)
    step.param_init_net = model.param_init_net
    step.weights, step.biases = model.weights, model.biases
    return step


class RNNCell:
    """One step of a recurrent net, which computes new states from an input and the previous states.

    User-defined cells override ``apply_override`` and ``get_state_names_override``, and usually ``prepare_input`` and
    ``get_output_dim``; see ``docs/recurrent.md``.

    Args:
        name: prefix of the names of the cell's blobs; None: no prefix.
        forward_only: build no backward pass.
        initializer: creates the initial states if a call does not give them.

    Attributes:
        recompute_blobs: blobs of the step that was added last which the backward pass recomputes.
    """

    def __init__(
        self, name: str | None = None, forward_only: bool = False, initializer: StateInitializer | None = None
    ) -> None:
        self.name = name
        self.recompute_blobs: list[BlobReference] = []
        self.forward_only = forward_only
        self._initializer = initializer

    @property
    def initializer(self) -> StateInitializer | None:
        """Creates the initial states."""
        return self._initializer

    @initializer.setter
    def initializer(self, value: StateInitializer | None) -> None:
        self._initializer = value

    def scope(self, name: str) -> str:
        """Return a name with the cell's name as prefix."""
        return joined_name(self.name, name)

    def concatenated(self, model: ModelHelper, blobs: Sequence[Blob], name: str) -> BlobReference:
        """Concatenate blobs of a step along their widths; the result is named ``name`` with the cell's prefix."""
        outputs = [self.scope(name), self.scope(f"_{name}_concat_dims")]
        joined: BlobReference = model.net.Concat(list(blobs), outputs, axis=2)[0]
        return joined

    # -- over a sequence --------------------------------------------------------------------

    def apply_over_sequence(
        self,
        model: ModelHelper,
        inputs: Blob,
        seq_lengths: Blob | None = None,
        initial_states: Sequence[Blob] | None = None,
        outputs_with_grads: Sequence[int] | None = None,
    ) -> tuple[BlobReference, tuple[BlobReference, ...]]:
        """Run the cell over a sequence, in one RecurrentNetwork operator.

        Args:
            inputs: (steps, samples, width).
            seq_lengths: (samples,) int32: number of steps of each sample; None: all.
            initial_states: initial value of each state, (samples, width), (1, samples, width) or (width,); None: the
                result of ``initializer``.
            outputs_with_grads: indices of the outputs that have gradients; None: only the cell's output.

        Returns:
            The outputs of all steps, (steps, samples, width); and for each state all its values and the last.

        Raises:
            NetError: there are no initial states, or their number is wrong.
        """
        first = self.first_states(model, initial_states)
        prepared = self.prepare_input(model, inputs)
        step = step_model(model, self.name)
        input_t, timestep = step.net.AddScopedExternalInputs("input_t", "timestep")
        names = [f"{name}_prev" for name in self.get_state_names()]
        before = step.net.AddScopedExternalInputs(*names) if names else []
        before = before if isinstance(before, list) else [before]
        after = self._add_step(step, StepInputs(input_t, seq_lengths, before, timestep))
        results = recurrent_net(
            net=model.net,
            cell_net=step.net,
            inputs=[(input_t, prepared)],
            initial_cell_inputs=list(zip(before, first)),
            links=dict(zip(before, after)),
            timestep=timestep,
            scope=self.name,
            forward_only=self.forward_only,
            outputs_with_grads=self._outputs_with_grads(outputs_with_grads),
            recompute_blobs_on_backward=self.recompute_blobs,
        )
        return self._prepare_output_sequence(model, results), results

    def first_states(self, model: ModelHelper, initial_states: Sequence[Blob] | None) -> list[BlobReference]:
        """Return the initial states: those given, or those of the initializer.

        Raises:
            NetError: see ``apply_over_sequence``.
        """
        names = self.get_state_names()
        if initial_states is None:
            if self.initializer is None:
                raise NetError(
                    f"cell {self._description()} has no initializer, so initial_states must be given: {names}"
                )
            initial_states = self.initializer.create_states(model)
        if isinstance(initial_states, (str, BlobReference)) or len(initial_states) != len(names):
            raise NetError(
                f"cell {self._description()} has {len(names)} states, {names}; initial_states must have one value for "
                f"each, got {initial_states!r}"
            )
        return [as_reference(state) for state in initial_states]

    def _outputs_with_grads(self, given: Sequence[int] | None) -> list[int]:
        return [2 * self.get_output_state_index()] if given is None else list(given)

    def _description(self) -> str:
        return f"{type(self).__name__} {self.name!r}"

    # -- one step ---------------------------------------------------------------------------

    def apply(
        self, model: ModelHelper, input_t: Blob, seq_lengths: Blob | None, states: Sequence[Blob], timestep: Blob
    ) -> tuple[BlobReference, list[BlobReference]]:
        """Add one step, including the input projection, to ``model``.

        Args:
            input_t: (1, samples, width).
            seq_lengths: (samples,) int32: number of steps of each sample; None: all.
            states: the states before the step, (1, samples, width) each.
            timestep: the number of the step, an int32.

        Returns:
            The output, and the states after the step.
        """
        prepared = self.prepare_input(model, input_t)
        after = self._add_step(model, StepInputs(prepared, seq_lengths, states, timestep))
        return self._prepare_output(model, after), after

    def _add_step(self, model: ModelHelper, step: StepInputs) -> list[BlobReference]:
        """Add one step to ``model``, by ``_apply``, which cells of Caffe2's scripts override."""
        extra = step.extra_inputs
        return list(self._apply(model, step.input_t, step.seq_lengths, step.states, step.timestep, extra))

    def _apply(
        self,
        model: ModelHelper,
        input_t: Any,
        seq_lengths: Any,
        states: Any,
        timestep: Any,
        extra_inputs: Any = (),
    ) -> Sequence[BlobReference]:
        """Add one step to ``model``; return the states after it. The arguments are those of ``apply_override``."""
        return self._step(model, StepInputs(input_t, seq_lengths, states, timestep, extra_inputs or ()))

    def _step(self, model: ModelHelper, step: StepInputs) -> list[BlobReference]:
        """Add one step to ``model``; return the states after it."""
        step = step.as_references()
        extra = {"extra_inputs": step.extra_inputs} if step.extra_inputs else {}
        return list(self.apply_override(model, step.input_t, step.seq_lengths, step.states, step.timestep, **extra))

    def apply_override(
        self,
        model: ModelHelper,
        input_t: Any,
        seq_lengths: Any,
        states: Any,
        timestep: Any,
        extra_inputs: Any = None,
    ) -> Sequence[BlobReference]:
        """Add one step to ``model`` and return the states after it; cells override this method.

        Args:
            input_t: one step of the result of ``prepare_input``, (1, samples, width).
            seq_lengths: (samples,) int32, or None.
            states: the states before the step, (1, samples, width) each.
            timestep: the number of the step.
            extra_inputs: pairs (blob, width) of additional inputs; passed only by an AttentionCell.
        """
        raise NotImplementedError(f"{type(self).__name__}: override apply_override, which adds one step")

    def prepare_input(self, model: ModelHelper, input_blob: Blob) -> Blob:
        """Add the operators that process the input of all steps at once; return the input of the steps."""
        return input_blob

    # -- states and output ------------------------------------------------------------------

    def get_output_state_index(self) -> int:
        """Return the index of the state that is the output."""
        return 0

    def get_state_names(self) -> list[str]:
        """Return the names of the states, with the cell's name as prefix."""
        return [self.scope(name) for name in self.get_state_names_override()]

    def get_state_names_override(self) -> list[str]:
        """Return the names of the states, without prefix; cells override this method."""
        raise NotImplementedError(f"{type(self).__name__}: override get_state_names_override")

    def get_output_dim(self) -> int:
        """Return the width of the output; cells must override this method if they are part of other cells."""
        raise NotImplementedError(f"{type(self).__name__}: override get_output_dim")

    def _prepare_output(self, model: ModelHelper, states: Sequence[BlobReference]) -> BlobReference:
        """Return the output of a step, given the states after it."""
        return states[self.get_output_state_index()]

    def _prepare_output_sequence(self, model: ModelHelper, state_outputs: Sequence[BlobReference]) -> BlobReference:
        """Return the outputs of all steps, given all values and the last value of each state."""
        return state_outputs[2 * self.get_output_state_index()]


class ZeroStates:
    """Initial states that are parameters, initialized to 0, the same for all samples.

    Args:
        names: names of the parameters, one per state.
        width: width of each state.
    """

    def __init__(self, names: Sequence[str], width: int) -> None:
        if width < 1:
            raise ArgumentError(f"initial states {list(names)}: the width must be a positive integer, got {width!r}")
        self.names = list(names)
        self.width = width

    def create_states(self, model: ModelHelper) -> list[BlobReference]:
        """Create the parameters in the current name scope and return them."""
        zeros = Initializer("ConstantFill", value=0.0)
        return [model.create_param(name, [self.width], zeros) for name in self.names]
