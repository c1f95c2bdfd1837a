"""Workspaces: feeding and fetching, names, nets, errors that name the thing and the remedy."""

import array
import threading

import numpy as np
import pytest

from netbuilder.caffe2.python import workspace as caffe2_workspace
from netbuilder.data import BlobsQueue
from netbuilder.engines.gpu import gpu
from netbuilder.graph.net import Net
from netbuilder.model import ModelHelper
from netbuilder.ops.control.python_op import PythonTensor
from netbuilder.proto import PROTO_CUDA, BlobError, DeviceError, NetDef, NetError, ParseError, ShapeError, files
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import NET_TYPES, Workspace
from netbuilder.runtime.execute import default


def net_of(*ops, name="net", inputs=(), net_type=""):
    net = NetDef(name=name, type=net_type)
    net.op.extend(ops)
    net.external_input.extend(inputs)
    return net


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", ">f4", ">i8"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)])
def test_feed_and_fetch_every_dtype(dtype, shape):
    ws = Workspace()
    value = (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2).astype(dtype)
    ws.feed("x", value)
    got = ws.fetch("x")
    assert got.dtype == np.dtype(dtype).newbyteorder("=")
    assert got.shape == shape
    np.testing.assert_array_equal(got, value)


def test_feed_copies_and_fetch_copies():
    ws = Workspace()
    value = np.zeros(3, np.float32)
    ws.feed("x", value)
    value[:] = 1
    got = ws.fetch("x")
    got[:] = 2
    assert ws.fetch("x").tolist() == [0, 0, 0]


def test_strings_numbers_lists_and_objects():
    ws = Workspace()
    ws.feed("text", "abc")
    assert ws.fetch("text") == b"abc"
    ws.feed("texts", np.array(["a", "bc"]))
    assert ws.fetch("texts").tolist() == [b"a", b"bc"]
    ws.feed("mixed", np.array(["x", b"yz"], object))
    assert ws.fetch("mixed").tolist() == [b"x", b"yz"]
    ws.feed("bytes", np.array([b"x", b"yz"], object))
    assert ws.fetch("bytes").tolist() == [b"x", b"yz"]
    ws.feed("number", 2.5)
    assert ws.fetch("number") == 2.5
    ws.feed("list", [1, 2])
    assert ws.fetch("list").tolist() == [1, 2]
    queue = BlobsQueue(1, 1, "queue")
    ws.feed("thing", queue)
    assert ws.fetch("thing") is queue
    ws.feed("thing", np.float32([1]))
    assert ws.fetch("thing").tolist() == [1]


BUFFERS = {
    "memoryview": (memoryview(np.float32([[1, 2], [3, 4]])), np.float32, [[1, 2], [3, 4]]),
    "memoryview of bytes": (memoryview(b"ab"), np.uint8, [97, 98]),
    "bytearray": (bytearray(b"ab"), np.uint8, [97, 98]),
    "array.array": (array.array("i", [1, 2]), np.int32, [1, 2]),
    "range": (range(3), np.int64, [0, 1, 2]),
}


def feeds(name, value):
    """Yield workspaces' ways to feed a value, and to fetch it."""
    ws = Workspace()
    yield lambda: ws.feed(name, value), lambda: ws.fetch(name)
    yield lambda: caffe2_workspace.FeedBlob(name, value), lambda: caffe2_workspace.FetchBlob(name)
    tensor = PythonTensor()
    yield lambda: tensor.feed(value), tensor.fetch


@pytest.mark.parametrize("case", BUFFERS)
def test_buffers_are_read_as_numpy_reads_them(case):
    value, dtype, expected = BUFFERS[case]
    for feed, fetch in feeds("buffer", value):
        feed()
        assert fetch().dtype == dtype and fetch().tolist() == expected


REFUSED = {
    "object": (object(), "a value of type object cannot be converted to an array .*; blobs hold arrays"),
    "dict": ({"x": np.zeros(2)}, "a dict is not an array; feed each of its values to a blob of its own"),
    "set": ({1, 2}, "a value of type set cannot be converted to an array"),
    "generator": ((k for k in range(3)), "a value of type generator cannot be converted to an array"),
    "function": (len, "a value of type builtin_function_or_method cannot be converted to an array"),
    "net": (Net("net"), "a value of type netbuilder.graph.net.Net cannot be converted to an array"),
    "ragged list": ([[1], [2, 3]], r"cannot make an array of \[\[1\], \[2, 3\]\]"),
    "list of objects": ([object()], "an array of strings may hold only str and bytes, got an item of type object"),
    "array of objects": (np.array([b"x", None]), "an array of strings may hold .* an item of type NoneType"),
    "complex": (1j, "arrays of dtype complex128 cannot be fed"),
    "dates": (np.array(["2020-01-01"], "datetime64[D]"), "arrays of dtype datetime64"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_numpy_reads_no_array_of_is_refused(case):
    value, message = REFUSED[case]
    for feed, _ in feeds("refused", value):
        with pytest.raises(NetError, match=message):
            feed()
    assert not caffe2_workspace.HasBlob("refused")


@pytest.mark.parametrize(
    "maker", ["CreateCounter", "CreateMutex", "CreateMap", "CreateBlobsQueue", "CreateTensorVector"]
)
def test_what_an_operator_makes_can_be_fed_to_another_blob(maker):
    ws = Workspace()
    ws.run_operator_once(make_op(maker, [], ["made"]))
    ws.feed("other", ws.fetch("made"))
    assert ws.fetch("other") is ws.fetch("made")


class ByDunder:
    def __array__(self, dtype=None, copy=None):
        return np.arange(3, dtype=np.int32)


class ByDLPack:
    def __dlpack__(self, **kwargs):
        return np.arange(3, dtype=np.int32).__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return (1, 0)


class OnAnotherDevice:
    def __array__(self, dtype=None, copy=None):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


class NoNumbers:
    def __array__(self, dtype=None, copy=None):
        whole = np.empty((), object)
        whole[()] = self
        return whole


@pytest.mark.parametrize("kind", [ByDunder, ByDLPack])
def test_arrays_of_other_libraries(kind):
    ws = Workspace()
    ws.feed("x", kind())
    assert ws.fetch("x").tolist() == [0, 1, 2] and ws.spec("x").dtype == np.int32


def test_what_other_libraries_cannot_hand_over_is_refused():
    ws = Workspace()
    with pytest.raises(NetError, match="blob 'x': cannot read a .*OnAnotherDevice as an array: can't convert cuda:0"):
        ws.feed("x", OnAnotherDevice())
    with pytest.raises(NetError, match="blob 'x': a .*NoNumbers cannot be converted to an array of numbers or strings"):
        ws.feed("x", NoNumbers())
    assert not ws.has("x")


def test_a_strided_array_is_fed_by_value():
    ws = Workspace()
    value = np.arange(12, dtype=np.float32).reshape(3, 4).T[::2]
    ws.feed("x", value)
    np.testing.assert_array_equal(ws.fetch("x"), value)


def test_names_and_removal():
    ws = Workspace()
    ws.feed("b", 1.0)
    ws.feed("a", 1.0)
    assert ws.blobs() == ["a", "b"]
    assert "a" in ws
    ws.remove("a")
    assert not ws.has("a")
    with pytest.raises(BlobError, match="no blob 'a'"):
        ws.fetch("a")
    ws.reset()
    assert ws.blobs() == []


def test_fetch_of_an_unknown_blob_names_near_ones():
    ws = Workspace()
    ws.feed("conv1_w", 1.0)
    with pytest.raises(BlobError, match=r"no blob 'conv1_v'.*did you mean 'conv1_w'"):
        ws.fetch("conv1_v")


def test_fetch_of_a_blob_that_replicas_have():
    ws = Workspace()
    for name in ("losses", "cpu_1/loss", "cpu_0/loss", "gpu_0/other"):
        ws.feed(name, 1.0)
    with pytest.raises(BlobError, match=r"no blob 'loss' .*; did you mean 'cpu_1/loss' or 'cpu_0/loss'\?$"):
        ws.fetch("loss")


def test_fetch_of_a_blob_without_value():
    ws = Workspace()
    ws.create_net(net_of(make_op("Relu", ["x"], ["y"]), inputs=["x"]))
    with pytest.raises(BlobError, match="'y' holds no value yet"):
        ws.fetch("y")


@pytest.mark.parametrize("shape", [(1000,), (1, 1000)])
def test_pinned_memory_may_change_after_a_feed(one_gpu, shape):
    """The GPU copies such memory by itself, after the call that begins the copy has returned."""
    on_gpu = make_device_option(PROTO_CUDA, 0)
    given = np.frombuffer(gpu(0).xp.cuda.alloc_pinned_memory(4000), np.float32, 1000).reshape(shape)
    workspace = Workspace()
    for value in range(3):
        given[...] = value
        workspace.feed("x", given, on_gpu)
        given[...] = -1
        assert (workspace.fetch("x") == value).all()


def test_bad_feeds():
    ws = Workspace()
    with pytest.raises(NetError, match="needs a name"):
        ws.feed("", 1.0)
    with pytest.raises(NetError, match="complex"):
        ws.feed("x", np.complex64([1]))


def test_bad_feeds_leave_the_workspace_as_it_was():
    ws = Workspace()
    refused = [
        ("r", [[1], [1, 2]], None, NetError, r"blob 'r': cannot make an array of \[\[1\], \[1, 2\]\]"),
        ("n", None, None, NetError, "blob 'n': None cannot be fed; remove"),
        (5, 1.0, None, TypeError, "a blob must be a BlobReference or a string, got 5"),
        ("d", 1.0, "gpu", TypeError, "blob 'd': device must be a DeviceOption, got 'gpu'"),
    ]
    for name, value, device, error, match in refused:
        with pytest.raises(error, match=match):
            ws.feed(name, value, device)
    assert ws.blobs() == []


@pytest.mark.parametrize(
    "options, match",
    [
        ({"engines": "ONEDNN"}, "engines must be a tuple of names among CUDA, ONEDNN, LLVM, CUDNN, got 'ONEDNN'"),
        ({"engines": ("MKL",)}, r"engines must be a tuple of names among CUDA, ONEDNN, LLVM, CUDNN, got \('MKL',\)"),
        ({"threads": 0}, "threads must be a whole number, 1 or more, got 0"),
        ({"threads": "two"}, "threads must be a whole number, 1 or more, got 'two'"),
        ({"seed": 0.5}, "seed must be a whole number, got 0.5"),
    ],
)
def test_options_are_checked(options, match):
    with pytest.raises(NetError, match=match):
        Workspace(**options)


@pytest.mark.parametrize("iterations", [-1, 1.5, "3"])
def test_iterations_are_whole_numbers(iterations):
    ws = Workspace()
    ws.create_net(NetDef(name="net"))
    with pytest.raises(NetError, match=f"net 'net': iterations must be a whole number, 0 or more, got {iterations!r}"):
        ws.run_net("net", iterations)


def test_what_is_no_net_is_refused():
    ws = Workspace()
    with pytest.raises(NetError, match="expected a Net, a NetDef or its bytes, got 'net' of type str"):
        ws.create_net("net")
    with pytest.raises(NetError, match="expected a Plan, a PlanDef or its bytes, got None"):
        ws.run_plan(None)
    with pytest.raises(ParseError, match="the given bytes cannot be read as a NetDef: stopped at byte"):
        ws.create_net(b"\xff\xff")


def test_a_run_that_failed_does_not_change_what_later_ones_draw():
    net = net_of(
        make_op("Dropout", ["x"], ["y", "mask"], ratio=0.5, is_test=0),
        make_op("SoftmaxWithLoss", ["y", "label"], ["p", "loss"]),
        inputs=["x", "label"],
    )

    def masks(labels):
        ws = Workspace(threads=1)
        ws.feed("x", np.ones((4, 5), np.float32))
        ws.create_net(net)
        found = []
        for label in labels:
            ws.feed("label", np.full(4, label, np.int32))
            if label < 5:
                ws.run_net("net")
                found.append(ws.fetch("mask").tolist())
            else:
                with pytest.raises(ShapeError, match=r"labels must lie in \[0, 5\)"):
                    ws.run_net("net")
        return found

    assert masks([0, 7, 1, 7, 7, 2]) == masks([0, 1, 2])


def test_a_net_written_and_read_gives_the_same(tmp_path):
    net = net_of(
        make_op("Softmax", ["x"], ["p"], axis=1),
        make_op("WeightedSum", ["p", "one", "x", "part"], ["p"]),
        inputs=["x", "one", "part"],
    )
    files.save(tmp_path / "net.pb", net)
    files.save_text(tmp_path / "net.pbtxt", net)

    def values(net):
        ws = Workspace(threads=1)
        for name, value in {"x": [[1, 2, 3]], "one": [1], "part": [0.5]}.items():
            ws.feed(name, np.float32(value))
        ws.run_net_once(net)
        return {name: ws.fetch(name).tolist() for name in ws.blobs()}

    assert values(files.load(tmp_path / "net.pb", NetDef)) == values(net)
    assert values(files.load_text(tmp_path / "net.pbtxt", NetDef)) == values(net)


def test_created_nets():
    ws = Workspace()
    ws.feed("x", np.float32([-1, 2]))
    net = net_of(make_op("Relu", ["x"], ["y"]), inputs=["x"])
    assert ws.create_net(net) == "net"
    assert ws.nets() == ["net"]
    with pytest.raises(NetError, match="'net' exists already; give overwrite=True"):
        ws.create_net(net)
    net.op[0].output[0] = "z"
    ws.run_net("net")  # the snapshot, not the edited net
    assert not ws.has("z")
    ws.create_net(net, overwrite=True)
    ws.run_net("net")
    assert ws.fetch("z").tolist() == [0, 2]
    with pytest.raises(NetError, match=r"no net 'other'.*created: 'net'"):
        ws.run_net("other")
    with pytest.raises(NetError, match="created: 'net'.; did you mean 'net'"):
        ws.run_net("nett")
    ws.delete_net("net")
    assert ws.nets() == []


def test_a_model_stands_for_its_own_net_whatever_its_name():
    models = [ModelHelper("same"), ModelHelper("same")]
    ws = Workspace()
    for value, model in enumerate(models):
        model.net.ConstantFill([], "x", shape=[1], value=float(value))
        ws.create_net(model)
    for value, model in enumerate(models):
        ws.run_net(model)
        assert ws.fetch("x") == [value]
        assert ws.net(model).name == model.net.Name()


def test_run_net_many_times():
    ws = Workspace()
    ws.feed("n", np.int64([0]))
    ws.create_net(net_of(make_op("Iter", ["n"], ["n"]), inputs=["n"]))
    ws.run_net("net", 5)
    assert ws.fetch("n").tolist() == [5]


def test_unknown_net_type():
    with pytest.raises(NetError, match=f"unknown type 'fast'; the types are {', '.join(NET_TYPES)}"):
        Workspace().create_net(net_of(net_type="fast"))


@pytest.mark.parametrize("net_type", NET_TYPES)
def test_all_net_types_run(net_type):
    ws = Workspace()
    ws.feed("x", np.float32([-1, 2]))
    ws.run_net_once(net_of(make_op("Relu", ["x"], ["y"]), inputs=["x"], net_type=net_type))
    assert ws.fetch("y").tolist() == [0, 2]


def test_an_unknown_operator_is_refused_with_its_place():
    op = make_op("Rellu", ["x"], ["y"])
    op.debug_info = "train.py:7 in build"
    with pytest.raises(NetError, match=r"net 'net', operator 0: Rellu.*train.py:7.*did you mean 'Relu'"):
        Workspace().create_net(net_of(op))


def test_a_device_of_an_unknown_kind_is_refused():
    ws = Workspace()
    ws.feed("x", np.float32([1]))
    op = make_op("Relu", ["x"], ["y"], device_option=make_device_option(7, 2))
    with pytest.raises(DeviceError, match=r"Relu \['x'\] -> \['y'\] on device type 7, 2: .* is not supported"):
        ws.create_net(NetDef(name="net", op=[op]))
    assert ws.nets() == [] and not ws.has("y")


def test_an_input_that_nothing_makes_is_refused_at_creation():
    with pytest.raises(NetError, match=r"operator 0: Relu \['x'\].*'x' is made by no earlier operator"):
        Workspace().create_net(net_of(make_op("Relu", ["x"], ["y"])))


def test_an_external_input_that_was_not_fed_is_named_at_the_run():
    ws = Workspace()
    ws.create_net(net_of(make_op("Relu", ["x"], ["y"]), inputs=["x"]))
    with pytest.raises(BlobError, match=r"operator 0: Relu.*'x' does not exist; feed it"):
        ws.run_net("net")
    ws.feed("x", np.float32([1]))
    ws.run_net("net")
    assert ws.fetch("y").tolist() == [1]


@pytest.mark.parametrize("type_", ["Relu", "Unique"])
def test_an_input_of_a_replica_that_was_fed_to_no_replica(type_):
    ws = Workspace()
    ws.create_net(net_of(make_op(type_, ["cpu_0/data"], ["cpu_0/y"]), inputs=["cpu_0/data"]))
    with pytest.raises(BlobError, match=r"'cpu_0/data' does not exist; feed it[^(]*$"):
        ws.run_net("net")
    ws.feed("data", np.float32([1]))
    match = r"'cpu_0/data' does not exist; .* \(blob 'data' has a value; each replica .* here 'cpu_0/data'\)"
    with pytest.raises(BlobError, match=match):
        ws.run_net("net")


def test_an_input_without_value_names_similar_blobs_that_hold_one():
    ws = Workspace()
    ws.create_net(net_of(make_op("Relu", ["cpu_1/dtaa"], ["cpu_1/y"]), inputs=["cpu_1/dtaa"]))
    for name in ("cpu_0/dtab", "cpu_1/data", "other"):
        ws.feed(name, 1.0)
    ws.make("cpu_1/dtab")  # holds no value
    with pytest.raises(
        BlobError, match=r"'cpu_1/dtaa' does not exist; feed it, .* first; did you mean 'cpu_1/data'\?$"
    ):
        ws.run_net("net")
    ws.make("cpu_1/dtaa")
    with pytest.raises(
        BlobError, match=r"'cpu_1/dtaa' holds no value; feed it, .* first; did you mean 'cpu_1/data'\?$"
    ):
        ws.run_net("net")


def test_an_input_without_value_names_similar_blobs_that_earlier_operators_make():
    ws = Workspace()
    ops = [make_op("FC", ["x", "hidden_w", "hidden_b"], ["hidden"]), make_op("Relu", ["hiden"], ["hiddn"])]
    ws.create_net(net_of(*ops, inputs=["x", "hidden_w", "hidden_b", "hiden"]))
    for name, shape in {"x": (1, 2), "hidden_w": (3, 2), "hidden_b": (3,)}.items():
        ws.feed(name, np.zeros(shape, np.float32))
    with pytest.raises(BlobError, match=r"'hiden' does not exist; feed it, .*; did you mean 'hidden' or 'hidden_"):
        ws.run_net("net")


@pytest.mark.parametrize("read", [["cpu_1/data"], ["cpu_1/date", "cpu_1/data"]])
def test_an_input_that_one_replica_has_and_another_one_lacks(read):
    ws = Workspace()
    ws.create_net(net_of(make_op("Sum", read, ["cpu_1/y"]), inputs=["cpu_1/date", "cpu_1/data"]))
    for name in ("cpu_0/data", "cpu_1/date"):
        ws.feed(name, np.float32([1]))
    match = r"'cpu_1/data' does not exist; [^(]* \(blob 'cpu_0/data' has a value; .*: feed each its part of a batch\)$"
    with pytest.raises(BlobError, match=match):
        ws.run_net("net")


@pytest.mark.parametrize("updated", [False, True])
def test_a_parameter_without_value_names_the_init_net(updated):
    ws = Workspace()
    x, w, b = inputs = ["cpu_1/x", "cpu_1/w", "cpu_1/b"]
    read = make_op("Scale", [w], ["y"]) if updated else make_op("FC", inputs, ["y"])
    ws.create_net(net_of(read, make_op("Relu", ["y"], [w if updated else "z"]), inputs=inputs))
    ws.feed(x, np.zeros((1, 2), np.float32))
    match = r"'cpu_1/w' .*; feed it, .* first \(for a parameter: run the init net, model.param_init_net\)$"
    with pytest.raises(BlobError, match=match):
        ws.run_net("net")


def test_an_input_with_the_scopes_of_two_replicas():
    ws = Workspace()
    ws.create_net(net_of(make_op("Relu", ["cpu_1/cpu_0/data"], ["cpu_1/y"]), inputs=["cpu_1/cpu_0/data"]))
    ws.feed("cpu_0/data", 1.0)
    with pytest.raises(BlobError, match=r"does not exist; .* call the blob 'data' there, not 'cpu_0/data'$"):
        ws.run_net("net")


def test_an_option_of_a_net_that_there_is_not():
    ws = Workspace()
    net = net_of(make_op("Relu", ["x"], ["y"]), inputs=["x"])
    for wrong, right in (("observabel", "observable"), ("constant", "constants")):
        said = f"^Workspace.create_net: .* argument '{wrong}'; did you mean '{right}'"
        with pytest.raises(TypeError, match=said):
            ws.create_net(net, **{wrong: "all"})


def test_an_error_of_an_operator_keeps_its_kind_and_says_where():
    ws = Workspace()
    ws.feed("x", np.ones((2, 3), np.float32))
    op = make_op("Softmax", ["x"], ["y"], axis=5)
    op.debug_info = "train.py:9 in build"
    with pytest.raises(ShapeError, match=r"net 'net', operator 0: Softmax.*made at train.py:9.*axis must lie in"):
        ws.run_net_once(net_of(op, inputs=["x"]))


def test_named_workspaces():
    first = default.current_name()
    try:
        default.workspace().feed("only here", 1.0)
        other = default.switch("another", create=True)
        assert not other.has("only here")
        assert default.current_name() == "another"
        assert {first, "another"} <= set(default.names())
        with pytest.raises(NetError, match="no workspace 'third'"):
            default.switch("third")
    finally:
        default.switch(first)
        default.reset()


def test_two_workspaces_in_two_threads():
    """Each thread trains its own copy; neither disturbs the other."""
    results = {}

    def work(seed):
        ws = Workspace(threads=1, seed=seed)
        rng = np.random.default_rng(seed)
        w = rng.standard_normal((64, 64)).astype(np.float32)
        ws.feed("w", w)
        ws.feed("b", np.zeros(64, np.float32))
        net = net_of(
            make_op("FC", ["x", "w", "b"], ["y"]),
            make_op("Relu", ["y"], ["y"]),
            make_op("FC", ["y", "w", "b"], ["z"]),
            inputs=["x", "w", "b"],
        )
        ws.create_net(net)
        worst = 0.0
        for _ in range(50):
            x = rng.standard_normal((32, 64)).astype(np.float32)
            ws.feed("x", x)
            ws.run_net("net")
            want = np.maximum(x @ w.T, 0) @ w.T
            worst = max(worst, float(np.abs(ws.fetch("z") - want).max() / np.abs(want).max()))
        results[seed] = worst

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(results.values()) < 1e-5
    assert len(results) == 2
