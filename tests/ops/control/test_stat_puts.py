"""AveragePut, IncrementPut, StdDevPut."""

import numpy as np
import pytest

from netbuilder.graph import Net
from netbuilder.ops.control.stat_puts import AveragePut, IncrementPut, StdDevPut
from netbuilder.ops.control.timers import statistics_of_process
from netbuilder.proto import ArgumentError, ShapeError
from netbuilder.runtime import Workspace
from suite import OperatorSuite, TensorSpec, f32, floats, refusal


class _Put(OperatorSuite):
    no_gradient = "it has no output"

    def draw(self, data):
        return self.operator(magnitude_expand=10), [data.draw(floats())]

    def reference(self, op, value):
        return []


class TestAveragePut(_Put):
    operator = AveragePut
    refusals = (
        refusal(
            AveragePut(),
            [TensorSpec((), np.dtype(object))],
            "value must have elements of type float, int or bool, got object",
        ),
        refusal(AveragePut(), [f32(0)], "give default_value", ShapeError),
        refusal(AveragePut(magnitude_expand=0), [f32()], "at least 1, got 0", ArgumentError),
    )


class TestIncrementPut(_Put):
    operator = IncrementPut
    refusals = (refusal(IncrementPut(), [f32(0)], "give default_value", ShapeError),)


class TestStdDevPut(_Put):
    operator = StdDevPut
    refusals = (refusal(StdDevPut(), [f32(0)], "give default_value", ShapeError),)


def put(kind, values, **args):
    """Return what the statistics gained by a net that puts one value a run."""
    before = dict(statistics_of_process().read(reset=False))
    net, workspace = Net("put"), Workspace()
    getattr(net, kind)(["x"], [], **args)
    for i, value in enumerate(values):
        workspace.feed("x", value)
        if not i:
            workspace.create_net(net)
        workspace.run_net(net)
    after = dict(statistics_of_process().read(reset=False))
    gained = {name.decode(): number - before.get(name, 0) for name, number in after.items()}
    return {name: number for name, number in gained.items() if number}


def test_what_is_put():
    values = [np.float32(2.5), np.float32(4.25)]
    assert put("IncrementPut", values) == {"x/stat_value": 6}
    assert put("IncrementPut", values, magnitude_expand=100, stat_name="y") == {"y/stat_value": 675}
    assert put("AveragePut", values) == {"x/stat_value/sum": 6, "x/stat_value/count": 2}
    assert put("AveragePut", [np.float32([])], default_value=3.0) == {"x/stat_value/sum": 3, "x/stat_value/count": 1}
    spread = {"sum": 6, "count": 2, "sumoffset": 2, "sumsqoffset": 4}
    assert put("StdDevPut", values) == {f"x/stat_value/{key}": number for key, number in spread.items()}


def test_numbers_that_are_too_large():
    with pytest.raises(ArgumentError, match="has more than 64 bits; lower magnitude_expand, or give bound"):
        put("IncrementPut", [np.float32(1000)], magnitude_expand=10**18)
    with pytest.raises(ArgumentError, match="must be finite, got nan"):
        put("IncrementPut", [np.float32(np.nan)])
    assert put("IncrementPut", [np.float32(-1000)], magnitude_expand=10**18, bound=True, stat_name="bound") == {
        "bound/stat_value": 1 - 2**63
    }
    statistics_of_process().add([(b"bound/stat_value", 2**63 - 1)])
