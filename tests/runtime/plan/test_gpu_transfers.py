"""What the record of a run on GPUs shows: copies between devices, who works where, who waits for whom."""

import gc
import re
from collections import Counter

import numpy as np
import pytest

from checks import GPU, run_plain
from emulated_gpu.machine import HOST, Transfer, faults, finish_all
from netbuilder.engines import gpu as engine
from netbuilder.engines.arrays import array_module
from netbuilder.ops.activations.activations import Relu
from netbuilder.ops.core.registry import kernel, plain_kernel
from netbuilder.proto import PROTO_CUDA, NetDef, OperatorError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute import executable as plan
from on_gpu import gpus

pytestmark = pytest.mark.emulated

X = np.float32([[1, -2, 3], [-4, 5, -6]])


def on(number, *args, **kwargs):
    return make_op(*args, device_option=make_device_option(PROTO_CUDA, number), **kwargs)


def net(*ops, type="simple"):
    made = NetDef(name="net", type=type, num_workers=8)
    made.op.extend(ops)
    return made


# Copies between devices.


def transfers_of_a_step(machine, workspace, times=1):
    machine.transfers.clear()
    workspace.run_net("net", times)
    return Counter((t.source, t.target) for t in machine.transfers)


@pytest.mark.parametrize("executor", ["simple", "dag"])
def test_a_value_read_twice_elsewhere_goes_there_once(executor):
    made = net(
        on(0, "Relu", ["x"], ["a"]),
        on(1, "Negative", ["a"], ["b"]),
        on(1, "Sum", ["a", "b"], ["c"]),
        make_op("Scale", ["a"], ["d"], scale=2.0),
        make_op("Sum", ["a", "d"], ["e"]),
        on(1, "Sum", ["e", "a"], ["f"]),
        type=executor,
    )
    with gpus(2) as machine:
        workspace = Workspace(threads=3)
        workspace.feed("x", X, make_device_option(PROTO_CUDA, 0))
        workspace.create_net(made)
        workspace.run_net("net")
        for steps in (1, 3):
            found = transfers_of_a_step(machine, workspace, steps)
            assert found == {(0, 1): steps, (0, HOST): steps, (HOST, 1): steps}


def test_a_value_on_its_gpu_stays_there():
    made = net(on(0, "FC", ["x", "w", "b"], ["y"]), on(0, "Relu", ["y"], ["y"]), on(0, "SumElements", ["y"], ["s"]))
    with gpus(1) as machine:
        workspace = Workspace()
        for name, value in {"x": X, "w": np.ones((4, 3), np.float32), "b": np.zeros(4, np.float32)}.items():
            workspace.feed(name, value, make_device_option(PROTO_CUDA, 0))
        workspace.create_net(made)
        workspace.run_net("net")
        assert transfers_of_a_step(machine, workspace, 5) == {}


def test_a_constant_goes_to_its_gpu_once():
    with gpus(1) as machine:
        workspace = Workspace()
        for name, value in {"x": X, "w": np.ones((4, 3), np.float32), "b": np.zeros(4, np.float32)}.items():
            workspace.feed(name, value)
        workspace.create_net(net(on(0, "FC", ["x", "w", "b"], ["y"])), constants=["w", "b"])
        assert transfers_of_a_step(machine, workspace) == {(HOST, 0): 3}
        assert transfers_of_a_step(machine, workspace, 2) == {(HOST, 0): 2}
        workspace.feed("w", np.full((4, 3), 2, np.float32))
        assert transfers_of_a_step(machine, workspace) == {(HOST, 0): 2}


def test_what_a_kernel_reads_on_the_host_does_not_leave_it():
    """A counter on the host determines the rate on each GPU: each kernel uploads its number, and nothing else."""
    made = net(
        make_op("Iter", ["count"], ["count"]),
        on(0, "LearningRate", ["count"], ["rate"], base_lr=1.0, policy="inv", gamma=1.0, power=1.0),
        on(0, "Adam", ["p", "m", "v", "g", "rate", "count"], ["p", "m", "v"]),
    )
    with gpus(1) as machine:
        workspace = Workspace()
        workspace.feed("count", np.int64([0]))
        for name in "pmvg":
            workspace.feed(name, np.ones(3, np.float32), make_device_option(PROTO_CUDA, 0))
        workspace.create_net(made)
        workspace.run_net("net")
        assert transfers_of_a_step(machine, workspace) == {(HOST, 0): 2}


def test_a_value_changed_between_its_readers_goes_again():
    made = net(
        on(0, "Scale", ["x"], ["x"], scale=2.0),
        on(1, "Negative", ["x"], ["a"]),
        on(0, "Scale", ["x"], ["x"], scale=2.0),
        on(1, "Negative", ["x"], ["b"]),
    )
    with gpus(2) as machine:
        workspace = Workspace()
        workspace.feed("x", X, make_device_option(PROTO_CUDA, 0))
        workspace.create_net(made)
        assert transfers_of_a_step(machine, workspace) == {(0, 1): 2}


@pytest.mark.parametrize("shape", [(), (1,), (1, 4), (3, 2)])
def test_gpus_that_cannot_read_each_others_memory(shape):
    """Copies between them are copies of memory, never kernels, whatever the shape."""
    value = np.full(shape, 3, np.float32)
    with gpus(2, access=False) as machine:
        workspace = Workspace()
        workspace.feed("x", value, make_device_option(PROTO_CUDA, 0))
        workspace.run_net_once(net(on(1, "Negative", ["x"], ["y"]), on(0, "Sum", ["y", "x"], ["z"])))
        assert {Transfer(0, 1, value.nbytes), Transfer(1, 0, value.nbytes)} <= set(machine.transfers)


# Who works where, and who waits for whom.


ONE_WAY = [
    on(0, "Scale", ["a"], ["a"], scale=0.5),
    on(1, "Sum", ["b", "a"], ["b"]),
    on(0, "Scale", ["a"], ["a"], scale=0.5),
]
BOTH_WAYS = [*ONE_WAY, on(0, "Sum", ["a", "b"], ["a"]), on(1, "Scale", ["b"], ["b"], scale=0.5)]


def handing_over(executor="dag", ops=BOTH_WAYS, steps=3):
    """Run a net in which GPUs read what the other has just written, and overwrite what the other reads."""
    made = net(*ops, type=executor)
    workspace = Workspace(threads=2)
    workspace.feed("a", X, make_device_option(PROTO_CUDA, 0))
    workspace.feed("b", X, make_device_option(PROTO_CUDA, 1))
    workspace.create_net(made)
    workspace.run_net("net", steps)
    return workspace


@pytest.mark.parametrize("executor", ["simple", "dag"])
def test_each_gpu_does_its_own_work(executor):
    with gpus(2, access=False) as machine:
        handing_over(executor, ONE_WAY)
        kernels = {(launch.name.rpartition("_")[0], launch.device) for launch in machine.launches}
    assert kernels == {("nb_scale", 0), ("nb_sum", 1)}


def test_a_run_that_returns_is_over():
    with gpus(2):
        handing_over()
        streams = [engine.gpu(number).stream(role) for number in range(2) for role in engine.StreamRole]
        assert all(stream.raw.done for stream in streams)


def found_in(run):
    """Return the faults of what a function does on two GPUs; they are no faults of the test then."""
    with gpus(2):
        kept = run()
        finish_all()
        del kept
        gc.collect()
        return "\n".join(faults())


def is_race(found, first, second):
    """Whether two works, by patterns for their names, do not wait for each other, whichever happens to run first."""
    return any(
        re.search(f"^{one} .* without waiting for {other} ", found, re.M)
        for one, other in ((first, second), (second, first))
    )


@pytest.mark.parametrize("executor", ["simple", "dag"])
def test_copies_that_did_not_wait_would_be_found(executor, monkeypatch):
    """The proof that races are found: without the waits of either side, there are some."""
    assert found_in(lambda: handing_over(executor, ONE_WAY)) == ""

    waits = engine.GPU.wait_until

    def forgets(number):
        return lambda here, event: None if here.id == number else waits(here, event)

    for cls, method, instead, reader in (
        (engine.Stream, "wait_for", lambda stream, other: None, "nb_scale_.*"),
        (engine.GPU, "wait_until", forgets(0), "nb_scale_.*"),
        (engine.GPU, "wait_until", forgets(1), "nb_sum_.*"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(cls, method, instead)
            assert is_race(found := found_in(lambda: handing_over(executor, ONE_WAY)), "copy", reader), found


@pytest.mark.parametrize("executor", ["simple", "dag"])
def test_copies_between_gpus_begin_when_their_value_is_there(executor):
    """The first GPU needs the value of the second one last; the copy continues while both compute."""
    ops = [on(1, "Scale", ["b"], ["g"], scale=2.0), on(1, "Relu", ["b"], ["rest"])]
    ops += [on(0, "Relu", ["a"], ["r"]), on(0, "Sum", ["r", "g"], ["y"])]
    with gpus(2):
        workspace = handing_over(executor, ops)
        steps = [(s.node.first.op_def.type, s.what, s.lane) for s in workspace.net("net").plans[-1].steps]
        first, second = (1, 0) if executor == "dag" else (0, 0)  # the lane of GPU 0, that of GPU 1
        assert [step for step in steps if step[1] in ("transfer", "wait")] == [
            ("Sum", "transfer", second), ("Sum", "wait", first)
        ]  # fmt: skip
        names = [what if what in ("transfer", "wait") else kind for kind, what, _ in steps]
        assert names == ["Scale", "transfer", "Relu", "Relu", "wait", "Sum"]


def test_a_copy_at_once_that_did_not_wait_would_be_found(monkeypatch):
    def copied():
        with engine.gpu(0) as here:
            value = here.xp.zeros(4, np.float32)
        with engine.gpu(1) as there:
            buffer = there.xp.zeros(4, np.float32)
        engine.copy_into(buffer, value)
        with engine.gpu(0):
            value[...] = 1
        engine.gpu(0).synchronize()
        engine.gpu(1).synchronize()

    assert found_in(copied) == ""
    waits = engine.GPU.wait_for
    for forgetful, other in ((1, "set"), (0, "cupy_fill.*")):
        with monkeypatch.context() as patch:
            patch.setattr(
                engine.GPU, "wait_for", lambda here, other, no=forgetful: None if here.id == no else waits(here, other)
            )
            assert is_race(found := found_in(copied), "copy", other), found


def test_work_outside_of_its_gpus_stream_would_be_found(monkeypatch):
    monkeypatch.setattr(plan, "on_gpu", lambda call, number: call)
    for number in range(2):

        def run(number=number):
            workspace = Workspace()
            workspace.feed("x", X, make_device_option(PROTO_CUDA, number))
            workspace.run_net_once(net(on(number, "Relu", ["x"], ["y"])))
            return workspace

        assert is_race(found := found_in(run), "nb_relu_.*", "copy from the host"), found


def test_memory_given_up_while_others_copy_it_is_safe():
    """If the blobs of a workspace are freed right after a run, no copy is still in progress."""
    with gpus(2):
        for _ in range(3):
            handing_over().reset()


def test_what_a_gpu_fails_at_late_comes_out_of_the_run(monkeypatch):
    def fails(self):
        raise RuntimeError("cudaErrorIllegalAddress")

    with gpus(1):
        workspace = Workspace()
        workspace.feed("x", X)
        workspace.create_net(net(on(0, "Relu", ["x"], ["y"])))
        monkeypatch.setattr(engine.GPU, "synchronize", fails)
        with pytest.raises(OperatorError, match="net 'net', one of its operators on GPU 0: .*cudaErrorIllegalAddress"):
            workspace.run_net("net")


def test_a_fed_array_of_a_gpu_is_complete_whatever_stream_made_it():
    with gpus(1):
        cupy = array_module(PROTO_CUDA)
        stream = cupy.cuda.Stream()
        with stream:
            given = cupy.asarray(X) * 2
        workspace = Workspace()
        workspace.feed("x", given)
        given.fill(0)  # on yet another stream, the null stream
        cupy.cuda.Device().synchronize()
        np.testing.assert_array_equal(workspace.fetch("x"), 2 * X)


def test_a_kernel_that_leaves_its_result_on_the_host_would_be_found():
    before = plain_kernel("Relu", 1)
    kernel(Relu)(lambda op, ctx, x: (np.maximum(ctx.host(x), 0),))
    try:
        with gpus(1), pytest.raises(AssertionError, match="Relu: a result lies on the host"):
            run_plain(Relu(), [X], GPU)
    finally:
        kernel(Relu)(before)
