"""Concat and Split bound to buffers: the plain kernels' numbers, into memory that was given."""

import numpy as np
import pytest

from checks import run_plain
from netbuilder.ops.arrange.concat import Concat, Split
from netbuilder.ops.arrange.join_bound import prepare_concat, prepare_split
from netbuilder.ops.core.operator import spec_of

TYPES = [np.float32, np.float64, np.int32, np.int64, np.bool_, np.uint8]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_agree_with_the_plain_kernels(dtype, axis):
    rng = np.random.default_rng(0)
    parts = []
    for n in (1, 3, 0, 2):
        shape = [2, 3, 4]
        shape[axis] = n
        parts.append(rng.integers(0, 2, shape).astype(dtype))
    join = Concat(axis=axis).with_arity(len(parts), 2)
    whole, info = run_plain(join, parts)
    bound = prepare_concat(join, None, *map(spec_of, parts))
    made = [np.empty_like(whole), np.empty_like(info)]
    bound.bind(parts, made, None)()
    np.testing.assert_array_equal(made[0], whole)
    assert made[1].tolist() == info.tolist() == [1, 3, 0, 2]
    cut = Split(axis=axis, split=(1, 3, 0, 2)).with_arity(1, 4)
    outs = [np.empty_like(part) for part in parts]
    prepare_split(cut, None, spec_of(whole)).bind([whole], outs, None)()
    for out, part in zip(outs, parts):
        np.testing.assert_array_equal(out, part)


def test_what_the_plain_kernels_do():
    x = np.zeros((2, 3), np.float32)
    assert prepare_concat(Concat(axis=0, add_axis=True).with_arity(1, 2), None, spec_of(x)) is None
    assert prepare_split(Split(axis=0, add_axis=True).with_arity(1, 2), None, spec_of(x)) is None
    strings = np.array([b"a"], object)
    assert prepare_concat(Concat(axis=0).with_arity(1, 2), None, spec_of(strings)) is None
