"""Operators with indices or labels: on a GPU none waits for their values within a step, but for those named here."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from all_suites import all_suites
from netbuilder.engines.cuda.noted_errors import raise_noted
from netbuilder.ops.core.operator import encode
from netbuilder.ops.core.registry import find, operator_types
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from on_gpu import ON_GPU, gpus
from suite import QUICK, OperatorSuite

INDICES = re.compile(r"ind(ex|ices)|segment|rois|labels?$|codes|locations|argmax|mapping|permutation", re.IGNORECASE)
WAITS = {
    **dict.fromkeys(("APMeter", "Find"), "sorts, which CuPy's libraries wait for"),
    "SampleAsGradient": "reads how many labels are positive",
    "SparseToDense": "reads the greatest index where nothing says how many rows there are",
    **dict.fromkeys(
        ("UnsortedSegmentMean", "UnsortedSegmentSum"),
        "reads the greatest segment where nothing says how many there are",
    ),
    **{
        f"SparseLengths{how}{bits}BitRowwiseSparse": "reads a mapping of one element, which may mean that there is none"
        for how in ("Mean", "Sum", "WeightedSum")
        for bits in (2, 4, 8)
    },
}
"""Operators that wait, in some of their forms, and what for."""


def indexed(op_type):
    cls = find(op_type)
    return not cls.dynamic and any(INDICES.search(name) for name in cls.inputs)


def waits(counts):
    return counts["reads"] + counts["synchronizations"]  # one array that is read is both


def waits_of_a_run(machine, workspace):
    """Return how often the host waits in the second run of the net, but for reads of the note of wrong indices."""
    workspace.run_net("net")
    of_note = 0

    def counted(number):
        nonlocal of_note
        before = waits(machine.counts)
        raise_noted(number)
        of_note += waits(machine.counts) - before

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("netbuilder.engines.gpu.after_reads", [counted])
        patch.setattr("netbuilder.engines.cuda.array_engine.raise_noted", counted)
        before = waits(machine.counts)
        workspace.run_net("net")
    return waits(machine.counts) - before - of_note


def workspace_with(op_def, inputs, on_host=()):
    net = NetDef(name="net", op=[op_def])
    net.device_option.CopyFrom(ON_GPU)
    workspace = Workspace()
    for name, value in zip(op_def.input, inputs):
        workspace.feed(name, value, None if name in on_host else ON_GPU)
    workspace.create_net(net)
    return workspace


@pytest.mark.one_in(4)
@pytest.mark.emulated
@pytest.mark.parametrize("op_type", [op_type for op_type in operator_types() if indexed(op_type)])
def test_nothing_waits_for_indices(op_type):
    suite = all_suites().get(op_type)
    if suite is None or suite.draw is OperatorSuite.draw:
        pytest.skip("its tests draw no arrays")
    found = []

    @settings(QUICK, max_examples=4, database=None, derandomize=True)
    @given(data=st.data())
    def run(data):
        op, inputs = suite().draw(data)
        inputs = [np.asarray(x) for x in inputs]
        if any(x.dtype.kind == "O" for x in inputs):
            return
        xs, ys = [f"x{i}" for i in range(len(inputs))], [f"y{j}" for j in range(op.n_out or 1)]
        for i, j in type(op).must_inplace:
            ys[j] = xs[i]
        host = {x for i, x in enumerate(xs) if op.with_arity(len(xs), len(ys)).input_location(i) == "host"}
        with gpus(1) as machine:
            found.append(waits_of_a_run(machine, workspace_with(encode(op, xs, ys), inputs, host)))

    run()
    if not found:
        pytest.skip("its tests draw no arrays alone, but objects or strings too")
    with gpus(1) as machine:
        plain = waits_of_a_run(machine, workspace_with(make_op("Relu", ["x"], ["y"]), [np.ones(3, np.float32)]))
    assert max(found) <= plain or op_type in WAITS, f"{op_type} waits {found}; a net without indices: {plain}"


def test_the_table_of_those_that_wait_names_operators_with_indices():
    assert all(indexed(op_type) for op_type in WAITS)
