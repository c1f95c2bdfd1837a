"""The nets of one of several processes: what is exchanged, in which order, over which common worlds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netbuilder import parallel
from netbuilder.distributed import Rendezvous
from netbuilder.graph.net_names import reset_names
from netbuilder.graph.replicas import Replicas, World
from netbuilder.model import Initializer, ModelHelper, ParameterTags, brew
from netbuilder.optimizers import reset_optimizer_instance_count
from netbuilder.parallel.accumulate import created_nets
from netbuilder.passes import Devices
from netbuilder.passes.processes import DEFAULT_BUCKET_BYTES, ProcessLink, assign_worlds_pass, bucket_lengths, buckets
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, NetDef, NetError
from netbuilder.proto.arguments import arguments, make_op
from parallel_models import OPTIMIZERS, no_input
from toy_models import mlp, scaled_loss

COLLECTIVES = {"AllreduceBucket", "Allgather", "BroadcastBucket"}
GRADIENTS = ["fc2_b_grad", "fc2_w_grad", "fc1_b_grad", "fc1_w_grad"]  # the order in which they are ready


def hosts(shards, shard=0, **more):
    return {"num_shards": shards, "shard_id": shard, "engine": "MPI", **more}


def built(rendezvous=None, devices=(0, 1), forward=mlp, make=parallel.Parallelize_CPU, **options):
    """A model as in a fresh process, and its record."""
    reset_names()
    reset_optimizer_instance_count()
    model = ModelHelper("net")
    update = "param_update_builder_fun" if make is parallel.Parallelize_CPU_BMUF else "optimizer_builder_fun"
    options.setdefault(update, OPTIMIZERS["momentum"])
    record = make(model, no_input, forward, devices=list(devices), rendezvous=rendezvous, **options)
    return model, record


def collectives(net):
    return [op for op in net.Proto().op if op.type in COLLECTIVES]


def normalized(model, loss_scale):
    x = brew.spatial_bn(model, brew.conv(model, "data", "conv", 3, 4, kernel=3, pad=1), "bn", 4, is_test=False)
    return scaled_loss(model, brew.fc(model, x, "fc", 256, 4), loss_scale)


@pytest.mark.parametrize("devices", [[0], [0, 1]])
@pytest.mark.parametrize("make", [parallel.Parallelize_CPU, parallel.Parallelize_CPU_BMUF])
def test_one_process_adds_nothing(devices, make):
    alone, record = built(None, devices, make=make)
    one, found = built(hosts(1), devices, make=make)
    for net in ("net", "param_init_net"):
        assert getattr(one, net).Proto() == getattr(alone, net).Proto()
    assert found == record and found.world == World(len(devices))


def test_a_model_for_evaluation_exchanges_nothing():
    model = ModelHelper("net", init_params=False)
    record = parallel.Parallelize_CPU(model, no_input, mlp, devices=[0, 1], rendezvous=hosts(3, 1))
    assert record.world == World(6, 2, 1)
    assert not collectives(model.net) and not model.param_init_net.Proto().op


def test_the_loss_scale_is_that_of_all_replicas():
    scales = []

    def forward(model, loss_scale):
        scales.append(float(loss_scale))
        return mlp(model, loss_scale)

    _, record = built(hosts(4, 3), forward=forward)
    assert scales == [0.125, 0.125]
    assert (record.world.size, record.world.first_replica, record.world.rank) == (8, 6, 3)


def test_the_record_is_stored_and_read_back():
    model, record = built(hosts(2, 1))
    assert Replicas.load(model.net.Proto()) == Replicas.load(model.param_init_net.Proto()) == record
    assert record.world.common == tuple(f"net_{i}_cw" for i in range(len(record.world.common)))
    assert record.world.barrier == "net_barrier_cw"


def test_gradients_are_summed_locally_then_over_processes_then_copied():
    model, record = built(hosts(2), bucket_bytes=0)
    ops = [op for op in model.net.Proto().op if "allreduce of" in op.debug_info or "broadcast of" in op.debug_info]
    want = []
    for name in GRADIENTS:
        first, second = record.devices.copies(name)
        want += [("Sum", [first, second], [first]), ("AllreduceBucket", [first], [first]), ("Copy", [first], [second])]
    found = [(op.type, [blob for blob in op.input if blob not in record.world.common], list(op.output)) for op in ops]
    assert found == want
    notes = [op.debug_info for op in ops if op.type == "AllreduceBucket"]
    assert [f"(allreduce of {name!r} over 2 processes)" in note for name, note in zip(GRADIENTS, notes)] == [True] * 4
    assert all("in built" in note for note in notes), "the user's line"


@pytest.mark.parametrize("shards", [1, 2])
def test_sums_stay_on_the_first_device_where_it_alone_updates(shards):
    model, record = built(hosts(shards), [0, 1, 2], reduce_update_broadcast=True)
    copied = {op.output[0] for op in model.net.Proto().op if op.type == "Copy"}
    copied.remove("optimizer_iteration_before")
    assert copied == {blob for name in record.parameters for blob in record.blobs(name)[1:]}
    summed = {blob for op in model.net.Proto().op if op.type == "AllreduceBucket" for blob in op.output}
    assert summed <= {record.devices.scopes[0] + name for name in GRADIENTS} and bool(summed) == (shards > 1)


def test_a_bucket_follows_the_operator_that_completes_it():
    model, _ = built(hosts(2), devices=[0], bucket_bytes=144)  # fc2_b 16 bytes, fc2_w 128, fc1_b 32, fc1_w 192
    ops = list(model.net.Proto().op)
    exchanged = [(index, list(op.input[1:])) for index, op in enumerate(ops) if op.type == "AllreduceBucket"]
    assert [[blob.partition("/")[2] for blob in blobs] for _, blobs in exchanged] == [GRADIENTS[:2], GRADIENTS[2:]]
    for index, blobs in exchanged:
        assert set(blobs) <= set(ops[index - 1].output), "right after its last gradient"
    assert ops[exchanged[0][0] + 1].type == "ReluGradient", "the backward pass goes on"


@pytest.mark.parametrize(
    "limit, want",
    [(0, [["a"], ["b"], ["c"], ["d"]]), (8, [["a", "b"], ["c", "d"]]), (9, [["a", "b", "c"], ["d"]]), (99, ["abcd"])],
)
def test_buckets_are_filled_in_the_order_of_readiness(limit, want):
    net = NetDef(name="net", op=[make_op("ConstantFill", [], [name]) for name in "abcd"])
    sizes = dict.fromkeys("abcd", 4)
    found = buckets(net, [["d"], ["b"], ["c"], ["a"]], sizes, limit)
    assert [[group[0] for group in groups] for _, groups in found] == [list(names) for names in want]
    assert [index for index, _ in found] == ["abcd".index(names[-1]) for names in want]
    alone = buckets(net, [["a"], ["b"], ["c"]], {"a": 4, "c": 4}, 99)
    assert [[group[0] for group in groups] for _, groups in alone] == [["a"], ["b"], ["c"]], "b's size is not known"
    with pytest.raises(NetError, match=r"net 'net': no operator writes \['e'\]"):
        buckets(net, [["e"]], {}, 4)


@given(sizes=st.lists(st.none() | st.integers(0, 300), max_size=40), limit=st.integers(0, 100))
def test_no_bucket_is_large_and_the_last_ones_are_small(sizes, limit):
    ends = np.cumsum(bucket_lengths(sizes, limit)).tolist()
    assert ends[-1:] == [len(sizes)] * bool(sizes)
    left = sum(filter(None, sizes))
    for start, end in zip([0, *ends], ends):
        part, after = sizes[start:end], sizes[end : end + 1]
        assert (None in part) <= (end == start + 1)
        if limit == 0 or None in part:
            assert end == start + 1
            left -= part[0] or 0
            continue
        total = sum(part)
        assert total <= 1.5 * limit or end == start + 1 or sum(part[:-1]) < limit / 4
        if after and after != [None]:
            closed = total >= limit or total >= 0.75 * left or total + after[0] > 1.5 * limit
            assert closed and total >= limit / 8
        if end > start + 1:
            assert sum(part[:-1]) < limit and sum(part[:-1]) < max(0.75 * left, limit / 8), (
                "it is closed when it may be"
            )
        left -= total


def test_the_buckets_of_resnet50():
    """From its loss back, bytes of the weights of convolutions; statistics' gradients are small."""
    last = [8_192_000, *2 * [4 << 20, 9 << 20, 4 << 20], 8 << 20, 4 << 20, 9 << 20, 2 << 20]
    third = [*5 * [1 << 20, 9 << 18, 1 << 20], 2 << 20, 1 << 20, 9 << 18, 1 << 19]
    second = [*3 * [1 << 18, 9 << 16, 1 << 18], 1 << 19, 1 << 18, 9 << 16, 1 << 17]
    first = [*2 * [1 << 16, 9 << 14, 1 << 16], 1 << 16, 1 << 16, 9 << 14, 1 << 14, 147 << 8]
    sizes = [*last, *third, *second, *first]
    lengths = bucket_lengths(sizes, DEFAULT_BUCKET_BYTES)
    parts = [sum(sizes[end - length : end]) for length, end in zip(lengths, np.cumsum(lengths))]
    assert len(parts) == 10 and max(parts) <= 16 << 20, "one call of MPI each"
    assert parts[-1] < 1 << 20


@pytest.mark.parametrize("most", [1, 3, 16])
def test_common_worlds_are_used_in_turn_each_after_its_last_user(most):
    model, record = built(hosts(2), bucket_bytes=0, max_concurrent_distributed_ops=most)
    worlds = record.world.common
    initial, used = collectives(model.param_init_net), collectives(model.net)
    assert len(worlds) == min(most, len(used)) and len(used) == len(GRADIENTS) and len(initial) == 1
    for ops in (initial, used):
        assert [op.input[0] for op in ops] == [worlds[i % len(worlds)] for i in range(len(ops))]
        for i, op in enumerate(ops):
            before = [ops[i - len(worlds)].output[0]] if i >= len(worlds) else []
            assert list(op.control_input) == before


@pytest.mark.parametrize("asked, threads, want", [(16, 1, 9), (4, 1, 4), (100, 4, 15)])
def test_there_are_fewer_common_worlds_than_workers(asked, threads, want):
    def deep(model, loss_scale):
        x = "data"
        for layer in range(8):
            x = brew.fc(model, x, f"fc{layer}", 6, 6)
        return scaled_loss(model, x, loss_scale)

    options = {"max_concurrent_distributed_ops": asked, "num_threads_per_device": threads, "bucket_bytes": 0}
    model, record = built(hosts(2), forward=deep, **options)
    assert model.net.Proto().num_workers == 2 * threads + 8
    assert len(record.world.common) == min(want, len(collectives(model.net))) and len(collectives(model.net)) == 16


def test_the_init_net_makes_each_common_world_once_and_first():
    model, record = built(hosts(3, 2, run_id="run7"), barrier_net_timeout_sec=200)
    ops = model.param_init_net.Proto().op
    makers = [op for op in ops if op.type in ("CreateCommonWorld", "CloneCommonWorld")]
    assert list(ops)[: len(makers)] == makers
    assert [op.output[0] for op in makers] == [*record.world.common, record.world.barrier]
    assert [op.type for op in makers].count("CreateCommonWorld") == 2
    first, *clones, barrier = makers
    assert all(list(op.input) == [first.output[0]] for op in clones)
    for op, limit in ((first, None), (barrier, 200_000)):
        given = arguments(op)
        assert (given["size"], given["rank"], given.get("timeout_ms"), op.engine) == (3, 2, limit, "MPI")
        assert op.name == f"run7/{op.output[0]}"
    assert not set(record.world.common).intersection(model.param_init_net.Proto().external_input)
    assert {op.input[0] for op in collectives(model.net)} <= set(model.net.Proto().external_input)


def test_a_store_in_a_blob_is_the_input_of_the_common_world():
    model, _ = built(hosts(2, kv_handler="store_handler"))
    makers = [op for op in model.param_init_net.Proto().op if op.type == "CreateCommonWorld"]
    assert [list(op.input) for op in makers] == [["store_handler"]] * 2


def test_all_that_the_init_net_fills_comes_from_the_first_replica_of_rank_0():
    model, record = built(hosts(2, 1))
    ops = list(model.param_init_net.Proto().op)
    (sent,) = [index for index, op in enumerate(ops) if op.type == "BroadcastBucket"]
    assert arguments(ops[sent])["root"] == 0
    names = [f"fc{i}_{kind}{state}" for state in ("", "_momentum") for i in (1, 2) for kind in "wb"]
    want = [*("cpu_0/" + name for name in names), "optimizer_iteration", "ONE_0_0", "ONE_0_1"]
    assert list(ops[sent].output) == want
    copied = [(op.input[0], op.output[0]) for op in ops if op.type == "Copy"]
    assert copied == [("cpu_0/" + name, "cpu_1/" + name) for name in names]
    fills = [index for index, op in enumerate(ops) if op.type.endswith("Fill")]
    assert max(fills) < sent


@pytest.mark.parametrize("forward, options", [(mlp, {}), (normalized, {"combine_spatial_bn": True})])
def test_nets_of_all_ranks_have_the_same_operators(forward, options):
    def operators(rank):
        model, _ = built(hosts(2, rank), forward=forward, **options)
        return [(op.type, list(op.input), list(op.output), list(op.control_input)) for op in model.net.Proto().op]

    assert operators(0) == operators(1)


def test_micro_batches_are_exchanged_once():
    model, record = built(hosts(2), accumulate_steps=3)
    micro_batch, update = created_nets(model.net.Proto(), record)
    assert [op.type for op in micro_batch.op if op.type in COLLECTIVES] == []
    assert [op.type for op in update.op if op.type in COLLECTIVES] == ["AllreduceBucket"]


def test_control_inputs_of_a_part_name_operators_of_that_part():
    options = {"accumulate_steps": 2, "combine_spatial_bn": True, "max_concurrent_distributed_ops": 1}
    model, record = built(hosts(2), forward=normalized, **options)
    for part in created_nets(model.net.Proto(), record):
        made = set()
        for op in part.op:
            assert set(op.control_input) <= made
            made.update(op.output)


def test_normalization_adds_the_sums_of_all_processes():
    model, record = built(hosts(2), forward=normalized, combine_spatial_bn=True, weighted_shares=True)
    forward, backward, *rest = collectives(model.net)
    sums = ["conv_sums_combined", "conv_sumsq_combined", "bn_sm_count"]
    assert [blob.partition("/")[2] for blob in forward.input[1:]] == sums
    assert list(backward.input[1:]) == ["cpu_0/bn_s_grad_combined", "cpu_0/bn_b_grad_combined"]
    parts = {arguments(op)["num_batches"] for op in model.net.Proto().op if op.type.startswith("SpatialBN")}
    assert parts == {4}
    assert [op.type for op in rest] == ["AllreduceBucket", "BroadcastBucket"], "gradients, running statistics"
    assert list(rest[1].output) == ["cpu_0/bn_rm", "cpu_0/bn_riv"]


def test_statistics_may_differ_on_request():
    model, _ = built(hosts(2), forward=normalized, broadcast_computed_params=False)
    assert [op.type for op in collectives(model.net)] == ["AllreduceBucket"]


def table(model):
    return model.create_param("table", [9, 6], Initializer("UniformFill", min=-0.5, max=0.5))


def looked_up(model, loss_scale, rows=None):
    found = model.net.Gather([table(model) if rows is None else rows, "index"], "found")
    return scaled_loss(model, brew.fc(model, found, "fc", 6, 4), loss_scale)


@pytest.mark.parametrize("devices", [[0], [0, 1]])
def test_rows_of_tables_are_gathered_from_all_processes(devices):
    model, record = built(hosts(2), devices, looked_up, optimizer_builder_fun=OPTIMIZERS["sgd"])
    gathered = [(op.input[1], op.output[0]) for op in model.net.Proto().op if op.type == "Allgather"]
    own = "_gathered_of_process" if len(devices) > 1 else ""
    names = ["cpu_0/index", "cpu_0/found_grad"]
    assert gathered == [(name + own, name + "_gathered") for name in names]
    sparse = next(group for group in record.gradients if group.is_sparse)
    assert (sparse.indices, sparse.values) == ("index_gathered", "found_grad_gathered")
    updates = [op for op in model.net.Proto().op if op.type == "ScatterWeightedSum"]
    assert len(updates) == len(devices)


def test_tables_outside_are_updated_with_the_rows_of_all_processes():
    reset_names()
    model = ModelHelper("net")
    rows = table(model)
    parallel.Parallelize_CPU(
        model,
        no_input,
        lambda model, scale: looked_up(model, scale, rows),
        optimizer_builder_fun=OPTIMIZERS["sgd"],
        devices=[0, 1],
        rendezvous=hosts(2),
    )
    pair = model.param_to_grad["table"]
    gathered = {op.output[0] for op in model.net.Proto().op if op.type == "Allgather"}
    assert gathered == {str(pair.indices), str(pair.values)}
    (sent,) = [op.output for op in model.param_init_net.Proto().op if op.type == "BroadcastBucket"]
    assert "table" in sent


def with_layer_outside(**options):
    """A model whose last layer is outside the replicas; a blob that it is multiplied by is a computed parameter."""
    reset_names()
    reset_optimizer_instance_count()
    model = ModelHelper("net")
    layer = [model.create_param(name, shape, Initializer("XavierFill")) for name, shape in (("w", [4, 6]), ("b", [4]))]
    factor = model.create_param(
        "factor", [4], Initializer("ConstantFill", value=1.0), tags=ParameterTags.COMPUTED_PARAM
    )

    def forward(model, loss_scale):
        x = model.net.Mul([model.net.FC([brew.fc(model, "data", "fc", 6, 6), *layer], "x"), factor], "scores")
        return scaled_loss(model, x, loss_scale)

    options = {"optimizer_builder_fun": OPTIMIZERS["sgd"], "devices": [0, 1], "rendezvous": hosts(2), **options}
    return model, parallel.Parallelize_CPU(model, no_input, forward, **options)


def test_gradients_of_what_is_outside_are_summed_over_the_processes_once():
    model, record = with_layer_outside(bucket_bytes=0)
    summed = [list(op.output) for op in model.net.Proto().op if op.type == "AllreduceBucket"]
    outside = [str(model.param_to_grad[name]) for name in ("w", "b")]
    inside = [record.devices.scopes[0] + group.values for group in record.gradients]
    assert sorted(summed) == sorted([name] for name in (*outside, *inside))
    ops = list(model.net.Proto().op)
    for name in outside:
        (at,) = [i for i, op in enumerate(ops) if op.type == "AllreduceBucket" and name in op.output]
        assert not any(name in op.output for op in ops[at + 1 :]), "the update reads the sum"
        assert any(name in op.input for op in ops[at + 1 :])


@pytest.mark.parametrize("broadcasts", [True, False])
def test_computed_parameters_outside_come_from_rank_0_in_each_step(broadcasts):
    model, record = with_layer_outside(broadcast_computed_params=broadcasts)
    assert "factor" in record.outside
    sent = [list(op.output) for op in model.net.Proto().op if op.type == "BroadcastBucket"]
    assert sent == ([["factor"]] if broadcasts else [])


def test_a_model_that_keeps_outputs_keeps_gradients_that_are_exchanged():
    model, record = built(hosts(2), dynamic_memory_management=True)
    kept = [text.decode() for text in arguments(model.net.Proto())["observable_blobs"]]
    assert set(kept) == {blob for name in GRADIENTS for blob in record.devices.copies(name)}


def test_values_on_gpus_go_through_the_host():
    with pytest.warns(UserWarning, match="GPUs .* are not on this machine"):
        model, record = built(hosts(2), make=parallel.Parallelize_GPU, peer_access=lambda a, b: True)
    ops = list(model.net.Proto().op)
    (exchange,) = (index for index, op in enumerate(ops) if op.type == "AllreduceBucket")
    assert [blob.partition("/")[2] for blob in ops[exchange].input[1:]] == [name + "_on_host" for name in GRADIENTS]
    assert ops[exchange].device_option.device_type == PROTO_CPU
    before, after = ops[exchange - 4 : exchange], ops[exchange + 1 : exchange + 5]
    for name, to_host, back in zip(GRADIENTS, before, after):
        blob = "gpu_0/" + name
        assert (to_host.type, list(to_host.input), list(to_host.output)) == (
            "CopyGPUToCPU",
            [blob],
            [blob + "_on_host"],
        )
        assert (back.type, list(back.input), list(back.output)) == ("CopyCPUToGPU", [blob + "_on_host"], [blob])
        assert to_host.device_option.device_type == back.device_option.device_type == PROTO_CUDA
    (sent,) = [op.input for op in model.param_init_net.Proto().op if op.type == "BroadcastBucket"]
    assert "gpu_0/fc1_w_on_host" in sent and "optimizer_iteration" in sent, "the counter is on the CPU"


def test_blocks_average_over_all_processes():
    make = parallel.Parallelize_CPU_BMUF
    options = {"warmup_iterations": 1, "add_blobs_to_sync": ["fc1_w_momentum"]}
    model, record = built(hosts(3, 1), make=make, **options)
    assert record.block.momentum == pytest.approx(1 - 1 / 6)
    assert not collectives(model.net), "replicas train on their own"
    parameters = [f"cpu_0/fc{i}_{kind}" for i in (1, 2) for kind in "wb"]
    average, further = collectives(model.block_nets.update)
    assert (average.type, list(average.input[1:])) == ("AllreduceBucket", parameters)
    assert (further.type, list(further.output)) == ("BroadcastBucket", ["cpu_0/fc1_w_momentum"])
    scales = [arguments(op)["scale"] for op in model.block_nets.update.Proto().op if op.type == "Scale"]
    assert scales.count(pytest.approx(1 / 6)) == len(parameters)
    (sent,) = collectives(model.block_nets.warm_up)
    assert list(sent.output) == [*parameters, "cpu_0/fc1_w_momentum"]


def test_many_blobs_are_several_operators():
    names = [f"blob{i}" for i in range(1200)]
    link = ProcessLink(["cw"], 2, Devices(PROTO_CPU, (0,)))
    for ops in (link.allreduce(names), link.broadcast(names)):
        assert [len(op.output) for op in ops] == [500, 500, 200]


def test_worlds_can_be_assigned_again():
    """Operators that were appended later join the turns; the others keep their worlds."""
    link = ProcessLink(["a", "b"], 2, Devices(PROTO_CPU, (0,)))
    net = NetDef(name="net", external_input=["x", "a"])
    for _ in range(3):
        net.op.extend(link.allreduce(["x"]))
        net = assign_worlds_pass(net, worlds=["a", "b"]).net
    assert [op.input[0] for op in net.op] == ["a", "b", "a"]
    assert [list(op.control_input) for op in net.op] == [[], [], ["x"]]
    assert list(net.external_input) == ["x", "a", "b"]


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore:GPUs .* are not on this machine")
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(
    "make, place, options",
    [
        (parallel.Parallelize_CPU, {}, {"combine_spatial_bn": True, "average_initial_parameters": True}),
        (parallel.Parallelize_CPU, {}, {"strategy": "half", "accumulate_steps": 2}),
        (parallel.Parallelize_GPU, {}, {"combine_spatial_bn": True}),
        (parallel.Parallelize_GPU, {"engine": "NCCL", "kv_handler": "store"}, {"average_initial_parameters": True}),
        (parallel.Parallelize_CPU_BMUF, {}, {"block_iterations": 2}),
    ],
)
def test_all_sums_are_in_the_order_of_the_ranks_on_request(make, place, options, deterministic):
    model, _ = built(hosts(2, **place), make=make, forward=normalized, deterministic=deterministic, **options)
    nets = [model.param_init_net, model.net, *(() if model.block_nets is None else model.block_nets.all())]
    sums = [op for net in nets for op in net.Proto().op if op.type == "AllreduceBucket"]
    assert sums and {arguments(op).get("deterministic", 0) for op in sums} == {int(deterministic)}


REFUSED = {
    "a missing key": ({"rendezvous": {"num_shards": 2, "shard_id": 0}}, NetError, "'engine' is missing"),
    "a shard that is not there": ({"rendezvous": hosts(2, 2)}, NetError, "shard_id must be a whole number in"),
    "NCCL": (
        {"rendezvous": hosts(2, engine="NCCL", kv_handler="store")},
        NetError,
        "engine 'NCCL' exchanges values of GPUs, but the replicas are on the CPU",
    ),
    "shared_model": (
        {"shared_model": True},
        NetError,
        "shared_model=True cannot be combined with 2 devices in each of 2 processes; give each process one device",
    ),
    "no worlds": ({"max_concurrent_distributed_ops": 0}, NetError, "max_concurrent_distributed_ops must be at least 1"),
    "half a world": ({"max_concurrent_distributed_ops": 0.5}, TypeError, "must be an integer, got 0.5"),
    "bucket_bytes": ({"bucket_bytes": -1}, NetError, "bucket_bytes must be at least 0, got -1"),
    "no time": ({"barrier_net_timeout_sec": 0}, NetError, "barrier_net_timeout_sec must be a positive number"),
    "deterministic": ({"deterministic": 1}, TypeError, "deterministic must be True or False, got 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    options, error, match = REFUSED[case]
    with pytest.raises(error, match=match):
        built(**{"rendezvous": hosts(2), **options})


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"average_initial_parameters": True},
        {"accumulate_steps": 2},
        {"reduce_update_broadcast": True},
        {"gradient_scaling": parallel.GradientScaling()},
        {"strategy": "topk:0.1"},
        {"strategy": "local_sgd:2"},
        {"strategy": "partial:100"},
    ],
    ids=str,
)
@pytest.mark.parametrize("rendezvous", [hosts(3, 1), None], ids=["processes", "one"])
def test_one_device_in_each_process_has_one_copy_of_the_parameters_anyway(rendezvous, options):
    """All of the nets are those without the argument."""
    plain, found = (built(rendezvous, [0], shared_model=shared, **options) for shared in (False, True))
    assert found[1] == plain[1]
    for net in ("net", "param_init_net"):
        assert getattr(found[0], net).Proto() == getattr(plain[0], net).Proto()


def test_nccl_within_processes_is_refused():
    with pytest.raises(NetError, match="use_nccl=True cannot be combined with a rendezvous of 2 processes"):
        built(Rendezvous(2, 0), make=parallel.Parallelize_GPU, use_nccl=True)
