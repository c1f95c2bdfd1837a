"""A sequence-to-sequence model with attention: data-parallel training, and answers by beam search."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder import parallel
from netbuilder.graph import BlobReference, DeviceScope
from netbuilder.graph.observability import OUTPUTS
from netbuilder.model import ModelHelper
from netbuilder.model.rnn import LSTMCell
from netbuilder.model.seq2seq import (
    Hypothesis,
    LSTMWithAttentionDecoder,
    Seq2SeqModelHelper,
    beam_search,
    build_embedding_decoder,
    build_embedding_encoder,
    build_embeddings,
    build_initial_rnn_decoder_states,
    output_projection,
)
from netbuilder.proto import PROTO_CPU
from netbuilder.proto.arguments import make_device_option
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime import Workspace
from netbuilder.tools.sequences.pairs import Batch, Pairs
from netbuilder.tools.sequences.tables import build_update

__all__ = ["Shape", "Translator"]

Array = np.ndarray[Any, Any]
INPUTS = ("source", "source_lengths", "target", "target_lengths")


@dataclass(frozen=True)
class Shape:
    """Size of a model, and its kind of attention.

    Args:
        words: number of words of both languages.
        units: width of the states of encoder and decoder.
        embedding: width of the embeddings.
        attention: "none", "regular", "recurrent", "dot" or "soft_coverage".
    """

    words: int
    units: int = 64
    embedding: int = 24
    attention: str = "regular"


class _Nets:
    """The parts of the model, for training and for answering."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def tables(self, model: ModelHelper) -> tuple[BlobReference, BlobReference]:
        """Make the embedding tables, which the replicas share: their gradients are sparse."""
        with DeviceScope(make_device_option(PROTO_CPU)):
            read, written = (
                build_embeddings(model, self.shape.words, self.shape.embedding, name, False)
                for name in ("encoder_words", "decoder_words")
            )
            return read, written

    def encode(self, model: ModelHelper, table: Any, forward_only: bool) -> Any:
        """Add the encoder."""
        return build_embedding_encoder(
            model,
            {"encoder_layer_configs": [{"num_units": self.shape.units}]},
            1,
            "source",
            "source_lengths",
            self.shape.words,
            table,
            self.shape.embedding,
            self.shape.attention != "none",
            forward_only=forward_only,
            scope="encoder",
        )

    def training(self, model: ModelHelper, tables: tuple[Any, Any]) -> Any:
        """Add the whole model, from words to the scores of the next words."""
        encoded = self.encode(model, tables[0], False)
        outputs, width = build_embedding_decoder(
            model,
            [{"num_units": self.shape.units}],
            "target",
            "target_lengths",
            "source_lengths",
            encoded.outputs,
            None,
            encoded.final_hidden_states,
            encoded.final_cell_states,
            encoded.units_per_layer,
            self.shape.words,
            tables[1],
            self.shape.embedding,
            self.shape.attention,
            False,
            scope="decoder",
        )
        return output_projection(model, outputs, width, self.shape.words, None)

    def beginning(self) -> tuple[ModelHelper, list[str]]:
        """Return the net that encodes a question, and its outputs: the encoder's, then the decoder's initial states."""
        model = Seq2SeqModelHelper(init_params=False, name="reading")
        encoded = self.encode(model, self.tables(model)[0], True)
        attends = self.shape.attention != "none"
        states = build_initial_rnn_decoder_states(
            model,
            encoded.units_per_layer,
            [self.shape.units],
            encoded.final_hidden_states,
            encoded.final_cell_states,
            attends,
        )
        return model, [str(encoded.outputs), *map(str, states)]

    def step(self) -> tuple[ModelHelper, list[str], list[str]]:
        """Return the net of one decoder step, its input states, and its outputs: log probabilities and states."""
        model = Seq2SeqModelHelper(init_params=False, name="writing")
        cell = LSTMCell(
            input_size=self.shape.embedding,
            hidden_size=self.shape.units,
            forget_bias=0.0,
            memory_optimization=False,
            forward_only=True,
        )
        decoder = LSTMWithAttentionDecoder(
            BlobReference("read"),
            self.shape.units,
            BlobReference("read_lengths"),
            self.shape.words,
            self.shape.attention,
            self.shape.embedding,
            self.shape.units,
            [cell],
            name="decoder",
        )
        before = [f"state_{i}" for i in range(len(decoder.get_state_names()))]
        rows = model.net.Gather([self.tables(model)[1], "words"], "rows")
        output, after = decoder.apply(model, rows, None, before, "timestep")
        flat, _ = model.net.Reshape(output, ["flat", "flat_shape"], shape=[-1, decoder.get_output_dim()])
        scores = output_projection(model, flat, decoder.get_output_dim(), self.shape.words, None)
        log_probabilities = model.net.Log(model.net.Softmax(scores, "probabilities"), "log_probabilities")
        return model, before, [str(log_probabilities), *map(str, after)]


class Translator:
    """A model in training, with a replica on each device.

    Args:
        shape: of the model.
        devices: replicas on the CPU.
        rate: the learning rate of Adam.
        seed: of the initial values.
    """

    def __init__(self, shape: Shape, devices: int = 1, rate: float = 0.005, seed: int = 1) -> None:
        self.nets = _Nets(shape)
        self.model = Seq2SeqModelHelper(name="translator")
        tables = self.nets.tables(self.model)
        self.record = parallel.Parallelize_CPU(
            self.model,
            lambda model: None,
            lambda model, scale: self._forward(model, scale, tables),
            optimizer_builder_fun=lambda model: build_update(model, rate, shape.embedding),
            devices=list(range(devices)),
        )
        self.model.net.set_observable(OUTPUTS)
        self.workspace = Workspace(seed=seed)
        self._started = False
        self._answering: tuple[Any, list[str], Any, list[str], list[str]] | None = None

    def _forward(self, model: ModelHelper, scale: float, tables: tuple[Any, Any]) -> list[Any]:
        scores = self.nets.training(model, tables)
        labels, weights = (model.net.FlattenToVec(name, f"flat_{name}") for name in ("label", "weight"))
        given = [scores, labels, weights]
        _, loss = model.net.SoftmaxWithLoss(given, ["softmax", "loss"], average_by_batch_size=1)
        return [model.Scale(loss, scale=scale)]

    def step(self, batch: Batch) -> float:
        """Train on one batch; return its loss before the step, in nats, over all positions including padding."""
        for name in (*INPUTS, "label", "weight"):
            value = getattr(batch, name)
            parts = np.split(value, len(self.record), axis=value.ndim - 1)
            for blob, part in zip(self.record.devices.copies(name), parts):
                self.workspace.feed(blob, np.ascontiguousarray(part))
        if not self._started:
            parallel.RunInitNet(self.model, workspace=self.workspace)
            self._started = True
        parallel.RunNet(self.model, 1, workspace=self.workspace)
        return float(np.mean([self.workspace.fetch(blob) for blob in self.record.devices.copies("loss")]))

    def answer(self, pairs: Pairs, question: str, beam_size: int = 4) -> list[Hypothesis]:
        """Return answers, the best first."""
        reading, read, writing, before, after = self._nets_for_answers()
        source = np.array(pairs.encode(question), np.int32)[:, None]
        workspace = self._answer_workspace
        workspace.feed("source", source)
        workspace.feed("source_lengths", np.array([len(source)], np.int32))
        workspace.run_net(reading)
        outputs, *states = (workspace.fetch(name) for name in read)

        def step(words: Array, values: Any, number: int) -> tuple[Array, dict[str, Array]]:
            workspace.feed("read", np.repeat(outputs, len(words), axis=1))
            workspace.feed("read_lengths", np.full(len(words), len(source), np.int32))
            workspace.feed("words", words[None])
            workspace.feed("timestep", np.array([number], np.int32))
            for name, value in values.items():
                workspace.feed(name, value[None])
            workspace.run_net(writing)
            log_probabilities, *states_after = (workspace.fetch(name) for name in after)
            return log_probabilities, dict(zip(before, (state[0] for state in states_after)))

        first = {name: state.reshape(-1) for name, state in zip(before, states)}
        return beam_search(step, first, beam_size=beam_size, max_length=pairs.target_steps)

    def _nets_for_answers(self) -> tuple[Any, list[str], Any, list[str], list[str]]:
        """Return the nets for answers, in a separate workspace with the present parameters."""
        if self._answering is None:
            reading, read = self.nets.beginning()
            writing, before, after = self.nets.step()
            self._answer_workspace = Workspace()
            self._parameters = {str(p) for model in (reading, writing) for p in model.GetAllParams("")}
            self._answering = (reading.net, read, writing.net, before, after)
            self._copy_parameters()
            for name in ("read", "words", "timestep", "read_lengths", "source", "source_lengths"):
                self._answer_workspace.feed(name, np.zeros((1, 1), np.int32))
            for net in (reading.net, writing.net):
                self._answer_workspace.create_net(net)
        self._copy_parameters()
        return self._answering

    def _copy_parameters(self) -> None:
        scope = self.record.devices.scopes[0]
        for name in self._parameters:
            own = scope + name
            self._answer_workspace.feed(name, self.workspace.fetch(own if self.workspace.has(own) else name))

    def accuracy(self, pairs: Pairs, count: int, seed: int, beam_size: int = 4) -> float:
        """Return the share of ``count`` questions whose best answer is correct."""
        drawn = pairs.draw(np.random.default_rng(seed), count)
        right = [pairs.decode(self.answer(pairs, q, beam_size)[0].tokens) == a for q, a in drawn]
        return float(np.mean(right))
