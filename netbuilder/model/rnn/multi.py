"""Cells made of other cells: stacks of layers, and dropout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.graph.scope import NameScope
from netbuilder.model import brew
from netbuilder.model.helpers.engine import CUDNN
from netbuilder.model.model_helper import ModelHelper
from netbuilder.model.rnn.cell import Blob, RNNCell, StepInputs, as_reference, joined_name
from netbuilder.proto import ArgumentError, NetError

__all__ = ["DropoutCell", "MultiRNNCell", "MultiRNNCellInitializer"]


class MultiRNNCellInitializer:
    """The initial states of all layers, one layer after the other.

    Args:
        cells: the layers, lowest first.
        name: name of the cell that has these layers.
    """

    def __init__(self, cells: Sequence[RNNCell], *, name: str | None = None) -> None:
        self.cells = list(cells)
        self.name = name

    def create_states(self, model: ModelHelper) -> list[BlobReference]:
        """Return the states of the layers' initializers, created in each layer's name scope.

        Raises:
            NetError: a layer has no initializer.
        """
        states: list[BlobReference] = []
        for i, cell in enumerate(self.cells):
            if cell.initializer is None:
                raise NetError(f"layer {i} of cell {self.name!r} has no initializer; give initial_states")
            with _layer_scope(self.name, i):
                states += cell.initializer.create_states(model)
        return states


@contextmanager
def _layer_scope(name: str | None, layer: int) -> Iterator[None]:
    with NameScope(name), NameScope(f"layer_{layer}"):
        yield


class MultiRNNCell(RNNCell):
    """A stack of layers: the input of each is the output of the layer below.

    Args:
        cells: the layers, lowest first.
        residual_output_layers: indices of layers whose input is added to their output; not 0, the lowest.
        kwargs: ``name``, ``forward_only``, ``initializer``.

    Raises:
        ArgumentError: there are no layers; a residual layer does not exist, or has another width than the layer below.
    """

    def __init__(
        self, cells: Sequence[RNNCell], residual_output_layers: Sequence[int] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.cells = list(cells)
        self.residual_output_layers = sorted(residual_output_layers or ())
        if not self.cells:
            raise ArgumentError(f"cell {self._description()} has no layers; give a list of cells")
        self._check_residual()
        self.output_index_of_layer = [0]
        for cell in self.cells[:-1]:
            self.output_index_of_layer.append(self.output_index_of_layer[-1] + len(cell.get_state_names()))
        if self.initializer is None and all(cell.initializer is not None for cell in self.cells):
            self.initializer = MultiRNNCellInitializer(self.cells, name=self.name)

    @property
    def output_indices(self) -> list[int]:
        """Indices of the states that the output consists of."""
        return [self.output_index_of_layer[i] + self.cells[i].get_output_state_index() for i in self._summed_layers()]

    def _check_residual(self) -> None:
        for layer in self.residual_output_layers:
            if not 0 < layer < len(self.cells):
                raise ArgumentError(
                    f"cell {self._description()}: residual_output_layers must be in [1, {len(self.cells) - 1}], got "
                    f"{layer}"
                )
            below, own = self.cells[layer - 1].get_output_dim(), self.cells[layer].get_output_dim()
            if below != own:
                raise ArgumentError(
                    f"cell {self._description()}: layer {layer} adds its input of width {below} to its output of width "
                    f"{own}; give both layers the same width"
                )

    def layer_scoper(self, layer_id: int) -> Any:
        """Return the name scope of a layer, a context manager."""
        return _layer_scope(self.name, layer_id)

    def prepare_input(self, model: ModelHelper, input_blob: Blob) -> Blob:
        given = as_reference(input_blob)
        with NameScope(self.name):
            return self.cells[0].prepare_input(model, given)

    def _step(self, model: ModelHelper, step: StepInputs) -> list[BlobReference]:
        step = step.as_references()
        given: Any = step.input_t
        after: list[BlobReference] = []
        for i, cell in enumerate(self.cells):
            own = step.states[len(after) : len(after) + len(cell.get_state_names())]
            extra = step.extra_inputs if i == 0 else ()
            with self.layer_scoper(i):
                prepared = given if i == 0 else cell.prepare_input(model, given)
                made = cell._add_step(model, replace(step, input_t=prepared, states=own, extra_inputs=extra))
                if i + 1 < len(self.cells):
                    output = cell._prepare_output(model, made)
                    if i in self.residual_output_layers:
                        output = brew.sum(model, [output, given], self.scope(f"residual_output_{i}"))
                    given = output
            after += made
        self.recompute_blobs = [blob for cell in self.cells for blob in cell.recompute_blobs]
        return after

    def get_state_names(self) -> list[str]:
        return [
            joined_name(self.name, f"layer_{i}/{name}")
            for i, cell in enumerate(self.cells)
            for name in cell.get_state_names()
        ]

    def get_output_state_index(self) -> int:
        return self.output_index_of_layer[-1] + self.cells[-1].get_output_state_index()

    def get_output_dim(self) -> int:
        return self.cells[-1].get_output_dim()

    def _summed_layers(self) -> list[int]:
        """Return the layers whose outputs are summed: the last one, and those that residual connections add to it."""
        first = len(self.cells) - 1
        while first in self.residual_output_layers:
            first -= 1
        return list(range(first, len(self.cells)))

    def _prepare_output(self, model: ModelHelper, states: Sequence[BlobReference]) -> BlobReference:
        outputs = [
            self.cells[i]._prepare_output(model, states[self.output_index_of_layer[i] :]) for i in self._summed_layers()
        ]
        return outputs[0] if len(outputs) == 1 else brew.sum(model, outputs, self.scope("residual_output"))

    def _prepare_output_sequence(self, model: ModelHelper, states: Sequence[BlobReference]) -> BlobReference:
        outputs = [
            self.cells[i]._prepare_output_sequence(model, states[2 * self.output_index_of_layer[i] :])
            for i in self._summed_layers()
        ]
        return outputs[0] if len(outputs) == 1 else brew.sum(model, outputs, self.scope("residual_output_sequence"))

    def _outputs_with_grads(self, given: Sequence[int] | None) -> list[int]:
        if given is not None:
            return list(given)
        return [2 * index for index in self.output_indices]


class DropoutCell(RNNCell):
    """A cell with dropout of its output, but not of its states.

    Args:
        internal_cell: the cell.
        dropout_ratio: dropout probability; None: no dropout.
        use_cudnn: request the engine CUDNN.
        is_test: no dropout; required.
        kwargs: ``name``, ``forward_only``.

    Raises:
        ArgumentError: ``is_test`` is missing.
    """

    def __init__(
        self, internal_cell: RNNCell, dropout_ratio: float | None = None, use_cudnn: bool = False, **kwargs: Any
    ) -> None:
        if "is_test" not in kwargs:
            raise ArgumentError("DropoutCell: is_test is required: False in a training net, True in a test net")
        self.is_test = bool(kwargs.pop("is_test"))
        super().__init__(**kwargs)
        self.internal_cell = internal_cell
        self.dropout_ratio = dropout_ratio
        self.use_cudnn = use_cudnn
        self.mask = 0
        if self.initializer is None:
            self.initializer = internal_cell.initializer

    def prepare_input(self, model: ModelHelper, input_blob: Blob) -> Blob:
        return self.internal_cell.prepare_input(model, input_blob)

    def _step(self, model: ModelHelper, step: StepInputs) -> list[BlobReference]:
        after = self.internal_cell._add_step(model, step)
        self.recompute_blobs = list(self.internal_cell.recompute_blobs)
        return after

    def get_state_names(self) -> list[str]:
        return self.internal_cell.get_state_names()

    def get_output_state_index(self) -> int:
        return self.internal_cell.get_output_state_index()

    def get_output_dim(self) -> int:
        return self.internal_cell.get_output_dim()

    def _outputs_with_grads(self, given: Sequence[int] | None) -> list[int]:
        return self.internal_cell._outputs_with_grads(given)

    def _prepare_output(self, model: ModelHelper, states: Sequence[BlobReference]) -> BlobReference:
        return self._apply_dropout(model, self.internal_cell._prepare_output(model, states))

    def _prepare_output_sequence(self, model: ModelHelper, state_outputs: Sequence[BlobReference]) -> BlobReference:
        return self._apply_dropout(model, self.internal_cell._prepare_output_sequence(model, state_outputs))

    def _apply_dropout(self, model: ModelHelper, output: BlobReference) -> BlobReference:
        if not self.dropout_ratio or self.forward_only:
            return output
        name = f"{output}_with_dropout_mask{self.mask}"
        self.mask += 1
        dropped: BlobReference = model.net.Dropout(
            output,
            [self.scope(name), self.scope(f"_{name}_mask")],
            ratio=float(self.dropout_ratio),
            is_test=self.is_test,
            sample_axis=1,
            engine=CUDNN if self.use_cudnn else "DEFAULT",
        )[0]
        return dropped
