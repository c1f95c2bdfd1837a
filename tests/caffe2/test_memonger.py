"""memonger: nets that share memory, compared with the results of Caffe2's memonger; a net with gradients."""

import numpy as np
import pytest

import golden_data
from netbuilder.caffe2.python import brew, core, memonger, model_helper, workspace
from netbuilder.proto import ArgumentError, NetDef, NetError


def inference_net():
    golden = golden_data.net("memonger_inference")
    return golden.protos["net_before"] if "net_before" in golden.protos else golden.protos["net"]


def names_of(net):
    return {name for op in net.op for name in op.output}


def training_net():
    model = model_helper.ModelHelper("memonger")
    with core.NameScope("name_x"):
        blob = "data"
        for index in range(4):
            blob = brew.fc(model, blob, f"fc{index}", 3, 3)
        loss = model.net.AveragedLoss(model.net.LabelCrossEntropy([model.net.Softmax(blob), "label"]), "loss")
    gradients = model.AddGradientOperators([loss])
    return model, [gradients[param] for param in model.params], loss


def test_inference():
    net = inference_net()
    static = [*net.external_input, net.op[-1].output[0]]
    for shared in (
        memonger.optimize_inference_fast(net, static),
        memonger.optimize_inference_for_dag(core.Net(net), ["data"]),
        memonger.optimize_interference(net, static).net,
    ):
        assert len(names_of(shared)) < len(names_of(net)) and shared.op[-1].output[0] == net.op[-1].output[0]
        assert memonger.verify_graph_equality(net, shared) and memonger.verify_inplace_blobs(net, shared)
    other = NetDef()
    other.CopyFrom(net)
    other.op[3].input[0] = "data"
    assert not memonger.verify_graph_equality(net, other)


@pytest.mark.parametrize("order", ["topological_sort_traversal", "topological_sort_traversal_longest_path"])
@pytest.mark.parametrize("algorithm", list(memonger.AssignmentAlgorithm))
def test_orders_and_algorithms(order, algorithm):
    """Two branches of four operators each, of blobs of several sizes, give what they gave."""
    net = core.Net("branches")
    for branch, kind in (("a", "Relu"), ("b", "Sigmoid")):
        for index in range(4):
            source = f"{branch}{index}" if index else "x"
            net.Concat([source, source] if index % 2 else [source], [f"{branch}{index + 1}", f"{branch}{index}_split"])
            getattr(net, kind)(f"{branch}{index + 1}", f"{branch}{index + 1}")
    net.Sum(["a4", "b4"], "y")
    data = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    results = []
    workspace.ResetWorkspace()
    workspace.FeedBlob("x", data)
    workspace.RunNetOnce(net)
    results.append(workspace.FetchBlob("y"))
    sizes = memonger.collect_blob_sizes(net)
    made = memonger.optimize_interference(
        net.Proto(), ["x", "y"], ordering_function=getattr(memonger, order), blob_sizes=sizes, algo=algorithm
    )
    assert sorted(op.type for op in made.net.op) == sorted(op.type for op in net.Proto().op)
    before, after = memonger.compute_statistics(made.assignments)
    assert after < before
    workspace.ResetWorkspace()
    workspace.FeedBlob("x", data)
    workspace.RunNetOnce(made.net)
    np.testing.assert_array_equal(workspace.FetchBlob("y"), results[0])


def test_counts():
    net = core.Net("chain")
    for index in range(4):
        net.Relu(f"x{index}", f"x{index + 1}")
    workspace.FeedBlob("x0", np.ones((2, 5), np.float32))
    workspace.RunNetOnce(net)
    sizes = memonger.collect_blob_sizes(net)
    assert sizes == {f"x{index}": 40 for index in range(5)} and memonger.blob_nbytes("nothing") == 0
    made = memonger.optimize_interference(net.Proto(), ["x0", "x4"], blob_sizes=sizes)
    assert memonger.compute_statistics(made.assignments) == (160, 120)
    assert memonger.get_memory_usage(made.assignments) == 120
    assert memonger.compute_ranges(net.Proto().op)["x2"] == memonger.LiveRange(1, 2)
    shapes, types = workspace.InferShapesAndTypes([net], {"x0": [2, 5]})
    total, each = memonger.estimate_memory_usage([net.Proto()], shapes, types, core.DeviceOption(0, 0))
    assert total == 160 and each["x3"] == 40
    assert memonger.estimate_memory_usage([net.Proto()], shapes, types, core.DeviceOption(1, 0)) == (0, {})
    with pytest.raises(NetError, match="must have the shape of blob 'x1'"):
        memonger.estimate_memory_usage([net.Proto()], {}, types, core.DeviceOption(0, 0))


@pytest.mark.parametrize("activations", [False, True])
def test_gradients(activations):
    model, gradients, loss = training_net()
    model.param_init_net.set_rand_seed(1)
    before = model.net.Proto()
    shapes = dict.fromkeys(names_of(before), (4, 3))
    shared = memonger.share_grad_blobs(
        model.net, [loss], gradients, "name_x", share_activations=activations, blob_shapes=shapes
    )
    assert sum("_shared" in name for name in names_of(shared)) >= 2
    assert len(names_of(shared)) < len(names_of(before)) - (2 if activations else 0)
    data, label = np.random.default_rng(0).standard_normal((4, 3)), np.int32([0, 1, 2, 0])
    results = []
    for net in (before, shared):
        workspace.ResetWorkspace()
        workspace.FeedBlob("name_x/data", data.astype(np.float32))
        workspace.FeedBlob("name_x/label", label)
        workspace.FeedBlob("data", data.astype(np.float32))
        workspace.FeedBlob("label", label)
        workspace.RunNetOnce(model.param_init_net)
        workspace.RunNetOnce(net)
        results.append([workspace.FetchBlob(str(blob)) for blob in [*gradients, loss]])
    assert all(np.array_equal(a, b) for a, b in zip(*results))


@pytest.mark.parametrize(
    "name",
    ["convnet_share_grad", "convnet_share_activations", "resnet50_1_recycle_grad", "resnet50_1_recycle_activations"],
)
def test_no_more_blobs_than_caffe2s(name):
    """Golden nets before memory sharing, and the number of blobs in Caffe2's result; the gradients are equal."""
    golden = golden_data.net(name)
    before, gradients = golden.protos["net_before"], list(golden.meta["param_to_grad"].values())
    made = [op.output[0] for op in before.op if op.type == "ConstantFill" and op.output[0].endswith("_grad")]
    losses = [blob.removesuffix("_grad").removesuffix("_autogen") for blob in made]
    scope = "cpu_0/" if name.startswith("resnet") else ""
    shared = memonger.share_grad_blobs(
        core.Net(before), losses, gradients, scope, share_activations=name.endswith("activations")
    )
    counts = golden.meta.get("blobs_after") or golden.meta["blob_counts"]
    assert len(names_of(shared)) <= counts["blobs_written"] < len(names_of(before))
    if golden.runnable:
        (want, loss), (got, _) = (gradients_of(golden, net, gradients) for net in (before, shared))
        assert all(np.array_equal(a, b) for a, b in zip(got, want))
        np.testing.assert_allclose(loss, golden.expected(1)["loss"], golden.rtol)


def gradients_of(golden, net, gradients):
    """Run a net on the first batch of a golden net; return gradients and the loss."""
    workspace.ResetWorkspace()
    for values in (golden.inputs(1), golden.start_values()):
        for blob, value in values.items():
            workspace.FeedBlob(blob, value)
    workspace.RunNetOnce(net)
    return [workspace.FetchBlob(blob) for blob in gradients], workspace.FetchBlob("loss")


def test_refusals():
    model, gradients, loss = training_net()
    with pytest.raises(NetError, match="must not have gradients, but has .*use share_grad_blobs"):
        memonger.optimize_inference_for_dag(model.net, ["data"])
    with pytest.raises(NetError, match="has no gradients; call AddGradientOperators"):
        memonger.share_grad_blobs(inference_net(), [], [], "")
    released = memonger.release_blobs_when_used(model.net.Proto(), [str(blob) for blob in gradients])
    assert sum(op.type == "Free" for op in released.op) > 5
    net = core.Net("frozen")
    net.Proto().op.add(type="IndexFreeze", input=["A"], output=["B"])
    net.Proto().op.add(type="Relu", input=["B"], output=["C"])
    for optimize in (memonger.optimize_inference_for_dag, memonger.optimize_inference_fast):
        with pytest.raises(NetError, match="operator 0: IndexFreeze: output 0 must overwrite input 0"):
            optimize(net, ["A"])
    net = inference_net()
    with pytest.raises(ArgumentError, match="algo must be an AssignmentAlgorithm, got 1"):
        memonger.optimize_interference(net, [], algo=1)
    with pytest.raises(NetError, match="must run after"):
        memonger.optimize_interference(net, [], ordering_function=lambda graph: graph.nodes[::-1])
    with pytest.raises(NetError, match="must contain each of its"):
        memonger.optimize_interference(net, [], ordering_function=lambda graph: graph.nodes[:-1])


def test_gradients_by_optimize_interference():
    """If the fetched blobs are static, the forward and the backward pass may share memory with each other."""
    model, gradients, loss = training_net()
    static = [*(blob for op in model.param_init_net.Proto().op for blob in op.output), loss, *gradients]
    made = memonger.optimize_interference(model.net.Proto(), static)
    assert len(names_of(made.net)) < len(names_of(model.net.Proto()))
    statistics = memonger.compute_statistics(made.assignments)
    assert statistics.optimized_nbytes < statistics.baseline_nbytes
    workspace.FeedBlob("name_x/data", np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32))
    workspace.FeedBlob("name_x/label", np.int32([0, 2]))
    workspace.RunNetOnce(model.param_init_net)
    results = []
    for net in (model.net.Proto(), made.net):
        workspace.RunNetOnce(net)
        results.append([workspace.FetchBlob(blob).tolist() for blob in (*gradients, loss)])
    assert results[0] == results[1]


def test_assignments():
    live = memonger.LiveRange
    blobs = [("a", live(1, 3, 10)), ("b", live(3, 4, 1)), ("c", live(5, 6, 1)), ("d", live(5, 7, 10))]
    greedy = memonger.compute_assignments_greedy(blobs)
    assert greedy == [[blobs[0], blobs[3]], [blobs[1], blobs[2]]]
    fewest = memonger.compute_assignments_dp(blobs, None)
    assert memonger.get_memory_usage(greedy) == memonger.get_memory_usage(fewest) == 11
    given = [[("kept", live(0, 2, 30))]]
    for deal, bytes_ in ((memonger.compute_assignments_greedy, 40), (memonger.compute_assignments_dp, 31)):
        grown = deal(blobs[1:], given)
        assert memonger.get_memory_usage(grown) == bytes_ and grown[0][0] == given[0][0] and given == [[given[0][0]]]
        memonger.verify_assignments(grown)
    with pytest.raises(NetError, match="'a' .* and 'b' .* share memory but are needed at the same time"):
        memonger.verify_assignments([blobs[:2]])
    assert memonger.compute_blob_assignments(greedy) == {"a": "d", "d": "d", "b": "c", "c": "c"}
    assert not memonger.is_compatible(live(4, 5), greedy[0][:1], ["a"])
    assert memonger.get_updated_ranges([("x", live())], 9) == [("x", live(-1, 9, 1))]
    ranges = {"x": live(None, 1, 4), "y": live(0, 2, 4), "z": live(3, None, 4)}
    for algorithm in memonger.AssignmentAlgorithm:
        made = memonger.compute_assignments(ranges, ["x"], algorithm)
        assert sorted([name for name, _ in group] for group in made) == [["x"], ["y", "z"]]
    with pytest.raises(ArgumentError, match="algo must be"):
        memonger.compute_assignments({}, [], 0)


def test_assignments_are_names():
    net = core.Net("chain")
    net.Relu("x", "y")
    net.Relu("y", "z")
    assert memonger.compute_interference_graph(net.Proto().op).edges() == [(0, 1)]
    memonger.apply_assignments(net.Proto(), {"y": "shared"})
    assert [list(op.output) for op in net.Proto().op] == [["shared"], ["z"]]
    step = NetDef(name="step", external_input=["y"])
    step.op.add(type="Relu", input=["y"], output=["h"])
    holder = core.CreateOperator("RecurrentNetwork", ["y"], ["o"], step_net=step, link_internal=["y"])
    memonger.apply_recurrent_blob_assignments(holder, {"y": "shared"}, lambda name: {"y": "shared"}.get(name, name))
    held = next(argument.n for argument in holder.arg if argument.name == "step_net")
    assert list(held.op[0].input) == ["shared"] and list(held.external_input) == ["shared"]
    assert list(holder.input) == ["y"]


def test_a_blob_with_a_second_name_is_not_freed():
    net = core.Net("alias")
    net.Relu("x", "y")
    net.Relu("y", "z")
    net.Alias("y", "w")
    net.Relu("z", "out")
    freed = [op.input[0] for op in memonger.release_blobs_when_used(net.Proto(), []).op if op.type == "Free"]
    assert freed == ["z"]
