"""A cell unrolled over the steps, without a RecurrentNetwork operator."""

from __future__ import annotations

from collections.abc import Sequence

from netbuilder.graph.blob import BlobReference, as_names
from netbuilder.graph.scope import SEPARATOR, NameScope
from netbuilder.model.model_helper import ModelHelper
from netbuilder.model.parameter_sharing import ParameterSharing
from netbuilder.model.rnn.cell import Blob, RNNCell, StepInputs, as_reference
from netbuilder.proto import ArgumentError, TensorProto

__all__ = ["UnrolledCell"]


class UnrolledCell(RNNCell):
    """A cell whose steps are all in the main net, each in a name scope ``timestep_<k>``, with shared parameters.

    The results are the same as those of the cell. The number of steps is fixed, and the size of the net proportional
    to it.

    Args:
        cell: the cell.
        T: the number of steps.

    Raises:
        ArgumentError: ``T`` is not a positive integer.
    """

    def __init__(self, cell: RNNCell, T: int) -> None:
        super().__init__(name=cell.name, forward_only=cell.forward_only, initializer=cell.initializer)
        if not hasattr(T, "__index__") or T < 1:
            raise ArgumentError(f"UnrolledCell: T, the number of steps, must be a positive integer, got {T!r}")
        self.T = T
        self._cell = cell

    def apply_over_sequence(
        self,
        model: ModelHelper,
        inputs: Blob,
        seq_lengths: Blob | None = None,
        initial_states: Sequence[Blob] | None = None,
        outputs_with_grads: Sequence[int] | None = None,
    ) -> tuple[BlobReference, tuple[BlobReference, ...]]:
        """Add all steps; see ``RNNCell.apply_over_sequence``. Gradients of other outputs are set to zero.

        Args:
            initial_states: (1, samples, width) each; None: the result of ``initializer``.

        Raises:
            NetError: see ``RNNCell.apply_over_sequence``.
        """
        states = self._cell.first_states(model, initial_states)
        prepared = as_reference(self._cell.prepare_input(model, inputs))
        if initial_states is None:
            states = self._for_all_samples(model, prepared, states)
        lengths = as_reference(seq_lengths)
        pieces = [f"{as_names(prepared)[0]}_timestep_{k}" for k in range(self.T)]
        split = model.net.Split(prepared, [BlobReference(name) for name in pieces], axis=0)
        split = split if isinstance(split, tuple) else (split,)
        values: list[list[BlobReference]] = [[] for _ in states]
        for k, piece in enumerate(split):
            scope = f"timestep_{k}"
            with ParameterSharing({scope: ""}), NameScope(scope):
                counter = model.param_init_net.ConstantFill([], "timestep", value=k, dtype=TensorProto.INT32, shape=[1])
                states = self._cell._add_step(model, StepInputs(piece, lengths, states, counter))
            for seen, state in zip(values, states):
                seen.append(state)
        results = self._joined(model, values)
        with_grads = self._cell._outputs_with_grads(outputs_with_grads)
        for i, blob in enumerate(results):
            if i not in with_grads:
                model.net.ZeroGradient(blob, [])
        return self._cell._prepare_output_sequence(model, results), results

    def _for_all_samples(
        self, model: ModelHelper, prepared: BlobReference, states: Sequence[BlobReference]
    ) -> list[BlobReference]:
        """Return initial states (1, samples, width), given those of an initializer, (width,)."""
        net = model.net
        samples = net.Slice(net.Shape(prepared), starts=[1], ends=[2])
        zeros = net.ExpandDims(net.ConstantFill(samples, value=0.0, input_as_shape=1), dims=[0, 2])
        return [net.Add([zeros, state], f"{state}_for_all_samples") for state in states]

    def _joined(self, model: ModelHelper, values: Sequence[Sequence[BlobReference]]) -> tuple[BlobReference, ...]:
        """Return for each state the concatenated values of all steps, and the last one."""
        results: list[BlobReference] = []
        for seen in values:
            base = str(seen[0]).replace(f"timestep_0{SEPARATOR}", "", 1)
            names = [BlobReference(f"{base}_concat"), BlobReference(f"{base}_concat_info")]
            results += [model.net.Concat(list(seen), names, axis=0)[0], seen[-1]]
        return tuple(results)

    def prepare_input(self, model: ModelHelper, input_blob: Blob) -> Blob:
        return self._cell.prepare_input(model, input_blob)

    def get_state_names(self) -> list[str]:
        return self._cell.get_state_names()

    def get_output_state_index(self) -> int:
        return self._cell.get_output_state_index()

    def get_output_dim(self) -> int:
        return self._cell.get_output_dim()
