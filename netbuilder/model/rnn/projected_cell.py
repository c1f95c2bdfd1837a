"""The base class of cells that project their input: widths, the projection, extra inputs."""

from __future__ import annotations

from typing import Any, ClassVar

from netbuilder.graph.blob import BlobReference
from netbuilder.model import brew
from netbuilder.model.model_helper import ModelHelper
from netbuilder.model.rnn.cell import Blob, ExtraInputs, RNNCell, StateInitializer
from netbuilder.proto import ArgumentError

__all__ = ["SizedCell"]


class SizedCell(RNNCell):
    """Base class of cells whose input is projected for all steps at once, to ``projections * hidden_size`` elements.

    Args:
        input_size, hidden_size: widths of the input and of the state.
        drop_states: set the states of a sample to 0 after its sequence has ended, instead of leaving them unchanged.
        initializer: of the initial states.
        kwargs: ``name``, ``forward_only``.

    Raises:
        ArgumentError: a width is not a positive integer.
    """

    projections: ClassVar[int] = 1

    def __init__(
        self, input_size: int, hidden_size: int, drop_states: bool, initializer: StateInitializer | None, **kwargs: Any
    ) -> None:
        super().__init__(initializer=initializer, **kwargs)
        for what, extent in (("input_size", input_size), ("hidden_size", hidden_size)):
            if not hasattr(extent, "__index__") or extent < 1:
                raise ArgumentError(f"cell {self._description()}: {what} must be a positive integer, got {extent!r}")
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.drop_states = drop_states

    def prepare_input(self, model: ModelHelper, input_blob: Blob) -> BlobReference:
        width = self.projections * self.hidden_size
        return brew.fc(model, input_blob, self.scope("i2h"), dim_in=self.input_size, dim_out=width, axis=2)

    def get_state_names_override(self) -> list[str]:
        return ["hidden_t"]

    def get_output_dim(self) -> int:
        return self.hidden_size

    def _with_extra(
        self,
        model: ModelHelper,
        state: BlobReference,
        extra_inputs: ExtraInputs | None,
        name: str = "gates_concatenated_input_t",
    ) -> tuple[BlobReference, int]:
        """Return a state concatenated with the extra inputs of the gates, and the total width."""
        if not extra_inputs:
            return state, self.hidden_size
        joined = self.concatenated(model, [state, *(blob for blob, _ in extra_inputs)], name)
        return joined, self.hidden_size + sum(width for _, width in extra_inputs)
