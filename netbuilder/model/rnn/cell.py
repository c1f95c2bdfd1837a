"""RNNCell: what all recurrent cells have in common, and the first values of their states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, overload

from netbuilder.graph.blob import BlobReference, ScopedBlobReference
from netbuilder.graph.scope import SEPARATOR
from netbuilder.model.initializers import Initializer
from netbuilder.model.model_helper import ModelHelper
from netbuilder.model.rnn.recurrent import recurrent_net
from netbuilder.proto import ArgumentError, NetError

__all__ = ["Blob", "ExtraInputs", "RNNCell", "StateInitializer", "ZeroStates", "joined_name", "rectified", "step_model"]

Blob = str | BlobReference
ExtraInputs = Sequence[tuple[Blob, int]]
"""Blobs of the step that a cell takes besides its input, each with its length."""


class StateInitializer(Protocol):
    """Makes the first values of a cell's states."""

    def create_states(self, model: ModelHelper) -> list[BlobReference]:
        """Return a blob for each state, of the shape (width,), the same for all samples."""


@overload
def rectified(blob: Blob) -> BlobReference: ...


@overload
def rectified(blob: None) -> None: ...


@overload
def rectified(blob: Blob | None) -> BlobReference | None: ...


def rectified(blob: Blob | None) -> BlobReference | None:
    """Return a reference: strings get the current name scope; None stays None."""
    return blob if blob is None or isinstance(blob, BlobReference) else ScopedBlobReference(blob)


def joined_name(scope: str | None, name: str) -> str:
    """Return ``scope/name``, or ``name`` without a scope."""
    return name if scope is None else f"{scope}{SEPARATOR}{name}"


def step_model(model: ModelHelper, name: str | None) -> ModelHelper:
    """Return a model for a step net, whose parameters are made by ``model``'s init net and listed in ``model``."""
    step = ModelHelper(name=name, param_model=model, init_params=model.init_params, arg_scope=model.arg_scope)
    step.param_init_net = model.param_init_net
    step.weights, step.biases = model.weights, model.biases
    return step


class RNNCell:
    """One step of a recurrent net: from an input and the states before to the states after.

    A cell of one's own overrides ``apply_override`` and ``get_state_names_override``, and mostly ``prepare_input`` and
    ``get_output_dim``; see ``docs/recurrent.md``.

    Args:
        name: put before the names of the cell's blobs; None: nothing.
        forward_only: make no backward pass.
        initializer: makes the first values of the states where a call gives none.

    Attributes:
        recompute_blobs: blobs of a step that the backward pass computes again, of the last call.
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
        """What makes the first values of the states."""
        return self._initializer

    @initializer.setter
    def initializer(self, value: StateInitializer | None) -> None:
        self._initializer = value

    def scope(self, name: str) -> str:
        """Return a name with the cell's as its prefix."""
        return joined_name(self.name, name)

    def concatenated(self, model: ModelHelper, blobs: Sequence[Blob], name: str) -> BlobReference:
        """Add what joins blobs of a step along their widths; the result is called ``name`` under the cell's."""
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
            seq_lengths: (samples,) int32: how many steps each sample has; None: all.
            initial_states: first value of each state, (samples, width), (1, samples, width) or (width,); None: what
                ``initializer`` makes.
            outputs_with_grads: which of the outputs gradients come in through; None: that of the cell's output.

        Returns:
            The outputs of all steps, (steps, samples, width); and for each state all its values and the last.

        Raises:
            NetError: there are no first values; there are more or fewer than states.
        """
        first = self.first_states(model, initial_states)
        prepared = self.prepare_input(model, inputs)
        step = step_model(model, self.name)
        input_t, timestep = step.net.AddScopedExternalInputs("input_t", "timestep")
        names = [f"{name}_prev" for name in self.get_state_names()]
        before = step.net.AddScopedExternalInputs(*names) if names else []
        before = before if isinstance(before, list) else [before]
        after = self._apply(step, input_t, seq_lengths, before, timestep)
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
        """Return the first values of the states: those given, or what the initializer makes.

        Raises:
            NetError: see ``apply_over_sequence``.
        """
        names = self.get_state_names()
        if initial_states is None:
            if self.initializer is None:
                raise NetError(f"cell {self._shown()}: has no initializer, so initial_states must be given: {names}")
            initial_states = self.initializer.create_states(model)
        if isinstance(initial_states, (str, BlobReference)) or len(initial_states) != len(names):
            raise NetError(
                f"cell {self._shown()}: has {len(names)} states, {names}; initial_states must have one value for each, "
                f"got {initial_states!r}"
            )
        return [rectified(state) for state in initial_states]

    def _outputs_with_grads(self, given: Sequence[int] | None) -> list[int]:
        return [2 * self.get_output_state_index()] if given is None else list(given)

    def _shown(self) -> str:
        return f"{type(self).__name__} {self.name!r}"

    # -- one step ---------------------------------------------------------------------------

    def apply(
        self, model: ModelHelper, input_t: Blob, seq_lengths: Blob | None, states: Sequence[Blob], timestep: Blob
    ) -> tuple[BlobReference, list[BlobReference]]:
        """Add one step, input projection included, to ``model``.

        Args:
            input_t: (1, samples, width).
            seq_lengths: (samples,) int32; None: all samples go on.
            states: their values before, (1, samples, width) each.
            timestep: one int32, the number of the step.

        Returns:
            The output, and the states after.
        """
        prepared = self.prepare_input(model, input_t)
        after = self._apply(model, prepared, seq_lengths, states, timestep)
        return self._prepare_output(model, after), after

    def _apply(
        self,
        model: ModelHelper,
        input_t: Blob,
        seq_lengths: Blob | None,
        states: Sequence[Blob],
        timestep: Blob,
        extra_inputs: ExtraInputs | None = None,
    ) -> list[BlobReference]:
        """Add one step whose input is prepared; blobs may be given by name, and get the current scope then."""
        given = {"extra_inputs": [(rectified(blob), width) for blob, width in extra_inputs]} if extra_inputs else {}
        return list(
            self.apply_override(
                model,
                rectified(input_t),
                rectified(seq_lengths),
                list(map(rectified, states)),
                rectified(timestep),
                **given,
            )
        )

    def apply_override(
        self,
        model: ModelHelper,
        input_t: Any,
        seq_lengths: Any,
        states: Any,
        timestep: Any,
        extra_inputs: Any = None,
    ) -> Sequence[BlobReference]:
        """Add one step to ``model`` and return the states after it; for cells to override.

        Args:
            input_t: what ``prepare_input`` made, one step of it: (1, samples, width).
            seq_lengths: (samples,) int32, or None.
            states: the states before, (1, samples, width) each.
            timestep: the number of the step.
            extra_inputs: pairs (blob, width) to take besides the states; not given to cells outside an AttentionCell.
        """
        raise NotImplementedError(f"{type(self).__name__}: a cell says in apply_override what a step does")

    def prepare_input(self, model: ModelHelper, input_blob: Blob) -> Blob:
        """Add what is done for all steps at once, before the first; return what the steps take as input."""
        return input_blob

    # -- what it has ------------------------------------------------------------------------

    def get_output_state_index(self) -> int:
        """Return which state is the output."""
        return 0

    def get_state_names(self) -> list[str]:
        """Return the names of the states, the cell's own in front."""
        return [self.scope(name) for name in self.get_state_names_override()]

    def get_state_names_override(self) -> list[str]:
        """Return the names of the states, without the cell's; for cells to override."""
        raise NotImplementedError(f"{type(self).__name__}: a cell names its states in get_state_names_override")

    def get_output_dim(self) -> int:
        """Return the width of the output; for cells to override, if others are put after them."""
        raise NotImplementedError(f"{type(self).__name__}: a cell tells the width of its output in get_output_dim")

    def _prepare_output(self, model: ModelHelper, states: Sequence[BlobReference]) -> BlobReference:
        """Return the output of a step, from the states after it."""
        return states[self.get_output_state_index()]

    def _prepare_output_sequence(self, model: ModelHelper, state_outputs: Sequence[BlobReference]) -> BlobReference:
        """Return the outputs of all steps, from all values and the last one of each state."""
        return state_outputs[2 * self.get_output_state_index()]


class ZeroStates:
    """First values that are parameters, 0 at the beginning, the same for all samples.

    Args:
        names: of the states, the cell's name in front.
        width: of each.
    """

    def __init__(self, names: Sequence[str], width: int) -> None:
        if width < 1:
            raise ArgumentError(
                f"first states {list(names)}: the width must be a whole number from 1 on, got {width!r}"
            )
        self.names = list(names)
        self.width = width

    def create_states(self, model: ModelHelper) -> list[BlobReference]:
        """Return the parameters, made in the current name scope."""
        zeros = Initializer("ConstantFill", value=0.0)
        return [model.create_param(name, [self.width], zeros) for name in self.names]
