"""Memory of plans: what overlaps is never needed at the same time, and little is needed."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost import cpu_seconds
from netbuilder.engines.buffer_rows import as_row
from netbuilder.graph import lifetimes
from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.runtime.plan.memory_plan import assign
from netbuilder.runtime.plan.schedule import dependencies
from netbuilder.runtime.plan.values import Step, Value

NODE = SimpleNamespace(first=SimpleNamespace(device=(0, 0), location=(0, 0)), parts=[], inputs=[])


def step(inputs, outputs, lane=0, scratch=0, inplace=()):
    made = Step(NODE, Prepared([], [], lambda *buffers: None, scratch, inplace), inputs, outputs, lane)
    for value in outputs:
        value.producer = made
    return made


def value(name, *shape, dtype=np.float32):
    return Value(name, 0, TensorSpec(shape or (16,), np.dtype(dtype)))


@st.composite
def programs(draw):
    """Steps in up to three lanes, each of which reads some earlier values and writes one."""
    values, steps = [], []
    for number in range(draw(st.integers(1, 25))):
        read = draw(st.lists(st.sampled_from(values), max_size=3, unique_by=id)) if values else []
        made = value(f"v{number}", draw(st.sampled_from([1, 16, 100, 1000])))
        inplace = [(0, 0)] if read and draw(st.booleans()) else []
        steps.append(step(read, [made], draw(st.integers(0, 2)), draw(st.sampled_from([0, 0, 64, 500])), inplace))
        values.append(made)
    return values, steps


def ordered(steps):
    """Return which steps are over before which others begin, from the lanes and from what is read."""
    count = len(steps)
    before = np.zeros((count, count), bool)
    direct = dependencies(steps, id)
    for index, each in enumerate(steps):
        sources = {*direct[index], *(i for i in range(index) if steps[i].lane == each.lane)}
        for source in sources:
            before[:, index] |= before[:, source]
            before[source, index] = True
    return before


def require_different_times(values, steps, plan, rows=()):
    """Check that what overlaps is needed at different times, where each part of a row is needed as long as the row."""
    before = ordered(steps)
    touched = {}
    for each in values:
        key = id(each.buffer)
        start = each.buffer.__array_interface__["data"][0]
        users = [i for i, s in enumerate(steps) if each in s.inputs or each in s.outputs]
        extent = touched.setdefault(key, (start, start + each.buffer.nbytes, set()))
        extent[2].update(users)
    for row in rows:
        parts = [touched[id(each.buffer)] for each in row]
        for *_, users in parts:
            users.update(*(others for *_, others in parts))
    for index, s in enumerate(steps):
        if s.prepared.scratch:
            memory = plan.scratch[s]
            start = memory.__array_interface__["data"][0]
            touched[id(memory)] = (start, start + memory.nbytes, {index})
    extents = list(touched.values())
    for number, (start, end, users) in enumerate(extents):
        for other_start, other_end, others in extents[:number]:
            if start < other_end and other_start < end:
                first = all(before[a, b] for a in users for b in others)
                assert first or all(before[b, a] for a in users for b in others)


@settings(max_examples=6 * settings().max_examples, deadline=None)
@given(programs())
def test_what_overlaps_is_needed_at_different_times(program):
    values, steps = program
    plan = assign(values, steps)
    require_different_times(values, steps, plan)
    assert all(0 <= placed.start <= placed.end < len(steps) for placed in plan.placed)


@settings(max_examples=6 * settings().max_examples, deadline=None)
@given(programs(), st.data())
def test_rows(program, data):
    values, steps = program
    chosen = [values[i] for i in data.draw(st.lists(st.integers(0, len(values) - 1), max_size=6, unique=True))]
    rows = [row for row in (chosen[:3], chosen[3:]) if len(row) > 1]
    most = 1.01 * assign(values, steps).nbytes
    for each in values:
        each.buffer = None
    plan = assign(values, steps, rows=rows)
    times = {placed.what: (placed.start, placed.end) for placed in plan.placed}
    made = [row for row in rows if {each.name for each in row} <= times.keys()]
    made = [row for row in made if len({times[each.name] for each in row}) == 1]
    made = [row for row in made if as_row([each.buffer for each in row]) is not None]
    require_different_times(values, steps, plan, made)
    assert plan.nbytes <= most


@pytest.mark.parametrize("size, joined", [(16, True), (1024, False)])
def test_a_row_that_takes_more_memory_is_not_made(size, joined):
    """A second value of this size would be there while a large one is."""
    a, large, b = value("a"), value("large", 4096), value("b", size)
    steps = [step([], [a]), step([], [large]), step([large], []), step([], [b]), step([a, b], [])]
    plan = assign([a, large, b], steps, rows=[[a, b]])
    assert (as_row([a.buffer, b.buffer]) is not None) is joined
    assert plan.nbytes == plan.live == 64 + 4 * 4096 + (64 if joined else 0)


def test_values_of_which_one_has_memory_of_its_own_or_another_lane():
    for lane, apart in ((0, True), (1, False)):
        a, b = value("a"), value("b")
        steps = [step([], [a]), step([], [b], lane), step([a, b], [])]
        assign([a, b], steps, apart={b} if apart else (), rows=[[b, a]])
        assert as_row([b.buffer, a.buffer]) is None


@pytest.mark.parametrize(
    ("shape", "dtype", "read_later", "shared"),
    [
        ((4, 2, 2), np.float32, False, True),
        ((4, 2, 2), np.float32, True, False),
        ((4, 2, 2), np.int32, False, False),
        ((4, 2), np.float32, False, False),
    ],
)
def test_a_value_in_another_shape_overwrites_the_one_it_is_made_from(shape, dtype, read_later, shared):
    a, b = value("a", 2, 8), value("b", *shape, dtype=dtype)
    steps = [step([], [a]), step([a], [b], inplace=[(0, 0)]), step([a, b] if read_later else [b], [])]
    assign([a, b], steps)
    assert (a.buffer.shape, b.buffer.shape) == ((2, 8), shape)
    assert np.shares_memory(a.buffer, b.buffer) is shared


@settings(max_examples=4 * settings().max_examples, deadline=None)
@given(programs())
def test_an_overwritten_value_has_no_later_reader(program):
    values, steps = program
    assign(values, steps)
    before = ordered(steps)
    for index, s in enumerate(steps):
        for read in s.inputs:
            if any(read.buffer is made.buffer for made in s.outputs):
                readers = [i for i, other in enumerate(steps) if read in other.inputs and i != index]
                assert all(before[i, index] for i in readers)


def test_a_chain_needs_two_buffers():
    values = [value(f"v{i}", 1024) for i in range(50)]
    steps = [step([], [values[0]])] + [step([a], [b]) for a, b in zip(values, values[1:])]
    plan = assign(values, steps)
    assert plan.nbytes == plan.live == 2 * 4096


def test_scratch_is_where_values_are_not():
    a, b = value("a", 1024), value("b", 1024)
    steps = [step([], [a], scratch=4096), step([a], [b], scratch=64)]
    plan = assign([a, b], steps)
    assert plan.nbytes == plan.live == 2 * 4096 + 64
    assert {placed.what for placed in plan.placed} == {"a", "b", "scratch of "}


def test_without_reuse_every_value_has_its_own_memory():
    values = [value(f"v{i}") for i in range(4)]
    steps = [step([], [values[0]], scratch=64)] + [step([a], [b]) for a, b in zip(values, values[1:])]
    plan = assign(values, steps, reuse=False)
    assert plan.nbytes == 0 and plan.alone == 4 * 64 + 64
    assert len({each.buffer.__array_interface__["data"][0] for each in values}) == 4


@pytest.mark.parametrize("apart, shared", [((), True), (("v0",), False)])
def test_values_that_are_read_after_the_run_stay_apart(apart, shared):
    values = [value(f"v{i}") for i in range(3)]
    steps = [step([], [values[0]])] + [step([a], [b]) for a, b in zip(values, values[1:])]
    assign(values, steps, apart={each for each in values if each.name in apart})
    start = values[0].buffer.__array_interface__["data"][0]
    assert (start == values[2].buffer.__array_interface__["data"][0]) is shared


def residual_chain(length, width):
    """Values in so many independent chains; the next two steps of a chain read each of them."""
    values, steps = [], []
    for number in range(length):
        read = values[-width::-width][:2]
        values.append(value(f"v{number}", 16 * (1 + number % 7)))
        steps.append(step(read, [values[-1]]))
    return values, steps


@pytest.mark.slow
def test_planning_is_fast_and_grows_linearly():
    """For as many values as a step of ResNet-50 has, and for those of several devices."""

    def seconds(devices):
        values, steps = residual_chain(600 * devices, devices)
        lifetimes._pack.cache_clear()
        return cpu_seconds(lambda: assign(values, steps))

    one, few, many = (min(seconds(devices) for _ in range(3)) for devices in (1, 2, 8))
    assert one < 0.2  # a tenth of that is usual
    assert many < 2.5 * 4 * few  # quadratic growth would be 16 times
