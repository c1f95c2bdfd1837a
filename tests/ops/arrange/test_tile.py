"""Tile and its gradient."""

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.arrange.tile import Tile, TileGradient
from netbuilder.proto import ShapeError
from suite import OperatorSuite, f32, floats, i32, refusal


def draw_tiling(data, cls):
    tiles, axis = data.draw(st.integers(1, 3)), data.draw(st.integers(-3, 2))
    how = data.draw(st.sampled_from(["arguments", "tiles", "both"]))
    if how == "arguments":
        return cls(tiles=tiles, axis=axis), [], tiles, axis
    if how == "tiles":
        return cls(axis=axis), [np.int32([tiles])], tiles, axis
    return cls(), [np.int32([tiles]), np.int32([axis])], tiles, axis


def measures(op, given):
    values = [int(g.item()) for g in given] + [op.tiles, op.axis][len(given) :]
    return values[0], values[1] % 3


class TestTile(OperatorSuite):
    operator = Tile
    refusals = (
        refusal(Tile(tiles=0), [f32(2)], "tiles must be 1 or more", ShapeError),
        refusal(Tile(axis=1), [f32(2)], r"axis must lie in \[-1, 1\)", ShapeError),
        refusal(Tile(), [f32(2), i32(1)], "only when the net runs", ShapeError),
    )

    def draw(self, data):
        op, given, _, _ = draw_tiling(data, Tile)
        return op, [data.draw(floats(2, (0, 2), 3)), *given]

    def reference(self, op, x, *given):
        tiles, axis = measures(op, given)
        return [np.tile(x, [tiles if i == axis else 1 for i in range(3)])]


class TestTileGradient(OperatorSuite):
    operator = TileGradient
    no_gradient = "a gradient operator"
    refusals = (refusal(TileGradient(tiles=2), [f32(3)], "must be a multiple of tiles=2", ShapeError),)

    def draw(self, data):
        op, given, tiles, axis = draw_tiling(data, TileGradient)
        shape = [n * tiles if i == axis % 3 else n for i, n in enumerate((2, 1, 3))]
        dtype = data.draw(st.sampled_from([np.float32, np.int32, np.int8]))
        return op, [data.draw(floats(*shape)).astype(dtype), *given]

    def reference(self, op, dy, *given):
        tiles, axis = measures(op, given)
        return [sum(np.split(dy, tiles, axis=axis))]
