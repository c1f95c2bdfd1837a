"""A small GPT, trained to continue arithmetic sequences modulo 11, of which it has to find the difference.

    python examples/gpt.py --devices 2

The net has 10 lines, ``language_model``; its training another 12; a ``Generator`` computes one token a step, with a
cache of the keys and values of earlier tokens.

Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder import optimizers, parallel
from netbuilder.graph import NameScope
from netbuilder.model import Generator, ModelHelper, brew
from netbuilder.runtime import Workspace

TOKENS, LENGTH, DIM, HEADS, LAYERS = 11, 16, 32, 4, 2


def language_model(model: ModelHelper, tokens: Any, cache: Any = None) -> Any:
    """Add the net, from tokens (N, LENGTH) to the scores of the next tokens."""
    x = brew.embedding(model, tokens, "token", TOKENS, DIM)
    x = brew.positions(model, x, "placed", DIM, LENGTH, cache=cache)
    for layer in range(LAYERS):
        x = brew.transformer_block(model, x, f"block{layer}", DIM, HEADS, causal=True, cache=cache)
    x = brew.layer_norm(model, x, "normal", DIM, axis=2)
    return brew.fc(model, x, "scores", DIM, TOKENS, axis=2)


def add_loss(model: ModelHelper, loss_scale: float) -> list[Any]:
    """Add the net of one replica and its loss."""
    scores = language_model(model, "tokens")
    _, loss = model.net.SoftmaxWithLoss([scores, "next"], ["softmax", "loss"], axis=2)
    return [model.net.Scale(loss, "scaled_loss", scale=loss_scale)]


def sequences(rng: Any, count: int) -> Any:
    """Return sequences of ``LENGTH`` + 1 tokens with random beginnings and differences, int32."""
    first, difference = rng.integers(0, TOKENS, (2, count, 1))
    return ((first + difference * np.arange(LENGTH + 1)) % TOKENS).astype(np.int32)


def train(steps: int = 300, batch: int = 32, devices: int = 1) -> tuple[Workspace, float]:
    """Train on random sequences; return the workspace and the last loss."""
    model, workspace, rng = ModelHelper("gpt"), Workspace(), np.random.default_rng(0)
    record = parallel.Parallelize_CPU(
        model,
        lambda model: None,
        add_loss,
        optimizer_builder_fun=lambda model: optimizers.build_adam(model, 3e-3),
        devices=list(range(devices)),
    )
    for step in range(steps):
        for scope, part in zip(record.devices.scopes, np.split(sequences(rng, batch), devices)):
            workspace.feed(f"{scope}tokens", part[:, :-1])
            workspace.feed(f"{scope}next", part[:, 1:])
        if step == 0:
            parallel.RunInitNet(model, workspace=workspace)
        parallel.RunNet(model, workspace=workspace)
    losses = [workspace.fetch(blob) for blob in record.devices.copies("loss")]
    return workspace, float(np.mean(losses))


def correct(workspace: Workspace, count: int = 50, given: int = 4) -> float:
    """Return the share of tokens that the model generates correctly, after the first ``given`` of a sequence."""

    def build(model: ModelHelper, tokens: Any, cache: Any) -> Any:
        with NameScope("cpu_0"):  # the first replica's parameters
            return language_model(model, tokens, cache)

    want = sequences(np.random.default_rng(1), count)[:, :LENGTH]
    found = Generator(workspace, build, length=LENGTH, batch=count)(want[:, :given], LENGTH - given)
    return float((found == want)[:, given:].mean())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train a GPT on arithmetic sequences, and let it continue new ones.")
    parser.add_argument("--steps", type=int, default=300, help="batches to train on (300)")
    parser.add_argument("--batch", type=int, default=32, help="sequences in a batch (32)")
    parser.add_argument("--devices", type=int, default=1, help="replicas on the CPU (1)")
    options = parser.parse_args(arguments)
    workspace, loss = train(options.steps, options.batch, options.devices)
    share = correct(workspace)
    print(f"loss {loss:.3f} nats a token; {share:.1%} of the tokens after the first four are right")
    return 0 if share > 0.9 else 1


if __name__ == "__main__":
    sys.exit(main())
