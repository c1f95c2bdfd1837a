"""Attention in Caffe2's four kinds."""

from netbuilder.caffe2.missing import names_of
from netbuilder.model.rnn.attention import (
    AttentionType,
    apply_dot_attention,
    apply_recurrent_attention,
    apply_regular_attention,
    apply_soft_coverage_attention,
)
from netbuilder.model.rnn.cell import joined_name

__all__ = [
    "AttentionType",
    "apply_dot_attention",
    "apply_recurrent_attention",
    "apply_regular_attention",
    "apply_soft_coverage_attention",
    "s",
]

__getattr__ = names_of(__name__)


def s(scope: str | None, name: str) -> str:
    """Return ``scope/name``."""
    return joined_name(scope, name)
