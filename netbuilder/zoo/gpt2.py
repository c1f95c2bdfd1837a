"""GPT-2: a causal language model."""

from __future__ import annotations

import math
from typing import Any

from netbuilder.model import Initializer, ModelHelper, ParameterTags, brew
from netbuilder.model.helpers.attention import KeyValueCache
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.zoo.layers import SMALL, Blob, add_dropout, chosen

__all__ = ["GPT2", "GPT2Size", "create_gpt2"]


@dataclass(frozen=True)
class GPT2Size:
    """A size of GPT-2.

    Args:
        dim: length of the vectors.
        layers: number of blocks.
        heads: of the attention, a divisor of ``dim``.
        tokens: number of different tokens.
        length: the longest sequence.
    """

    dim: int
    layers: int
    heads: int
    tokens: int = 50257
    length: int = 1024


GPT2: dict[str, GPT2Size] = {
    "small": GPT2Size(768, 12, 12),
    "medium": GPT2Size(1024, 24, 16),
    "large": GPT2Size(1280, 36, 20),
    "xl": GPT2Size(1600, 48, 25),
}
"""The paper's sizes."""


def create_gpt2(
    model: ModelHelper,
    data: Blob,
    size: str | GPT2Size = "small",
    label: Blob | None = None,
    is_test: bool = False,
    no_loss: bool = False,
    *,
    dropout: float = 0.1,
    steps: int | None = None,
    cache: KeyValueCache | None = None,
) -> Any:
    """Add GPT-2, whose scores are computed by the table of the tokens' vectors.

    Args:
        data: tokens, (N, steps), int32.
        size: one of ``GPT2``, or such a row.
        label: the next tokens, (N, steps), int32.
        is_test: no dropout.
        no_loss: return the scores.
        dropout: dropout probability of vectors and weights of the attention, in [0, 1).
        steps: length of the sequences; None: that of the size.
        cache: of a ``Generator``.

    Returns:
        The scores (N, steps, tokens) if ``no_loss``, (softmax, loss) if there is a label, otherwise the softmax.

    Raises:
        ArgumentError: ``size`` is unknown.

    Source: Radford, Wu, Child, Luan, Amodei and Sutskever, "Language Models are Unsupervised Multitask Learners", 2019.
    """
    table = chosen("create_gpt2", size, GPT2)
    dim, kept = table.dim, 0.0 if is_test else dropout
    vectors = model.create_param(
        "token_vectors", [table.tokens, dim], Initializer(SMALL[0], **SMALL[1]), ParameterTags.WEIGHT
    )
    x = brew.embedding(model, data, "token_rows", table=vectors, dense_gradient=1)
    x = brew.positions(model, x, "placed", dim, table.length, steps=steps, cache=cache)
    x = add_dropout(model, x, "placed_drop", kept, is_test)
    deep = ("GaussianFill", {"std": 0.02 / math.sqrt(2 * table.layers)})
    for layer in range(1, table.layers + 1):
        x = brew.transformer_block(
            model, x, f"block{layer}", dim, table.heads, causal=True, activation="gelu_tanh", dropout=kept,
            is_test=bool(is_test), weight_init=SMALL, out_init=deep, cache=cache,
        )  # fmt: skip
    x = brew.layer_norm(model, x, "final_norm", dim, axis=2)
    zeros = model.create_param("scores_b", [table.tokens], Initializer("ConstantFill"), ParameterTags.COMPUTED_PARAM)
    scores = model.net.FC([x, vectors, zeros], "scores", axis=2)
    if no_loss:
        return scores
    if label is None:
        return brew.softmax(model, scores, "softmax", axis=2)
    return model.net.SoftmaxWithLoss([scores, label], ["softmax", "loss"], axis=2)
