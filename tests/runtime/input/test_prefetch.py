"""Prefetch: batches prepared during the runs, the same results, no new plans, errors, closing, threads."""

import gc
import logging
import threading
import time
import traceback
from types import SimpleNamespace

import numpy as np
import pytest

from emulated_gpu.machine import HOST
from netbuilder import ModelHelper
from netbuilder.graph.scope import NameScope
from netbuilder.optimizers import build_sgd
from netbuilder.proto import PROTO_CUDA, DeviceError, NetDef, NetError, ShapeError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Prefetch, Workspace
from netbuilder.runtime.input import prefetch
from netbuilder.zoo import create_lenet, create_mlp, create_resnet_cifar
from on_gpu import gpus
from waiting import HANG, join_all, wait_until

F32 = np.float32


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    gc.collect()
    assert not [thread for thread in threading.enumerate() if thread.name == "netbuilder-input"]


def doubling(workspace, type="simple", then=()):
    net = NetDef(name="net", type=type, external_input=["x"])
    net.op.append(make_op("Scale", ["x"], ["y"], scale=2.0))
    net.op.extend(then)
    workspace.feed("x", np.zeros(4, F32))
    workspace.create_net(net)


def counting(count, size=4):
    for k in range(count):
        yield {"x": np.full(size, k, F32)}


def test_every_batch_comes_once_in_order_and_the_end_ends_the_loop():
    workspace = Workspace()
    doubling(workspace)
    seen = []
    with Prefetch(workspace, counting(20), blobs=["x"]) as input:
        for batch in input:
            workspace.run_net("net")
            seen.append(workspace.fetch("y")[0])
            assert workspace.fetch("x")[0] == batch["x"][0]
        assert next(input, None) is None
    assert seen == [2 * k for k in range(20)]
    assert input.state().batches == 20


def small_net(workspace, builder):
    model = ModelHelper(name="trained", arg_scope={"order": "NCHW"})
    _, loss = builder(model)
    model.AddGradientOperators([loss])
    build_sgd(model, 0.05, momentum=0.9)
    workspace.feed("data", np.zeros((4, 1, 28, 28), F32))
    workspace.feed("label", np.zeros(4, np.int32))
    workspace.run_net_once(model.param_init_net)
    workspace.create_net(model.net)
    return model.net, sorted(str(p) for p in model.GetParams())


NETS = {
    "mlp": lambda model: create_mlp(model, "data", [784, 8, 10], label="label"),
    "lenet": lambda model: create_lenet(model, "data", 1, 10, image_size=28, label="label"),
    "resnet": lambda model: create_resnet_cifar(model, "data", 1, 10, 8, label="label"),
}


def samples(count, sizes=(4,)):
    rng = np.random.default_rng(3)
    for k in range(count):
        n = sizes[k % len(sizes)]
        yield {"data": rng.standard_normal((n, 1, 28, 28)), "label": rng.integers(0, 10, n)}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("name", "engines"), [("mlp", ()), ("mlp", None), ("lenet", None), ("resnet", None)])
def test_training_is_the_same_to_the_bit(name, engines):
    found = []
    for beside in (False, True):
        workspace = Workspace(engines=engines)
        net, parameters = small_net(workspace, NETS[name])
        if beside:
            dtypes = {"data": "float32", "label": np.int32}
            with Prefetch(workspace, samples(6, sizes=(4, 4, 3)), blobs=["data", "label"], dtypes=dtypes) as input:
                for _ in input:
                    workspace.run_net(net)
        else:
            for batch in samples(6, sizes=(4, 4, 3)):
                workspace.feed("data", batch["data"].astype(F32))
                workspace.feed("label", batch["label"].astype(np.int32))
                workspace.run_net(net)
        found.append([workspace.fetch(p) for p in (*parameters, "loss")])
    for a, b in zip(*found):
        np.testing.assert_array_equal(a, b)


def plans_made(monkeypatch):
    from netbuilder.runtime.execute import net

    made = []
    original = net.make_plan
    monkeypatch.setattr(net, "make_plan", lambda *args: made.append(args[2]) or original(*args))
    return made


def test_steps_of_one_shape_make_no_plan_and_no_buffer(monkeypatch):
    made = plans_made(monkeypatch)
    workspace = Workspace()
    net, _ = small_net(workspace, NETS["mlp"])
    made.clear()
    dtypes = {"data": F32, "label": np.int32}
    with Prefetch(workspace, samples(40), blobs=["data", "label"], dtypes=dtypes, depth=2) as input:
        generations = []
        for _ in input:
            workspace.run_net(net)
            generations.append(workspace.generation.number)
    assert made == [0]
    assert len(set(generations[1:])) == 1
    assert len(workspace.get("data").ring.buffers) <= 3


def test_shapes_that_alternate_keep_their_plans(monkeypatch):
    made = plans_made(monkeypatch)
    workspace = Workspace()
    doubling(workspace)
    sizes = [{"x": np.ones(n, F32)} for n in (3, 5, 3, 5, 5, 3, 3, 5)]
    with Prefetch(workspace, sizes, blobs=["x"]) as input:
        for batch in input:
            workspace.run_net("net")
            assert workspace.fetch("y").shape == batch["x"].shape
    assert len(made) == 2


def test_feeding_by_hand_between_steps_and_afterwards_makes_no_plan(monkeypatch):
    workspace = Workspace()
    doubling(workspace)
    with Prefetch(workspace, counting(3), blobs=["x"]) as input:
        for _ in input:
            workspace.run_net("net")
    made = plans_made(monkeypatch)
    for size in (4, 6, 4, 6, 4):
        workspace.feed("x", np.full(size, 7, F32))
        workspace.run_net("net")
        assert workspace.fetch("y").tolist() == [14] * size
    assert made == [0]  # the other size, once
    with Prefetch(workspace, counting(5), blobs=["x"]) as input:
        for _ in input:
            workspace.run_net("net")
            workspace.feed("x", np.full(4, -1, F32))  # while one is open
            workspace.run_net("net")
            assert workspace.fetch("y").tolist() == [-2] * 4
    assert made == [0]


def test_one_inside_another_over_the_same_blob():
    """As where a training loop stops to evaluate."""
    workspace = Workspace()
    doubling(workspace)
    seen = []
    with Prefetch(workspace, counting(6), blobs=["x"], depth=3) as outer:
        for k, _ in enumerate(outer):
            if k % 2:
                with Prefetch(workspace, ({"x": np.full(4, -n, F32)} for n in range(5)), blobs=["x"]) as inner:
                    for batch in inner:
                        workspace.run_net("net")
                        assert workspace.fetch("y")[0] == 2 * batch["x"][0]
            else:
                workspace.run_net("net")
                seen.append(workspace.fetch("y")[0])
    assert seen == [0, 4, 8]


def test_an_input_that_the_net_overwrites_is_copied():
    workspace = Workspace()
    workspace.feed("x", np.zeros(4, F32))
    net = NetDef(name="net", external_input=["x"])
    net.op.extend([make_op("Scale", ["x"], ["x"], scale=3.0), make_op("Relu", ["x"], ["y"])])
    workspace.create_net(net)
    seen = []
    with Prefetch(workspace, counting(9), blobs=["x"]) as input:
        for _ in input:
            workspace.run_net("net")
            seen.append((workspace.fetch("x")[0], workspace.fetch("y")[0]))
    assert seen == [(3 * k, 3 * k) for k in range(9)]


def test_a_value_that_is_computed_when_it_is_fetched_from_the_input():
    """Relu is fused into the operator before it, and its output computed from buffers when it is fetched."""
    workspace = Workspace()
    net = NetDef(name="net", external_input=["x"])
    net.op.extend([
        make_op("Relu", ["x"], ["a"]), make_op("Sum", ["a", "x"], ["s"]), make_op("Relu", ["s"], ["s"]),
        make_op("Copy", ["x"], ["unread"]),
    ])  # fmt: skip
    workspace.feed("x", np.zeros(4, F32))
    workspace.create_net(net)
    with Prefetch(workspace, counting(9), blobs=["x"]) as input:
        for k, _ in enumerate(input):
            workspace.run_net("net")
            if k % 2:
                assert [workspace.fetch(b)[0] for b in ("a", "s", "unread")] == [k, 2 * k, k]


def test_a_split_over_several_blobs():
    workspace = Workspace()
    names = {"x": ["a/x", "b/x"], "label": ["a/label", "b/label"]}
    given = {"x": np.arange(10, dtype=F32).reshape(5, 2), "label": np.arange(5)}
    with Prefetch(workspace, [given], blobs=names, even=False) as input:
        next(input)
        assert [workspace.fetch(n).tolist() for n in names["label"]] == [[0, 1, 2], [3, 4]]
        assert workspace.fetch("b/x").tolist() == [[6, 7], [8, 9]]


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (
            {"x": np.ones((5, 2)), "y": np.ones(5)},
            {},
            r"'x' of shape \(5, 2\) has 5 samples along axis 0, which cannot be split evenly over 2 repl",
        ),
        (
            {"x": np.ones((1, 2)), "y": np.ones(1)},
            {"even": False},
            r"has 1 sample along axis 0, which cannot be split over 2 replicas; give 2 or more",
        ),
        (
            {"x": np.ones((4, 2)), "y": np.ones(6)},
            {},
            r"same number of samples, got shapes {'x': \(4,\), 'y': \(6,\)}",
        ),
        ({"x": np.ones((4, 2))}, {}, r"lacks \['y'\]; it has \['x'\]"),
        ([1, 2], {}, "a batch must be a mapping from names to arrays, got list"),
        (
            {"x": np.ones(4), "y": np.ones(4)},
            {"dtypes": {"y": np.int32}},
            "'y' is of dtype float64, which cannot be cast to int32; convert",
        ),
    ],
)
def test_batches_that_do_not_fit(given, options, message):
    with Prefetch(Workspace(), [given], blobs={"x": ["a", "b"], "y": ["c", "d"]}, **options) as input:
        with pytest.raises((NetError, ShapeError), match=message):
            next(input)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 0}, "depth must be a whole number, 1 or more, got 0"),
        ({"blobs": "x"}, "blobs must be a list or a mapping, .*, got 'x'"),
        ({"blobs": []}, "at least one blob"),
        ({"blobs": ["x", "x"]}, "each once"),
        ({"blobs": {"x": ["a"], "y": ["a"]}}, "each once"),
        ({"source": 3}, "source must be an iterable .* got int"),
        ({"source": {"x": 1}}, "source must be an iterable .* got dict"),
        ({"dtypes": {"z": F32}}, r"dtypes names \['z'\]"),
        ({"devices": [make_device_option(0)] * 2}, "got 2 devices for the blobs"),
    ],
)
def test_wrong_arguments(options, message):
    options = {"source": [], "blobs": ["x"], **options}
    with pytest.raises(NetError, match=message):
        Prefetch(Workspace(), options.pop("source"), **options)


# Errors, the end, closing.


def test_an_error_of_the_source_reaches_the_loop_with_its_traceback():
    def broken():
        yield {"x": np.ones(4, F32)}
        raise OSError("the disk is gone")

    workspace = Workspace()
    with Prefetch(workspace, broken(), blobs=["x"]) as input:
        next(input)  # what came before the error is served
        with pytest.raises(OSError, match="the disk is gone") as raised:
            next(input)
        assert "in broken" in "".join(traceback.format_tb(raised.value.__traceback__))
        with pytest.raises(OSError, match="the disk is gone"):
            next(input)


def test_a_function_as_source():
    given = iter([{"x": np.ones(1)}, {"x": np.zeros(1)}, None])
    with Prefetch(Workspace(), lambda: next(given), blobs=["x"]) as input:
        assert len(list(input)) == 2
    given = iter([{"x": np.ones(1)}])
    with Prefetch(Workspace(), lambda: next(given), blobs=["x"]) as input:
        assert len(list(input)) == 1
    with Prefetch(Workspace(), [None], blobs=["x"]) as input, pytest.raises(NetError, match="got NoneType"):
        next(input)


def test_the_source_is_not_pulled_further_than_the_depth():
    pulled = []

    def source():
        for k in range(100):
            pulled.append(k)
            yield {"x": np.full(2, k, F32)}

    with Prefetch(Workspace(), source(), blobs=["x"], depth=3) as input:
        wait_until(lambda: input.state().ready == 3)
        time.sleep(0.05)
        assert len(pulled) == 3
        next(input)
        wait_until(lambda: input.state().ready == 3)
        time.sleep(0.05)
        assert len(pulled) == 4
    assert repr(input) == "Prefetch(x; 0 of 3 batches ready)"


def test_closing_in_the_middle_ends_the_generator():
    ended = []

    def source():
        try:
            while True:
                yield {"x": np.ones(2, F32)}
        finally:
            ended.append(threading.current_thread().name)

    workspace = Workspace()
    with Prefetch(workspace, source(), blobs=["x"]) as input:
        next(input)
    assert ended == ["netbuilder-input"]
    input.close()
    assert list(input) == []
    assert workspace.fetch("x").tolist() == [1, 1]
    for _ in range(3):  # the buffers that were ready are used again
        with Prefetch(workspace, counting(9, 2), blobs=["x"]) as input:
            next(input)
    assert len(workspace.get("x").ring.buffers) <= 4


def test_closing_while_the_source_blocks_says_so():
    go = threading.Event()

    def source():
        go.wait(HANG)
        yield {"x": np.ones(2)}

    input = Prefetch(Workspace(), source(), blobs=["x"])
    input.__enter__()
    with pytest.warns(RuntimeWarning, match=r"the source has not returned for 0.05 seconds"):
        input.close(0.05)
    go.set()
    input.close()


def test_closing_from_another_thread_ends_a_loop_that_waits():
    go = threading.Event()
    input = Prefetch(Workspace(), iter(lambda: go.wait() and {"x": np.ones(2)}, None), blobs=["x"])
    seen = []
    loop = threading.Thread(target=lambda: seen.extend(input), daemon=True)
    loop.start()
    wait_until(lambda: input.changed._waiters)
    closing = threading.Thread(target=input.close, daemon=True)
    closing.start()
    join_all(loop)
    go.set()
    join_all(closing)
    assert seen == []


def test_a_removed_blob_is_reported():
    workspace = Workspace()
    with Prefetch(workspace, counting(5), blobs=["x"]) as input:
        next(input)
        workspace.remove("x")
        with pytest.raises(NetError, match="blob 'x' was removed from the workspace; close"):
            next(input)


def test_many_at_once_in_workspaces_of_their_own():
    failures = []

    def work(number):
        try:
            workspace = Workspace(threads=1)
            doubling(workspace)
            total = 0.0
            with Prefetch(
                workspace, ({"x": np.full(4, number + k, F32)} for k in range(60)), blobs=["x"], depth=3
            ) as input:
                for _ in input:
                    workspace.run_net("net")
                    total += workspace.fetch("y")[0]
            assert total == 2 * sum(number + k for k in range(60))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=[n], daemon=True) for n in range(12)]
    for thread in threads:
        thread.start()
    join_all(*threads)
    assert not failures


# Statistics and messages.


def test_waiting_is_counted_and_warned_of_once(caplog, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(prefetch, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def slow():
        for k in range(8):
            wait_until(lambda: input.changed._waiters)  # the loop waits
            clock[0] += 1
            yield {"x": np.full(4, k, F32)}

    input = Prefetch(Workspace(), slow(), blobs=["x"])
    with caplog.at_level(logging.WARNING, "netbuilder.input"), input:
        list(input)
    state = input.state()
    assert state.wait == state.source == 8 and state.waits in (7, 8)  # the first batch does not count, the end may
    assert [record.message for record in caplog.records if "has waited for its input" in record.message] == [
        "the loop has waited for its input 100% of the time so far (6.0 s, 5 of 6 steps); the source took 6.0 s, "
        "preparing its batches 0.0 s"
    ]


def test_a_fast_source_is_idle():
    with Prefetch(Workspace(), counting(6), blobs=["x"], depth=2) as input:
        for number, _ in enumerate(input):
            if number < 4:  # then the source is at its end
                wait_until(lambda: input.changed._waiters)  # its thread waits, since the queue is full
                time.sleep(0.01)
    state = input.state()
    assert state.idle > 0.03
    assert state.prepare > 0


def test_a_first_batch_of_one_value_is_warned_of(caplog):
    batch = {"data": np.zeros((4, 4)), "label": np.arange(9)}
    with caplog.at_level(logging.WARNING, "netbuilder.input"):
        with Prefetch(Workspace(), [batch] * 3, blobs=list(batch)) as input:
            list(input)
    assert [r.message for r in caplog.records] == [
        "all 16 values of 'data' in the first batch are 0.0; is it read as it was written?"
    ]


def test_strings_and_lists():
    workspace = Workspace()
    with Prefetch(workspace, [{"s": np.array([b"a", b"b"], object), "n": [1, 2]}], blobs=["s", "n"]) as input:
        next(input)
        assert workspace.fetch("s").tolist() == [b"a", b"b"]
        assert workspace.fetch("n").tolist() == [1, 2]


# GPUs.


def on(number, *args, **kwargs):
    return make_op(*args, device_option=make_device_option(PROTO_CUDA, number), **kwargs)


def steps_on_two_gpus(wait):
    """Double batches on two GPUs; yield the workspace, after each step."""
    workspace = Workspace(threads=3)
    devices = [make_device_option(PROTO_CUDA, k) for k in range(2)]
    net = NetDef(name="net", type="dag", num_workers=2, external_input=["gpu_0/x", "gpu_1/x"])
    for k in range(2):
        net.op.append(on(k, "Scale", [f"gpu_{k}/x"], [f"gpu_{k}/y"], scale=2.0))
    names = {"x": ["gpu_0/x", "gpu_1/x"]}
    batches = [{"x": np.arange(4.0) + k} for k in range(12)]
    with Prefetch(workspace, batches, blobs=names, devices=devices, dtypes={"x": F32}) as input:
        for k, _ in enumerate(input):
            if k == 0:
                workspace.create_net(net)
            workspace.run_net("net", wait=wait)
            yield workspace
    workspace.net("net").finish()
    del input
    workspace.reset()


@pytest.mark.parametrize("wait", [True, False])
def test_batches_go_to_two_gpus(two_gpus, wait):
    for k, workspace in enumerate(steps_on_two_gpus(wait)):
        assert workspace.fetch("gpu_1/y").tolist() == [2 * (2 + k), 2 * (3 + k)]
        assert workspace.get("gpu_0/x").location == (PROTO_CUDA, 0)


@pytest.mark.emulated
@pytest.mark.parametrize("wait", [True, False])
def test_batches_go_to_gpus_during_the_step(wait):
    with gpus(2) as machine:
        for k, workspace in enumerate(steps_on_two_gpus(wait)):
            workspace.fetch("gpu_1/y")
            if k == 3:
                machine.transfers.clear()
            if k == 9:
                uploads = sum(transfer.source == HOST for transfer in machine.transfers)
                assert uploads <= 2 * 9  # a batch is copied once; up to two were ready
        del workspace


@pytest.mark.emulated
def test_buffers_of_a_shape_that_is_forgotten_are_used_again_after_the_steps_that_read_them():
    """A blob keeps the buffers of a few shapes; runs that nobody waits for may still read the others."""
    with gpus(1):
        workspace = Workspace(engines=())
        workspace.create_net(NetDef(name="net", external_input=["x"], op=[on(0, "Relu", ["x"], ["y"])]), overwrite=True)
        batches = [{"x": np.full((k % 9 + 1, 3), k, F32)} for k in range(20)]
        with Prefetch(workspace, batches, blobs=["x"], devices=[make_device_option(PROTO_CUDA, 0)]) as input:
            for _ in input:
                workspace.run_net("net", wait=False)
        assert workspace.fetch("y").tolist() == [[19.0] * 3] * 2


@pytest.mark.emulated
def test_a_gpu_that_is_not_there():
    with gpus(1), pytest.raises(DeviceError, match="there is no GPU 1"):
        Prefetch(Workspace(), [], blobs={"x": ["a"]}, devices=[make_device_option(PROTO_CUDA, 1)])


def test_names_with_references():
    workspace = Workspace()
    model = ModelHelper(name="m")
    with NameScope("scope"):
        reference = model.net.AddExternalInput("x")
    with Prefetch(workspace, [{str(reference): np.ones(2)}], blobs=[reference]) as input:
        next(input)
    assert workspace.fetch(str(reference)).tolist() == [1, 1]
