"""BERT: a bidirectional encoder of text, with a classifier of whole sequences."""

from __future__ import annotations

from typing import Any

from netbuilder.model import ModelHelper, brew
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.zoo.layers import SMALL, Blob, add_dropout, add_head, add_linear, chosen

__all__ = ["BERT", "BertSize", "create_bert"]

_EPSILON = 1e-12


@dataclass(frozen=True)
class BertSize:
    """A size of BERT.

    Args:
        dim: length of the vectors.
        layers: number of blocks.
        heads: of the attention, a divisor of ``dim``.
        tokens: number of different tokens.
        length: the longest sequence.
        segments: number of different segments.
    """

    dim: int
    layers: int
    heads: int
    tokens: int = 30522
    length: int = 512
    segments: int = 2


BERT: dict[str, BertSize] = {
    "tiny": BertSize(128, 2, 2),
    "small": BertSize(512, 4, 8),
    "base": BertSize(768, 12, 12),
    "large": BertSize(1024, 24, 16),
}
"""The sizes of the paper, and two of Turc et al., 2019, arXiv:1908.08962."""


def create_bert(
    model: ModelHelper,
    data: Blob,
    num_labels: int,
    size: str | BertSize = "base",
    label: Blob | None = None,
    is_test: bool = False,
    no_loss: bool = False,
    *,
    segments: Blob,
    mask: Blob | None = None,
    dropout: float = 0.1,
    steps: int | None = None,
) -> Any:
    """Add BERT with a classifier of the first token's vector.

    Args:
        data: tokens, (N, steps), int32.
        num_labels: number of classes; the scores are ``scores``.
        size: one of ``BERT``, or such a row.
        label: classes, (N,), int32.
        is_test: no dropout.
        no_loss: return the scores.
        segments: numbers of the tokens' segments, (N, steps), int32.
        mask: (N, 1, 1, steps), what is added to the scores of a token, float32: 0, and a large negative number for
            tokens after the end of a sequence; None: all are seen.
        dropout: dropout probability of vectors and weights of the attention, in [0, 1).
        steps: length of the sequences; None: that of the size.

    Returns:
        The scores (N, num_labels) if ``no_loss``, (softmax, loss) if there is a label, otherwise the softmax.

    Raises:
        ArgumentError: ``size`` is unknown.

    Source: Devlin, Chang, Lee and Toutanova, "BERT: Pre-training of Deep Bidirectional Transformers for Language
    Understanding", 2018, arXiv:1810.04805.
    """
    table = chosen("create_bert", size, BERT)
    dim, kept = table.dim, 0.0 if is_test else dropout
    x = brew.embedding(model, data, "token_rows", table.tokens, dim, weight_init=SMALL)
    x = brew.positions(model, x, "placed", dim, table.length, steps=steps)
    x = brew.add(
        model, [x, brew.embedding(model, segments, "of_segment", table.segments, dim, weight_init=SMALL)], "sum"
    )
    x = brew.layer_norm(model, x, "first_norm", dim, axis=2, epsilon=_EPSILON)
    x = add_dropout(model, x, "first_drop", kept, is_test)
    for layer in range(1, table.layers + 1):
        x = brew.transformer_block(
            model, x, f"block{layer}", dim, table.heads, norm_first=False, epsilon=_EPSILON, mask=mask, dropout=kept,
            is_test=bool(is_test), weight_init=SMALL,
        )  # fmt: skip
    first = brew.squeeze(
        model, brew.slice(model, x, "first_row", starts=[0, 0], ends=[-1, 1]), "first_vector", dims=[1]
    )
    pooled = brew.tanh(model, add_linear(model, first, "pooled", dim, dim), "features")
    pooled = add_dropout(model, pooled, "features_drop", kept, is_test)
    return add_head(model, add_linear(model, pooled, "scores", dim, num_labels), label, no_loss)
