"""Parts of a Concat are where its result has them, if that changes no value and takes hardly any more memory."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netbuilder.engines.buffer_rows import is_row_of
from netbuilder.graph import Net
from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.extensions import Joined
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.runtime.execute.workspace import Workspace
from netbuilder.runtime.plan.joined_values import group
from netbuilder.runtime.plan.memory_plan import assign
from netbuilder.runtime.plan.values import Step, Value
from switches import single

NODE = SimpleNamespace(first=SimpleNamespace(device=(0, 0), location=(0, 0)), parts=[], inputs=[])


def value(name, size, shares=None):
    return Value(name, 0, TensorSpec((size,), np.dtype(np.float32)), shares=shares)


def step(inputs, outputs, joins=False, inplace=(), lane=0):
    prepared = Prepared([], [], lambda *buffers: None, 0, inplace, extensions=(Joined(),) if joins else ())
    made = Step(NODE, prepared, inputs, outputs, lane)
    for each in outputs:
        each.producer = made
    return made


@st.composite
def programs(draw):
    """Steps that make values, join some of them, or overwrite one."""
    values, steps = [], []
    for number in range(draw(st.integers(3, 30))):
        kind = draw(st.sampled_from(["make", "join", "join", "overwrite"])) if len(values) > 2 else "make"
        read = (
            draw(st.lists(st.sampled_from(values), min_size=kind != "make", max_size=4, unique_by=id)) if values else []
        )
        if kind == "join" and draw(st.booleans()) and all(part in values for part in read[-1].producer.inputs):
            read = [*read[:-1], *read[-1].producer.inputs] if read[-1].producer.prepared.get(Joined) else read
        size = sum(each.spec.size for each in read) if kind == "join" else draw(st.sampled_from([16, 16, 32, 10]))
        shares = read[0] if kind == "overwrite" else None
        made = value(f"v{number}", read[0].spec.size if shares else size, shares)
        inplace = [(0, 0)] if read and kind != "join" and draw(st.booleans()) else []
        steps.append(step(read, [made], kind == "join", inplace))
        values.append(made)
        if shares is not None:
            values.remove(shares)  # nothing reads it afterwards
    return steps


def run(steps):
    """Run steps as kernels would; each input must have what its producer wrote."""
    rng, wrote, joined = np.random.default_rng(0), {}, 0
    for each in steps:
        for read in each.inputs:
            np.testing.assert_array_equal(read.buffer, wrote[read])
        (out,) = each.outputs
        parts = [read.buffer for read in each.inputs]
        if not each.prepared.get(Joined):
            out.buffer[...] = rng.random(out.spec.size)
        elif is_row_of(parts, out.buffer):
            joined += 1
        else:
            out.buffer[...] = np.concatenate(parts)
        if each.prepared.get(Joined):
            np.testing.assert_array_equal(out.buffer, np.concatenate([wrote[read] for read in each.inputs]))
        wrote[out] = out.buffer.copy()
    return joined


@settings(max_examples=8 * settings().max_examples, deadline=None)
@given(programs())
def test_every_step_reads_what_was_written(steps):
    values = [each.outputs[0] for each in steps]
    plan = assign(values, steps)
    run(steps)
    for each in values:
        each.buffer = None
    assert plan.live <= plan.nbytes <= 1.01 * max(plan.live, assign(values, steps, join=False).nbytes)
    assert run(steps) == 0


def layers(count, block=16):
    """Steps of layers that each read the results of all before them."""
    parts, steps = [value("first", block)], []
    steps.append(step([], parts[:1]))
    for number in range(count):
        whole = value(f"joined{number}", block * len(parts))
        if number:
            steps.append(step([*parts], [whole], joins=True))
        parts.append(value(f"part{number}", block))
        steps.append(step([whole] if number else parts[:1], parts[-1:]))
    return steps


def test_layers_that_read_all_before_them_copy_nothing():
    steps = layers(9)
    assign([each.outputs[0] for each in steps], steps)
    assert run(steps) == 8


def test_what_prevents_it():
    def joined(*steps, apart=()):
        assign([out for each in steps for out in each.outputs], steps, apart=apart)
        return run(steps)

    def parts(lane=0, sizes=(16, 16)):
        a, b, whole = value("a", sizes[0]), value("b", sizes[1]), value("whole", sum(sizes))
        return a, b, whole, [step([], [a]), step([], [b], lane=lane), step([a, b], [whole], joins=True)]

    a, b, whole, steps = parts()
    assert joined(*steps) == 1
    assert joined(*parts(sizes=(10, 16))[-1]) == 0, "b would begin at a multiple of 8 bytes"
    assert joined(*parts(sizes=(16, 10))[-1]) == 1
    a, b, whole, steps = parts()
    assert joined(*steps, apart={whole}) == 0
    a, b, whole, steps = parts()
    changed = value("whole", 32, shares=whole)
    assert joined(*steps, step([whole], [changed]), step([a, changed], [value("c", 1)])) == 0
    assert joined(*parts(lane=1)[-1]) == 0


def test_memory_that_would_be_there_too_early_is_not_taken():
    """As where a decoder's images are joined with those of the encoder, between which there are larger ones."""
    early, large, small = value("early", 16), value("large", 9999), value("small", 1)
    late, whole = value("late", 2048), value("whole", 2064)
    steps = [step([], [early]), step([], [large]), step([large], [small]), step([small], [late])]
    steps.append(step([early, late], [whole], joins=True))
    plan = assign([early, large, small, late, whole], steps)
    assert run(steps) == 0
    assert plan.nbytes == plan.live


def test_one_value_has_one_place():
    size = {"a": 64, "b": 64, "c": 64, "ab": 128, "bc": 128, "abab": 256}.__getitem__
    assert len(group([("ab", ["a", "b"]), ("bc", ["b", "c"])], size)) == 1
    assert group([("abab", ["ab", "ab"])], size) == []


@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
def test_nets(order):
    """Branches, layers that read all before them, a part that is read later, a result that is overwritten."""
    rng = np.random.default_rng(0)
    net, fed = Net("branches"), {}

    def conv(x, channels, into, name, kernel=1):
        fed[name + "_w"] = rng.standard_normal((channels, into, kernel, kernel)).astype("f") / into
        if order == "NHWC":
            fed[name + "_w"] = np.ascontiguousarray(fed[name + "_w"].transpose(0, 2, 3, 1))
        fed[name + "_b"] = rng.standard_normal(channels).astype("f")
        return net.Conv([x, name + "_w", name + "_b"], name, kernel=kernel, pad=kernel // 2, order=order)

    fed["x"] = rng.standard_normal((1, 16, 8, 8) if order == "NCHW" else (1, 8, 8, 16)).astype("f")
    a, b = conv("x", 16, 16, "a", 3), conv("x", 32, 16, "b")
    first = net.Concat([a, b], ["first", "first_info"], order=order)[0]
    c = conv(first, 16, 48, "c", 3)
    second = net.Concat([a, b, c], ["second", "second_info"], order=order)[0]
    third = net.Concat([second, first], ["third", "third_info"], order=order)[0]
    net.Relu(third, third)
    d = conv(third, 16, 112, "d")
    net.Add([d, a], "sum")
    net.Add([net.Sum([conv(second, 16, 64, "e"), c], "f"), "sum"], "y")

    def outputs(**options):
        net.Proto().external_output[:] = ["y"]
        workspace = Workspace(threads=1)
        for name, array in fed.items():
            workspace.feed(name, array)
        made = workspace.create_net(net, observable="outputs", **options)
        for _ in range(2):
            workspace.run_net(made)
        return workspace.fetch("y")

    assert outputs().tobytes() == outputs(without=single("parts_in_place")).tobytes()
