"""Profiles of nets on GPUs: which calls are in CUDA graphs, and why others are not."""

import json

import numpy as np
import pytest

from netbuilder.proto import PROTO_CUDA, NetDef
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.profile.profiling import profile
from netbuilder.runtime.profile.roofline import Limits
from netbuilder.runtime.profile.table import profile_table
from on_gpu import gpus
from switches import single

GPU = make_device_option(PROTO_CUDA, 0)
LIMITS = {"CPU": Limits(1e12, "a guess", 1e11, 1), "GPU": Limits(1e15, "a guess", 1e12, 0)}


def profiled(*ops, without=()):
    net = NetDef(name="net", op=ops, external_input=["x", "i"])
    workspace = Workspace(threads=1, engines=("CUDA",))
    workspace.feed("x", np.ones((4, 3), np.float32), GPU)
    workspace.feed("i", np.int32([3, 1, 3]), GPU)
    workspace.create_net(net, without=[*single("elementwise_chains"), *without])
    return profile(workspace, "net", runs=4, limits=LIMITS)


def on_gpu(*args, **kwargs):
    return make_op(*args, device_option=GPU, **kwargs)


@pytest.fixture
def found():
    with gpus(1):
        yield profiled(
            on_gpu("Relu", ["x"], ["a"]),
            on_gpu("Scale", ["a"], ["b"], scale=2.0),
            on_gpu("Tile", ["b"], ["c"], tiles=2),
            on_gpu("Relu", ["c"], ["d"]),
            on_gpu("Scale", ["d"], ["e"], scale=2.0),
            make_op("Relu", ["e"], ["f"]),
            on_gpu("Unique", ["i"], ["g"]),  # as many values as differ
        )


@pytest.mark.emulated
def test_calls_name_their_graph_or_what_prevents_it(found):
    assert [(call.kind, call.graph) for call in found.calls] == [
        ("Relu", 0),
        ("Scale", 0),
        ("Tile", -1),
        ("Relu", 1),
        ("Scale", 1),
        ("transfer", -1),
        ("Relu", -1),
        ("Unique", -1),
    ]
    assert [call.why_no_graph for call in found.calls if call.graph < 0] == [
        "its plain kernel allocates memory, and may read values on the host",
        "it copies a value to the host, which waits for it",
        "it runs on the host",
        "its output shapes depend on data, so it cannot be part of a plan",
    ]
    assert found.graphs == 2


@pytest.mark.emulated
def test_the_share_of_the_host(found):
    assert 0 < found.host_seconds <= found.plain_seconds
    assert found.host_share == pytest.approx(found.host_seconds / found.plain_seconds)
    stored = json.loads(json.dumps(found.to_dict()))
    assert stored["host_share"] == pytest.approx(found.host_share)
    assert stored["cuda_graphs"] == 2
    assert stored["calls"][2]["why_no_graph"].startswith("its plain kernel")


@pytest.mark.emulated
def test_the_table_lists_what_is_in_no_graph(found):
    text = profile_table(found)
    assert "4 of 8 calls are in 2 CUDA graphs" in text
    assert f"the host begins a step in {1e3 * found.host_seconds:.3f} ms" in text
    head, *rows = text[text.index("calls in no CUDA graph: 4") :].splitlines()
    assert any(row.split()[1:4] == ["GPU", "0", "Tile"] and "its plain kernel allocates" in row for row in rows)
    assert any(row.split()[1:3] == ["CPU", "0"] and row.endswith("it runs on the host") for row in rows)


def test_a_net_without_gpus_says_nothing_of_graphs():
    workspace = Workspace(threads=1)
    workspace.feed("x", np.ones((4, 3), np.float32))
    workspace.create_net(NetDef(name="net", op=[make_op("Relu", ["x"], ["y"])], external_input=["x"]))
    found = profile(workspace, "net", runs=2, limits=LIMITS)
    assert [call.why_no_graph for call in found.calls] == [""]
    assert "CUDA" not in profile_table(found)


@pytest.mark.emulated
def test_graphs_that_are_switched_off():
    with gpus(1):
        found = profiled(on_gpu("Relu", ["x"], ["a"]), on_gpu("Scale", ["x"], ["b"]), without=single("cuda_graphs"))
    assert found.graphs == 0
    assert [call.why_no_graph for call in found.calls] == ["the optimization 'cuda_graphs' is off"] * 2
