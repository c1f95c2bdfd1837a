"""Reductions: sums, trees and copies over the devices of a host."""

import numpy as np
import pytest

from netbuilder.passes import Devices, allreduce, broadcast, gather_sparse, nccl_allreduce, nccl_broadcast
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, NetError
from netbuilder.runtime import Workspace


def cpus(n):
    return Devices(PROTO_CPU, tuple(range(n)))


def gpus(*ids):
    return Devices(PROTO_CUDA, ids)


def steps(net):
    return [(op.type, list(op.input), list(op.output), op.device_option.device_id) for op in net.op]


def on_host(net):
    for op in net.op:
        op.ClearField("device_option")
    return net


def test_cpu_sums_once_into_the_first_and_copies_back():
    devices = cpus(3)
    assert steps(allreduce([devices.copies("g")], devices)) == [
        ("Sum", ["cpu_0/g", "cpu_1/g", "cpu_2/g"], ["cpu_0/g"], 0),
        ("Copy", ["cpu_0/g"], ["cpu_1/g"], 0),
        ("Copy", ["cpu_0/g"], ["cpu_2/g"], 0),
    ]


def test_without_handing_back_only_the_first_has_the_sum():
    devices = cpus(2)
    assert [op.type for op in allreduce([devices.copies("g")], devices, hand_back=False).op] == ["Sum"]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize("peers", [True, False], ids=["peer_access", "no_peer_access"])
def test_gpu_sums_are_right_for_any_count(n, peers):
    """The operators are those for GPUs; their values are checked on the host."""
    devices = gpus(*range(3, 3 + n))
    net = on_host(allreduce([devices.copies("g")], devices, peer_access=lambda reader, owner: peers))
    workspace = Workspace(threads=1)
    for k, blob in enumerate(devices.copies("g")):
        workspace.feed(blob, np.float32([2.0**k, 1.0]))
    workspace.run_net_once(net)
    for blob in devices.copies("g"):
        assert workspace.fetch(blob).tolist() == [2.0**n - 1, n]


def test_gpu_sums_form_a_tree():
    devices = gpus(0, 1, 2, 3, 4, 5, 6, 7)
    sums = [op for op in allreduce([devices.copies("g")], devices).op if op.type == "Sum"]
    pairs = [tuple(devices.replica_of(blob) for blob in op.input) for op in sums]
    assert pairs == [(0, 1), (2, 3), (4, 5), (6, 7), (0, 2), (4, 6), (0, 4)]
    assert [op.device_option.device_id for op in sums] == [first for first, _ in pairs]
    assert {op.name for op in sums} == {"dpm"}


@pytest.mark.parametrize("n", [3, 5, 6])
def test_other_counts_of_gpus_take_one_sum(n):
    devices = gpus(*range(n))
    assert [op.type for op in allreduce([devices.copies("g")], devices).op] == ["Sum"] + ["Copy"] * (n - 1)


def test_a_blob_out_of_reach_is_copied_to_where_it_is_added():
    devices = gpus(3, 7)
    net = allreduce([devices.copies("g")], devices, peer_access=lambda reader, owner: False)
    assert steps(net) == [
        ("Copy", ["gpu_7/g"], ["gpu_3/g_gpu7_copy"], 3),
        ("Sum", ["gpu_3/g", "gpu_3/g_gpu7_copy"], ["gpu_3/g"], 3),
        ("Copy", ["gpu_3/g"], ["gpu_7/g"], 7),
    ]


def test_peer_access_is_asked_for_device_ids():
    asked = []

    def access(reader, owner):
        asked.append((reader, owner))
        return True

    devices = gpus(3, 7)
    allreduce([devices.copies("g")], devices, peer_access=access)
    assert asked == [(3, 7)]


def test_one_device_needs_no_operator():
    devices = cpus(1)
    for make in (allreduce, broadcast, nccl_allreduce, nccl_broadcast):
        assert not make([devices.copies("g")], devices).op
    assert not gather_sparse([(devices.copies("i"), devices.copies("v"))], devices).op


def test_broadcast_copies_the_first():
    devices = gpus(0, 2, 5)
    assert steps(broadcast([devices.copies("mean")], devices)) == [
        ("Copy", ["gpu_0/mean"], ["gpu_2/mean"], 2),
        ("Copy", ["gpu_0/mean"], ["gpu_5/mean"], 5),
    ]


def test_nccl_operators_wait_for_one_another():
    devices = gpus(1, 2)
    first, second = nccl_allreduce([devices.copies("b"), devices.copies("a")], devices).op
    assert (list(first.input), list(first.output)) == (["gpu_1/b", "gpu_2/b"], ["gpu_1/b", "gpu_2/b"])
    assert not first.control_input
    assert list(second.control_input) == ["gpu_1/b"]
    (root,) = nccl_broadcast([devices.copies("m")], devices).op
    assert root.arg[0].i == 0  # a rank, not the id of GPU 1


def test_sparse_gradients_are_joined_for_all():
    devices = gpus(0, 1)
    net = on_host(gather_sparse([(devices.copies("ids"), devices.copies("rows"))], devices))
    workspace = Workspace(threads=1)
    workspace.feed("gpu_0/ids", np.int32([1, 2]))
    workspace.feed("gpu_1/ids", np.int32([2]))
    workspace.feed("gpu_0/rows", np.float32([[1], [2]]))
    workspace.feed("gpu_1/rows", np.float32([[3]]))
    workspace.run_net_once(net)
    for scope in devices.scopes:
        assert workspace.fetch(scope + "ids_gathered").tolist() == [1, 2, 2]
        assert workspace.fetch(scope + "rows").tolist() == [[1], [2], [3]]
    assert [workspace.fetch(scope + "ids").tolist() for scope in devices.scopes] == [[1, 2], [2]]


def test_tables_with_one_index_blob_join_it_once():
    devices = gpus(0, 1)
    pairs = [(devices.copies("ids"), devices.copies(rows)) for rows in ("a", "b")]
    joined = [list(op.input) for op in gather_sparse(pairs, devices).op if op.type == "Concat"]
    assert joined == [["gpu_0/ids", "gpu_1/ids"], ["gpu_0/a", "gpu_1/a"], ["gpu_0/b", "gpu_1/b"]]


@pytest.mark.parametrize("devices", [cpus(2), gpus(0, 1)], ids=str)
def test_each_operator_tells_what_it_serves(devices):
    nets = [
        allreduce([devices.copies("fc_w_grad")], devices, debug_info="train.py:3 in main"),
        broadcast([devices.copies("fc_w_grad")], devices, debug_info="train.py:3 in main"),
        nccl_allreduce([devices.copies("fc_w_grad")], devices, debug_info="train.py:3 in main"),
    ]
    notes = [op.debug_info for net in nets for op in net.op]
    assert notes and all("train.py:3 in main" in note and "'fc_w_grad'" in note for note in notes)


@pytest.mark.parametrize("make", [allreduce, broadcast, nccl_allreduce, nccl_broadcast])
def test_a_group_of_another_size_is_refused(make):
    with pytest.raises(NetError, match=r"one blob for each of the 3 devices \(CPU 0, 1, 2\), got 2"):
        make([("cpu_0/g", "cpu_1/g")], cpus(3))


def test_repeated_devices_are_refused():
    with pytest.raises(NetError, match=r"must all be different, got \[0, 0\]"):
        Devices(PROTO_CPU, (0, 0))


def test_devices_know_whose_a_blob_is():
    devices = Devices(PROTO_CPU, (3, 12))
    assert [devices.replica_of(blob) for blob in ("cpu_12/a/w", "cpu_3/w", "cpu_1/w", "w", "gpu_3/w")] == [
        1,
        0,
        None,
        None,
        None,
    ]
    assert devices.short_name("cpu_12/a/w") == "a/w"
    assert devices.short_name("other/w") == "other/w"
