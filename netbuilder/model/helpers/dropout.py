"""Dropout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from netbuilder.graph.blob import BlobReference, ScopedName
from netbuilder.model.helpers.engine import CUDNN
from netbuilder.ops.core.broadcasting import MOST_AXES
from netbuilder.proto import ArgumentError
from netbuilder.proto.numbers import check_flags, check_numbers, check_whole_numbers

if TYPE_CHECKING:
    from netbuilder.model.model_helper import ModelHelper

__all__ = ["dropout", "stochastic_depth"]


def dropout(
    model: ModelHelper,
    blob_in: str | BlobReference,
    blob_out: str | BlobReference,
    use_cudnn: bool = False,
    **kwargs: Any,
) -> BlobReference:
    """Set activations to 0 at random and scale the others up; the mask is stored in ``_<blob_out>_mask``.

    Args:
        kwargs: ``is_test`` (required; in a test net activations are unchanged), ``ratio`` (dropout probability,
            in [0, 1)).

    Raises:
        ArgumentError: ``is_test`` is missing.

    Source: Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", 2014.
    """
    if "is_test" not in kwargs:
        raise ArgumentError(f"dropout {str(blob_out)!r}: is_test is required: 0 in a training net, 1 in a test net")
    engine = CUDNN if use_cudnn else "DEFAULT"
    mask = "_" + blob_out + "_mask"
    result: BlobReference = model.net.Dropout(blob_in, [blob_out, mask], engine=engine, **kwargs)[0]
    return result


def stochastic_depth(
    model: ModelHelper,
    blob_in: str | BlobReference,
    blob_out: str | BlobReference,
    ratio: float,
    *,
    ndim: int = 4,
    is_test: bool,
) -> BlobReference:
    """Set whole samples to 0 at random and scale the others up: the result of a block that some samples skip.

    Args:
        blob_in: activations, whose first axis is that of the samples.
        blob_out: name of the result.
        ratio: the probability that a sample is set to 0, in [0, 1).
        ndim: number of axes of ``blob_in``.
        is_test: return ``blob_in`` itself, as with a ratio of 0.

    Raises:
        ArgumentError: ``ratio`` or ``ndim`` is out of range.

    Source: Huang, Sun, Liu, Sedra and Weinberger, "Deep Networks with Stochastic Depth", 2016, arXiv:1603.09382.
    """
    owner = f"stochastic_depth {str(blob_out)!r}"
    check_numbers(owner, "in [0, 1)", ratio=ratio)
    check_whole_numbers(owner, 1, MOST_AXES, ndim=ndim)
    check_flags(owner, is_test=is_test)
    if is_test or not ratio:
        return BlobReference(ScopedName(blob_in), model.net)
    one = model.net.Slice(blob_in, blob_out + "_one", starts=[0] * ndim, ends=[-1] + [1] * (ndim - 1))
    ones = model.net.ConstantFill(one, blob_out + "_ones", value=1.0)
    kept = dropout(model, ones, blob_out + "_kept", ratio=ratio, is_test=0)
    result: BlobReference = model.net.Mul([blob_in, kept], blob_out)
    return result
