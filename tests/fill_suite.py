"""The shared part of the tests of fills: the ways to give a shape, and errors of all fills."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st

from netbuilder.proto import ArgumentError
from suite import OperatorSuite, Refusal, f32, i64, refusal

__all__ = ["FillOperatorSuite", "draw_shape", "shared_refusals"]


def draw_shape(data: Any, shape: tuple[int, ...], **fields: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return arguments and inputs that give ``shape`` in one of the possible ways."""
    how = data.draw(st.sampled_from(["shape", "like", "extra", "input_as_shape"]))
    if how == "shape":
        return {"shape": shape, **fields}, []
    if how == "like":
        return fields, [np.zeros(shape, np.float32)]
    if how == "extra":
        return {"extra_shape": shape[1:], **fields}, [np.zeros(shape[:1], np.int32)]
    return {"input_as_shape": True, "extra_shape": shape[2:], **fields}, [np.array(shape[:2], np.int64)]


def shared_refusals(cls: Any, **fields: Any) -> tuple[Refusal, ...]:
    """What every fill refuses."""
    return (
        refusal(cls(shape=(2, 2), **fields), [f32(2, 2)], "argument shape or an input, not both", ArgumentError),
        refusal(cls(extra_shape=(2, 2), **fields), [], "need an input", ArgumentError),
        refusal(cls(shape=(2, -1), **fields), [], "must not be negative", ArgumentError),
        refusal(cls(input_as_shape=True, **fields), [i64(2)], "only when the net runs"),
    )


class FillOperatorSuite(OperatorSuite):
    """Base of the fills' test classes."""

    no_gradient: ClassVar[str] = "no gradient passes"
