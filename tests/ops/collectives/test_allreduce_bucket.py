"""AllreduceBucket: against sums in float64; staging, precision, blocked layouts, determinism."""

import numpy as np
import pytest
from hypothesis import strategies as st

from collective_runs import OBJECT, alone, numbers, run_on_ranks
from netbuilder.data.tensor_records import proto_to_tensor, tensor_to_proto
from netbuilder.ops.collectives import allreduce_bucket
from netbuilder.ops.collectives.allreduce_bucket import IN_PLACE_BYTES, AllreduceBucket
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import ArgumentError, NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, refusal
from thread_ranks import on_ranks, thread_worlds

SHAPES = [(3, 4), (1,), (), (0, 5), (600, 600), (7,)]


class TestAllreduceBucket(OperatorSuite):
    operator = AllreduceBucket
    no_gradient = "it follows the backward pass"
    refusals = (
        refusal(AllreduceBucket(clip=1.0), [OBJECT, f32(2)], "clip must be a positive bound", ArgumentError),
        refusal(AllreduceBucket(precision="float16", clip=-1.0), [OBJECT, f32(2)], "got -1.0 with", ArgumentError),
        refusal(AllreduceBucket(), [f32(2), f32(2)], "input 0 must be a common world"),
        refusal(AllreduceBucket(), [OBJECT, TensorSpec((2,), np.dtype(np.bool_))], "adds numbers, got input 1"),
        refusal(
            AllreduceBucket(precision="int8"),
            [OBJECT, f32(2)],
            "precision must be one of float32, float16, bfloat16, got 'int8'",
            ArgumentError,
        ),
        refusal(AllreduceBucket(), [OBJECT, f32(2), f32(2)], "got 3 inputs and 1 outputs", ArgumentError, n_out=1),
    )

    def draw(self, data):
        xs = [data.draw(floats((0, 3), (1, 3))) for _ in range(data.draw(st.integers(1, 3)))]
        precision = data.draw(st.sampled_from(["float32", "float16", "bfloat16"]))
        return AllreduceBucket(precision=precision).with_arity(1 + len(xs), len(xs)), [alone(), *xs]

    def reference(self, op, world, *xs):
        return xs  # nothing is rounded where nothing is exchanged


def names(count):
    return [f"g{n}" for n in range(count)]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("deterministic", [False, True])
def test_sums_of_large_and_small_blobs_of_several_types(size, deterministic):
    dtypes = [np.float32, np.float64, np.float16, np.float32, np.float32, np.int64]
    blobs = [
        {f"g{n}": numbers(rank + n, dtype, shape) for n, (dtype, shape) in enumerate(zip(dtypes, SHAPES))}
        for rank in range(size)
    ]
    assert blobs[0]["g4"].nbytes > IN_PLACE_BYTES
    for outputs in run_on_ranks("AllreduceBucket", blobs, names(6), deterministic=deterministic):
        for name, y, dtype, shape in zip(names(6), outputs, dtypes, SHAPES):
            assert (y.dtype, y.shape) == (dtype, shape)
            np.testing.assert_array_equal(y, sum(each[name].astype(np.float64) for each in blobs))


def rounded(x, precision):
    return (
        x.astype(np.float16).astype(np.float32)
        if precision == "float16"
        else (proto_to_tensor(tensor_to_proto(x, bfloat16=True)))
    )


@pytest.mark.one_in(4)
@pytest.mark.parametrize("chunk", [allreduce_bucket.CHUNK, 5000, 1])
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_values_are_rounded_once_before_and_once_after_the_sum(precision, chunk, monkeypatch):
    monkeypatch.setattr(allreduce_bucket, "CHUNK", chunk)
    if chunk == 1:
        monkeypatch.setitem(globals(), "SHAPES", [(3, 4), (1,), (), (0, 5), (2, 3), (7,)])
    rng = np.random.default_rng(3)
    blobs = [{f"g{n}": rng.normal(size=shape).astype(np.float32) for n, shape in enumerate(SHAPES)} for _ in range(3)]
    first, *others = run_on_ranks("AllreduceBucket", blobs, names(6), precision=precision)
    for name, y in zip(names(6), first):
        x, *more = (rounded(each[name], precision) for each in blobs)
        np.testing.assert_array_equal(y, rounded(sum(more, start=x), precision))
    for outputs in others:
        for y, same in zip(first, outputs):
            np.testing.assert_array_equal(y, same)


def with_element(value, rank):
    """Three ranks' blobs: one element of "g1" on ``rank`` has a value."""
    blobs = [{"g0": np.ones(3, np.float32), "g1": np.ones((2, 2), np.float32)} for _ in range(3)]
    blobs[rank]["g1"][1, 0] = value
    return blobs


@pytest.mark.parametrize(
    "precision, value, match",
    [
        ("float16", -1e6, "'g1' overflows float16, whose largest number is 65504: .* is 1e.06 on rank 1; exchange bfl"),
        ("float16", 65503, "'g1' overflows float16, .*: the sum over 3 ranks is larger"),
        ("bfloat16", 3.4e38, "'g1' overflows bfloat16, .* is 3.4e.38 on rank 1; bound the values by clip"),
    ],
)
def test_an_overflow_is_the_same_error_on_all_ranks(precision, value, match):
    blobs = with_element(value, 1)
    if value == 65503:
        for each in blobs:
            each["g1"][1, 0] = value
    for error in run_on_ranks("AllreduceBucket", blobs, names(2), precision=precision):
        with pytest.raises(RuntimeError, match=match):
            raise error


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_was_not_finite_before_stays_so(precision, value):
    for outputs in run_on_ranks("AllreduceBucket", with_element(value, 2), names(2), precision=precision):
        np.testing.assert_array_equal(outputs[1], [[3, 3], [value, 3]])


def test_values_are_clipped_before_they_are_rounded():
    for outputs in run_on_ranks("AllreduceBucket", with_element(-1e6, 0), names(2), precision="float16", clip=100.0):
        np.testing.assert_array_equal(outputs[1], [[3, 3], [-98, 3]])


def test_the_bytes_that_a_rank_gives_are_counted():
    worlds = thread_worlds(2)

    def work(rank):
        workspace = Workspace(threads=1)
        workspace.feed("cw", worlds[rank])
        workspace.feed("g0", numbers(rank, shape=(10,)))
        for precision in ("float32", "bfloat16"):
            workspace.run_operator_once(make_op("AllreduceBucket", ["cw", "g0"], ["g0"], precision=precision))
        return worlds[rank].communicator.given_bytes

    assert on_ranks(2, work) == [10 * 4 + 10 * 2] * 2


def test_one_call_for_all_small_blobs_and_one_for_each_large_one():
    worlds = thread_worlds(2)

    def work(rank):
        workspace = Workspace(threads=1)
        workspace.feed("cw", worlds[rank])
        for n, shape in enumerate([(3, 4), (1,), (600, 600), (700, 700)]):
            workspace.feed(f"g{n}", numbers(rank, shape=shape))
        workspace.run_operator_once(make_op("AllreduceBucket", ["cw", *names(4)], names(4)))
        return worlds[rank].communicator.calls

    assert on_ranks(2, work) == [["allreduce"] * 3] * 2


def test_a_large_blob_is_not_copied(monkeypatch):
    given = []
    monkeypatch.setattr(allreduce_bucket, "lasting_zeros", lambda size: given.append(size))
    blobs = [np.zeros(IN_PLACE_BYTES // 4, np.float32), np.zeros(3, np.float32)]
    parts = allreduce_bucket._parts(blobs, np.dtype(np.float32), names(2))
    assert {id(part.buffer) for part in parts} == set(map(id, blobs)) and not given


def conv_gradient_net():
    net = NetDef(name="n")
    net.op.append(make_op("ConvGradient", ["x", "w", "dy"], ["dw", "db", "dx"], kernel=3, pad=1))
    net.op.append(make_op("AllreduceBucket", ["cw", "dw", "db"], ["dw", "db"]))
    net.op.append(make_op("MomentumSGDUpdate", ["dw", "m", "lr", "w"], ["dw", "m", "w"], momentum=0.9))
    return net


@pytest.mark.parametrize("engines", [(None, None), ((), ()), (None, ())], ids=["blocked", "plain", "one of each"])
def test_gradients_in_blocked_layouts_and_ranks_that_differ_in_them(engines):
    """A gradient of a convolution stays in oneDNN's layout; a rank without oneDNN exchanges plain order with it.

    The bias is next to it, so that one call exchanges both.
    """
    rng = np.random.default_rng(0)
    w, lr = rng.normal(size=(64, 64, 3, 3)).astype(np.float32), np.float32([0.1])
    assert w.nbytes > IN_PLACE_BYTES
    data = [[rng.normal(size=(2, 64, 9, 9)).astype(np.float32) for _ in range(2)] for _ in range(2)]
    worlds = thread_worlds(2)

    def work(rank):
        workspace = Workspace(threads=1, engines=engines[rank])
        x, dy = data[rank]
        workspace.feed("cw", worlds[rank])
        for name, value in {"x": x, "dy": dy, "w": w, "m": np.zeros_like(w), "lr": lr}.items():
            workspace.feed(name, value)
        net = workspace.net(workspace.create_net(conv_gradient_net(), observable="all"))
        for _ in range(3):
            workspace.run_net("n")
        steps = net.plan_ahead()[0].steps
        bucket = next(step for step in steps if step.node.first.op_def.type == "AllreduceBucket")
        assert worlds[rank].communicator.calls == 3 * ["allreduce"]
        return workspace.fetch("w"), workspace.fetch("db"), bucket.prepared.inputs[1].layout is not None

    whole = Workspace(threads=1, engines=())
    whole.feed("cw", alone())
    x, dy = (np.concatenate(each) for each in zip(*data))
    for name, value in {"x": x, "dy": dy, "w": w, "m": np.zeros_like(w), "lr": lr}.items():
        whole.feed(name, value)
    whole.create_net(conv_gradient_net(), observable="all")
    for _ in range(3):
        whole.run_net("n")
    for rank, (found, bias, blocked) in enumerate(on_ranks(2, work)):
        np.testing.assert_allclose(found, whole.fetch("w"), rtol=2e-4, atol=2e-4)
        np.testing.assert_allclose(bias, whole.fetch("db"), rtol=2e-4, atol=2e-4)
        assert blocked == (engines[rank] is None)
