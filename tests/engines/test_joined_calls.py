"""Calls that are joined with their neighbors: order, indices, machine code, and which call an error is of."""

import numpy as np
import pytest

from machine_code import alone, traced
from netbuilder.engines.joined_calls import JoinableCall, joined
from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.argument_rows import Rows, Work, made
from netbuilder.ops.core.contexts import BoundStep
from netbuilder.ops.recurrent.loop import BoundLoop, Views


class Noted(JoinableCall):
    """A call of a function of a list; several note that they are together."""

    @classmethod
    def together(cls, calls):
        def call():
            for each in calls:
                each()
            calls[0].args[0].append(f"{len(calls)} together")

        return call


def test_neighbors_of_a_class_are_joined():
    done = []

    def number(n):
        return Noted(list.append, done, n)

    def other():
        done.append("other")

    calls = [number(0), number(1), other, number(3), other, number(5), number(6), number(7)]
    found = [*joined(calls)]
    assert [index for _, index in found] == [0, 2, 3, 4, 5]
    for call, _ in found:
        call()
    assert done == [0, 1, "2 together", "other", 3, "other", 5, 6, 7, "3 together"]


def test_no_calls():
    assert [*joined([])] == []
    BoundLoop(None, Views("timestep", 0), None).run()


@pytest.mark.skipif(not machine.available(), reason="needs llvmlite")
def test_functions_run_in_order():
    """Each reads what the one before has written."""
    values = [np.full(40, 3, np.float32), *(np.zeros(40, np.float32) for _ in range(5))]
    calls = []
    for source, target in zip(values, values[1:]):
        program = traced(lambda xp, x: [x * x - x], source)
        code = made(program)
        work = Work(code, code.read, [0], (), program.size, code.extents)
        calls.append(Rows(alone(), [work]).bind([source], [target]))
    ((call, index),) = joined(calls)
    call()
    assert index == 0
    want = 3.0
    for value in values:
        np.testing.assert_allclose(value, want, rtol=1e-5)
        want = want * want - want


class Failing:
    """Stands for the operators of a loop; the third one fails."""

    def bind(self, buffer_of, scratch, step=-1):
        def fail():
            raise ValueError("no")

        def failed(number):
            return lambda error: RuntimeError(f"call {number}, step {step}: {error}")

        calls = [Noted(list.append, [], 0), Noted(list.append, [], 1), fail, Noted(list.append, [], 3)]
        return [BoundStep(call, failed(number)) for number, call in enumerate(calls)]


def test_an_error_is_of_the_call_that_failed():
    class Loop:
        body = Failing()

    bound = BoundLoop(Loop(), Views("timestep", 2), None)
    bound.step(1)
    with pytest.raises(RuntimeError, match="call 2, step 1: no"):
        bound.run()
