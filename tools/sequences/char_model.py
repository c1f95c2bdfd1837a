"""A character language model: data-parallel training, export, and generation of text."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from netbuilder import parallel
from netbuilder.exchange import load_predictor, save_predictor
from netbuilder.graph import BlobReference, DeviceScope
from netbuilder.graph.observability import OUTPUTS
from netbuilder.model import Initializer, ModelHelper, brew
from netbuilder.model.rnn import LSTM
from netbuilder.proto import PROTO_CPU, NetDef, NetError
from netbuilder.proto.arguments import make_device_option
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime import Workspace
from netbuilder.tools.sequences.characters import Characters
from netbuilder.tools.sequences.tables import build_update

__all__ = ["CharModel", "Size", "Writer"]

Array = np.ndarray[Any, Any]
TABLE = BlobReference("characters/vectors")


@dataclass(frozen=True)
class Size:
    """Size of a model.

    Args:
        characters: number of characters in the alphabet.
        hidden: width of the states.
        layers: number of stacked LSTMs.
        embedding: width of the embeddings.
    """

    characters: int
    hidden: int = 128
    layers: int = 1
    embedding: int = 32

    @property
    def states(self) -> list[str]:
        """The names of the states that are kept between pieces: hidden and cell of each layer."""
        return [f"{kind}_{i}" for i in range(self.layers) for kind in ("hidden", "cell")]


def add_table(model: ModelHelper, size: Size) -> None:
    """Make the embedding table, which the replicas share: its gradient is sparse."""
    with DeviceScope(make_device_option(PROTO_CPU)):
        fill = Initializer("GaussianFill", std=0.1)
        model.create_param(TABLE, [size.characters, size.embedding], fill)


def add_language_model(model: ModelHelper, size: Size, *, forward_only: bool = False) -> tuple[Any, list[Any]]:
    """Add the net from ``characters``, (steps, samples) int32, to scores of each next character.

    Returns:
        The scores, (steps * samples, characters), and the states after the last step.
    """
    rows = model.net.Gather([TABLE, "characters"], "rows")
    starts = [model.net.Copy(model.net.StopGradient(name, f"{name}_given"), f"{name}_start") for name in size.states]
    results = LSTM(
        model,
        rows,
        None,
        starts,
        size.embedding,
        [size.hidden] * size.layers,
        scope="lstm",
        forward_only=forward_only,
        return_last_layer_only=False,
    )
    flat, _ = model.net.Reshape(results[-4], ["outputs", "outputs_shape"], shape=[-1, size.hidden])
    scores = brew.fc(model, flat, "scores", size.hidden, size.characters)
    return scores, list(results[1::2])


class CharModel:
    """A language model in training, with a replica on each device; states are kept from piece to piece.

    Args:
        size: of the model.
        batch: columns of a piece, over all devices.
        devices: replicas on the CPU.
        rate: the learning rate of Adam.
        seed: of the initial values.
    """

    def __init__(self, size: Size, batch: int, devices: int, rate: float = 0.003, seed: int = 1) -> None:
        self.size, self.batch = size, batch
        self.model = ModelHelper("language")
        add_table(self.model, size)
        self.record = parallel.Parallelize_CPU(
            self.model,
            lambda model: None,
            self._forward,
            optimizer_builder_fun=lambda model: build_update(model, rate, size.embedding),
            devices=list(range(devices)),
        )
        self.model.net.set_observable(OUTPUTS)
        self.workspace = Workspace(seed=seed)
        self.started = False

    def _forward(self, model: ModelHelper, scale: float) -> list[Any]:
        scores, states = add_language_model(model, self.size)
        labels = model.net.FlattenToVec("next", "labels")
        _, loss = model.net.SoftmaxWithLoss([scores, labels], ["probabilities", "loss"])
        for name, state in zip(self.size.states, states):
            model.net.Copy(model.net.StopGradient(state, f"{name}_end"), name)  # initial states of the next piece
        return [model.Scale(loss, scale=scale)]

    def step(self, current: Array, following: Array) -> float:
        """Train on one piece; return the mean loss before the step, in nats per character."""
        for name, value in (("characters", current), ("next", following)):
            for blob, part in zip(self.record.devices.copies(name), np.split(value, len(self.record), axis=1)):
                self.workspace.feed(blob, np.ascontiguousarray(part))
        if not self.started:
            self.reset()
            parallel.RunInitNet(self.model, workspace=self.workspace)
            self.started = True
        parallel.RunNet(self.model, 1, workspace=self.workspace)
        losses = [self.workspace.fetch(blob) for blob in self.record.devices.copies("loss")]
        return float(np.mean(losses))

    def reset(self) -> None:
        """Reset the states to 0."""
        shape = (1, self.batch // len(self.record), self.size.hidden)
        for name in self.size.states:
            for blob in self.record.devices.copies(name):
                self.workspace.feed(blob, np.zeros(shape, np.float32))

    def export(self, folder: str | os.PathLike[str], text: Characters) -> None:
        """Write a predictor: inputs are a character and states, outputs the next one's probabilities and states."""
        net, parameters = writing_net(self.size)
        scope = self.record.devices.scopes[0]
        values = {name: self.workspace.fetch(name if name == TABLE else scope + str(name)) for name in parameters}
        save_predictor(
            folder,
            net,
            values,
            inputs=["characters", *self.size.states],
            outputs=["probabilities", *(f"{name}_end" for name in self.size.states)],
            shapes={"characters": (1, 1), **dict.fromkeys(self.size.states, (1, 1, self.size.hidden))},
            classes=list(text.alphabet),
        )


def writing_net(size: Size) -> tuple[NetDef, list[str]]:
    """Return the net that generates text, and the names of its parameters."""
    model = ModelHelper("writing", init_params=False)
    add_table(model, size)
    scores, states = add_language_model(model, size, forward_only=True)
    ends = [model.net.Copy(state, f"{name}_end") for name, state in zip(size.states, states)]
    model.net.AddExternalOutputs(model.net.Softmax(scores, "probabilities"), *ends)
    return model.net.Proto(), [str(parameter) for parameter in model.GetAllParams("")]


class Writer:
    """A language model that generates text, from a folder that ``CharModel.export`` wrote.

    Args:
        folder: of the predictor.
        trusted: see ``load_predictor``.

    Raises:
        NetError: it is not a character model.
    """

    def __init__(self, folder: str | os.PathLike[str], *, trusted: bool = False) -> None:
        self._predictor = load_predictor(folder, trusted=trusted)
        self.alphabet = "".join(self._predictor.classes or ())
        if not self.alphabet or "characters" not in self._predictor.inputs:
            raise NetError(
                f"{os.fspath(folder)!r} is not a character model: its inputs are {list(self._predictor.inputs)}, and "
                f"it has {len(self.alphabet)} characters; give one that netbuilder-char-lm TEXT --export FOLDER wrote"
            )

    def write(self, prime: str, length: int, *, temperature: float = 1.0, seed: int = 0) -> str:
        """Return ``length`` characters that continue ``prime``.

        Args:
            prime: at least one character.
            temperature: probabilities are raised to the power 1 / temperature: below 1, likely characters are drawn
                more often; 0: the most likely one is taken.
            seed: of the random numbers.
        """
        text, rng = Characters(prime + self.alphabet, self.alphabet), np.random.default_rng(seed)
        states = {name: np.zeros(shape, np.float32) for name, shape in self._states().items()}
        written: list[int] = []
        probabilities: Array = np.empty(0)
        for number in text.encode(prime):
            probabilities, states = self._step(int(number), states)
        for _ in range(length):
            written.append(draw(probabilities, temperature, rng))
            probabilities, states = self._step(written[-1], states)
        return text.decode(written)

    def _states(self) -> dict[str, Any]:
        return {name: self._predictor.specs[name].shape for name in self._predictor.inputs if name != "characters"}

    def _step(self, number: int, states: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
        found = self._predictor.run({"characters": np.array([[number]], np.int32), **states})
        return found[self._predictor.outputs[0]][0], {name: found[f"{name}_end"] for name in states}


def draw(probabilities: Array, temperature: float, rng: Any) -> int:
    """Draw an index by its probability, with the temperature of ``Writer.write``."""
    if temperature <= 0:
        return int(np.argmax(probabilities))
    logs = np.log(np.maximum(np.asarray(probabilities, np.float64), 1e-30)) / temperature
    weights = np.exp(logs - logs.max())
    return int(rng.choice(len(weights), p=weights / weights.sum()))
