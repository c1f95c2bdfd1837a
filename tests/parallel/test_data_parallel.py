"""DataParallel: the same training as Parallelize, on any number of devices; its modes, results, threads and errors."""

import threading

import numpy as np
import pytest

from netbuilder import DeviceError, ModelHelper, NetError, Workspace, brew
from netbuilder.engines.arrays import gpu_count
from netbuilder.graph import reset_names
from netbuilder.model import Initializer
from netbuilder.optimizers import add_weight_decay, build_adagrad, build_sgd
from netbuilder.parallel import DataParallel, Parallelize_CPU, RunInitNet, RunNet, feed_shares
from netbuilder.proto import ArgumentError, ShapeError, UsageError
from netbuilder.proto.arguments import arguments, make_device_option
from parallel_models import distance
from toy_models import softmax_loss


def scores(helper, image):
    """Dropout, so that the number of an iteration shows in the result."""
    x = brew.relu(helper, brew.fc(helper, image, "fc1", 6, 8), "relu1")
    x = brew.dropout(helper, x, "dropped", ratio=0.25, is_test=int(not helper.init_params))
    return brew.fc(helper, x, "fc2", 8, 4)


def normalized(helper, image):
    """Batch normalization: running statistics must be updated once for each call."""
    x = brew.conv(helper, image, "conv", 3, 4, kernel=3, pad=1)
    x = brew.spatial_bn(helper, x, "bn", 4, is_test=int(not helper.init_params))
    return brew.fc(helper, brew.average_pool(helper, brew.relu(helper, x, "relu"), "pool", kernel=4), "fc", 4, 4)


def mean_loss(helper, scores, label):
    return softmax_loss(helper, scores, label)


def sgd(helper):
    return build_sgd(helper, 0.1, momentum=0.9)


def batches(count=4, samples=12, shape=(6,)):
    rng = np.random.default_rng(3)
    for _ in range(count):
        yield rng.random((samples, *shape), np.float32), rng.integers(0, 4, samples).astype(np.int32)


def wrapper(devices=(0, 1), model=scores, **options):
    return DataParallel(
        model,
        devices if devices is None else list(devices),
        **{"loss": mean_loss, "optimizer": sgd, "cpu_device": True, "workspace": Workspace(threads=2), **options},
    )


def one_step(net, image, label):
    net(image)
    net.loss(label)
    net.backward()
    net.step()


def reference(devices, model=scores, data=None, **options):
    """Return the parameters after training by Parallelize, and the workspace."""
    helper = ModelHelper("reference")

    def forward(helper, scale):
        return [helper.net.Scale(mean_loss(helper, model(helper, "image"), "label"), "scaled", scale=scale)]

    record = Parallelize_CPU(
        helper, lambda helper: None, forward, optimizer_builder_fun=sgd, devices=list(devices), weighted_shares=True,
        **options,
    )  # fmt: skip
    workspace = Workspace(threads=2)
    for number, (image, label) in enumerate(data or batches()):
        for _ in feed_shares(helper, {"image": image, "label": label}, workspace=workspace):
            if number == 0:
                RunInitNet(helper, workspace=workspace)
            RunNet(helper, workspace=workspace)
    return {name: workspace.fetch(record.blobs(name)[0]) for name in (*record.parameters, *record.computed)}, workspace


def assert_equal(got, want):
    assert got.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value, name)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("devices", [[0], [0, 1], [2, 0, 5]])
@pytest.mark.parametrize("model, shape", [(scores, (6,)), (normalized, (3, 4, 4))])
def test_steps_are_those_of_parallelize(devices, model, shape):
    data = [*batches(3, 12, shape), *batches(1, 7, shape), *batches(1, 12, shape)]
    with wrapper(devices, model) as net:
        for image, label in data:
            one_step(net, image, label)
        assert_equal(net.parameters(), reference(devices, model, data)[0])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("devices", [1, 2, 3, 4, 8])
def test_the_same_parameters_on_any_number_of_devices(devices):
    def plain(helper, image):
        return brew.fc(helper, brew.relu(helper, brew.fc(helper, image, "fc1", 6, 8), "relu1"), "fc2", 8, 4)

    found = []
    for count in (1, devices):
        with wrapper(range(count), plain) as net:
            for image, label in [*batches(3, 24), *batches(1, 13)]:
                one_step(net, image, label)
            found.append(list(net.parameters().values()))
    assert distance(found[1], found[0]) < 1e-6


READS = {
    "outputs after the step": lambda at: at == "step",
    "outputs at once": lambda at: at == "call",
    "losses at once": lambda at: at == "loss",
    "between backward and step": lambda at: at == "backward",
    "everywhere": lambda at: True,
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("model, shape", [(scores, (6,)), (normalized, (3, 4, 4))])
def test_reading_results_early_changes_nothing(reads, model, shape):
    """What is read early is computed early, not twice: neither dropout nor running statistics differ."""
    data = list(batches(3, 8, shape))
    found = []
    for when in (lambda at: False, READS[reads]):
        results = []
        with wrapper([0, 1], model) as net:
            for image, label in data:
                outputs = net(image)
                losses = ()
                for at, do in (
                    ("call", lambda: None), ("loss", lambda label=label: net.loss(label)), ("backward", net.backward),
                    ("step", net.step),
                ):  # fmt: skip
                    losses = do() or losses
                    if when(at):
                        for value in (*(value for of_device in outputs for value in of_device), *losses):
                            value.numpy()
                results += [value.numpy() for of_device in outputs for value in of_device]
                results += [value.numpy() for value in losses]
            found.append((results, net.parameters()))
    for got, want in zip(found[1][0], found[0][0]):  # other operators are fused in a net that ends earlier
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    for name, value in found[0][1].items():
        np.testing.assert_allclose(found[1][1][name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_synchronous_and_asynchronous_mode_are_equal():
    found = []
    for sync in (False, True):
        with wrapper(sync=sync) as net:
            for image, label in batches():
                one_step(net, image, label)
            found.append(net.parameters())
    assert_equal(found[1], found[0])


def test_outputs_keep_their_values():
    with wrapper() as net:
        kept = []
        for image, label in batches(3):
            outputs = net(image)
            kept.append((outputs, net.loss(label)))
            net.backward()
            net.step()
    again = wrapper(sync=True)
    for (outputs, losses), (image, label) in zip(kept, batches(3)):
        want = [[value.numpy() for value in of_device] for of_device in again(image)]
        for got, value in zip(outputs, want):
            np.testing.assert_array_equal(got[0], value[0])
        np.testing.assert_array_equal(losses, [float(loss) for loss in again.loss(label)])
        again.backward()
        again.step()


def test_a_call_without_a_step_counts_as_one_forward_pass():
    data = list(batches(3, 8, (3, 4, 4)))
    found = []
    for read in (False, True):
        with wrapper([0, 1], normalized) as net:
            for image, _ in data:
                outputs = net(image)
                if read:
                    outputs[0][0].numpy()
            one_step(net, *data[0])
            found.append(net.parameters())
    assert_equal(found[1], found[0])
    assert np.abs(found[0]["bn_rm"]).max() > 0


# Results.


def two_outputs(helper, image, *, extra):
    x = brew.fc(helper, image, "fc1", 6, 4)
    y = brew.fc(helper, extra["more"][0], "fc2", 3, 4)
    return {"sum": helper.net.Add([x, y], "sum"), "both": [x, y], "name": "unchanged"}


@pytest.mark.parametrize("devices", [[0], [0, 1, 2]])
def test_results_are_tuples_of_each_device(devices):
    """One device gives the same shape of results as many; other leaves than blobs come back as they are."""
    net = DataParallel(two_outputs, devices, cpu_device=True)
    image, more = np.ones((7, 6), np.float32), np.ones((7, 3), np.float32)
    outputs = net(image, extra={"more": (more,), "count": 3})
    assert isinstance(outputs, tuple) and len(outputs) == len(devices) == len(net)
    assert all(isinstance(of_device, tuple) and len(of_device) == 1 for of_device in outputs)
    assert sum(len(of_device[0]["sum"]) for of_device in outputs) == 7
    assert outputs[0][0]["name"] == "unchanged"
    x, y = outputs[0][0]["both"]
    np.testing.assert_allclose(outputs[0][0]["sum"], x.numpy() + y.numpy(), rtol=1e-6)


def test_gathered_results_are_those_of_one_device():
    image, more = (np.random.default_rng(1).random((7, n), np.float32) for n in (6, 3))
    one = DataParallel(two_outputs, None)(image, extra={"more": [more]})
    three = DataParallel(two_outputs, [0, 1, 2], cpu_device=True, gather=True)(image, extra={"more": [more]})
    assert three["name"] == "unchanged" and three["sum"].shape == (7, 4)
    for got, want in zip((three["sum"], *three["both"]), (one["sum"], *one["both"])):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_gathered_losses_are_means_over_the_samples():
    def model(helper, image):
        return brew.fc(helper, image, "fc1", 6, 4)

    found = []
    for devices in (None, [0, 1, 2]):
        net = wrapper(devices, model, gather=True)
        image, label = next(batches(1, 7))
        net(image)
        found.append(float(net.loss(label)))
    assert found[1] == pytest.approx(found[0], rel=1e-6)


def test_several_losses_are_added():
    def model(helper, image):
        return brew.fc(helper, image, "a", 6, 4), brew.fc(helper, image, "b", 6, 4)

    def losses(helper, outputs, label):
        return [
            helper.net.SoftmaxWithLoss([out, label], [f"softmax_{k}", f"loss_{k}"])[1] for k, out in enumerate(outputs)
        ]

    image, label = next(batches(1))
    with wrapper([0, 1], model, loss=losses) as net:
        outputs = net(image)
        found = net.loss(label)
        net.backward()
        net.step()
        changed = net.parameters()
        assert [len(of_device) for of_device in (*outputs, *found)] == [2, 2, 2, 2]
    for layer in "ab":  # each layer has a loss of its own, so each is trained as if it were alone

        def alone(helper, image, layer=layer):
            return brew.fc(helper, image, layer, 6, 4)

        with wrapper([0, 1], alone) as net:
            one_step(net, image, label)
            np.testing.assert_array_equal(net.parameters()[f"{layer}_w"], changed[f"{layer}_w"])


def test_without_devices_a_call_is_passed_through():
    """No split, no minimum of samples, no tuple for each device."""
    net = DataParallel(scores, workspace=Workspace(threads=1))
    output = net(np.ones((1, 6), np.float32))
    assert output.shape == (1, 4) and "no split" in repr(net)
    step = wrapper(None)
    for image, label in batches():
        one_step(step, image, label)
    assert_equal(step.parameters(), reference([0])[0])


def test_arguments_without_arrays_and_of_no_axis():
    def model(helper, image, factor, *rest, by=2.0):
        assert (rest, by) == ((None, "text"), 3.0)
        return helper.net.Scale(helper.net.Mul([image, factor], "product", broadcast=1), "y", scale=by)

    net = DataParallel(model, [0, 1], cpu_device=True, gather=True)
    got = net(np.ones((4, 2), np.float32), np.float32(2), None, "text", by=3.0)
    np.testing.assert_array_equal(got, np.full((4, 2), 6))


def test_a_model_without_arguments():
    def model(helper):
        return helper.net.ConstantFill([], "y", shape=[2], value=1.5)

    assert [
        float(value) for output in DataParallel(model, [0, 1], cpu_device=True)() for value in output[0].numpy()
    ] == [1.5] * 4


def test_samples_on_another_axis():
    def model(helper, words, lengths):
        return helper.net.Transpose(words, "turned", axes=[1, 0]), lengths

    words, lengths = np.arange(15, dtype=np.float32).reshape(3, 5), np.arange(5, dtype=np.int32)
    net = DataParallel(model, [0, 1], cpu_device=True, gather=True, batch_axes={"words": 1})
    turned, same = net(words, lengths)
    np.testing.assert_array_equal(turned, words.T)
    np.testing.assert_array_equal(same, lengths)


def test_arrays_are_converted():
    net = wrapper(dtypes={"image": np.float32, "label": np.int32})
    for image, label in batches():
        one_step(net, image.astype(np.float64), label.astype(np.int64))
    assert_equal(net.parameters(), reference([0, 1])[0])


# Modes.


def test_test_mode_uses_the_trained_parameters_and_changes_nothing():
    with wrapper([0, 1], normalized) as net:
        data = list(batches(3, 8, (3, 4, 4)))
        for image, label in data:
            one_step(net, image, label)
        before = net.parameters()
        net.eval()
        assert not net.training and repr(net).endswith("test)")
        outputs = [net(image) for image, _ in data * 2]
        assert_equal(net.parameters(), before)
        for first, second in zip(outputs[:3], outputs[3:]):  # no dropout, no statistics of the batch
            np.testing.assert_array_equal(first[0][0], second[0][0])
        image = data[0][0]
        whole = [value for of_device in net(image) for value in of_device[0].numpy()]
        single = np.concatenate([of_device[0] for k in range(0, 8, 2) for of_device in net(image[k : k + 2])])
        np.testing.assert_allclose(whole, single, rtol=1e-5)
        one_step(net.train(), *data[0])


def test_losses_in_test_mode():
    """They are those of the whole batch by the trained parameters; nothing is updated."""
    with wrapper(gather=True) as net:
        for image, label in batches():
            one_step(net, image, label)
        net.eval()
        before = net.parameters()
        found = []
        for image, label in batches(3, 7):
            output = net(image)
            found.append(float(net.loss(label)))
            rows = output.numpy().astype(np.float64)
            log = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
            assert found[-1] == pytest.approx(-log[np.arange(7), label].mean(), rel=1e-5)
        assert len(set(found)) == 3
        assert_equal(net.parameters(), before)
        with pytest.raises(UsageError, match=r"backward\(\) needs a call in training mode; call train\(\) before"):
            net.backward()
        one_step(net.train(), image, label)


def test_outputs_without_names():
    """Names that nets make up are the same in all nets of a wrapper: random streams, and what parts share."""

    def model(helper, image):
        return helper.net.Dropout(helper.net.FC([helper.net.Relu(image), *parameters(helper)]), ratio=0.5, outputs=2)[0]

    def parameters(helper):
        init = helper.param_init_net
        found = init.XavierFill([], "w", shape=[4, 6]), init.ConstantFill([], "b", shape=[4])
        for param in found if helper.init_params else map(helper.net.AddScopedExternalInputs, "wb"):
            helper.AddParameter(param)
        return found

    found = []
    for early in (False, True):
        reset_names()
        with wrapper(model=model) as net:
            for image, label in batches():
                outputs = net(image)
                if early:
                    outputs[1][0].numpy()
                net.loss(label)
                net.backward()
                net.step()
            found.append([net.parameters(), outputs[1][0].numpy()])
    assert_equal(found[1][0], found[0][0])
    np.testing.assert_array_equal(found[1][1], found[0][1])


def test_evaluation_between_steps_changes_no_step():
    with wrapper() as net:
        for image, label in batches():
            one_step(net, image, label)
            net.eval()(image[:3])
            net.train()
        assert_equal(net.parameters(), reference([0, 1])[0])


def test_evaluation_before_training_initializes_once():
    with wrapper() as net:
        before = net.eval()(next(batches(1))[0])[0][0].numpy()
        assert np.abs(before).max() > 0
        net.train()
        for image, label in batches():
            one_step(net, image, label)
        assert_equal(net.parameters(), reference([0, 1])[0])


def test_replicas_of_a_wrapper_for_test_mode_have_equal_parameters():
    net = DataParallel(scores, [0, 1, 2], cpu_device=True)
    assert not net.training
    net(np.ones((3, 6), np.float32))
    for copy in ("cpu_1/fc1_w", "cpu_2/fc1_w"):
        np.testing.assert_array_equal(net.workspace.fetch(copy), net.parameters()["fc1_w"])


def test_parameters_that_the_workspace_has_are_kept():
    workspace = Workspace(threads=2)
    for device in range(2):
        workspace.feed(f"cpu_{device}/fc1_w", np.full((8, 6), 0.5, np.float32))
    with wrapper(workspace=workspace) as net:
        net(np.ones((2, 6), np.float32))
        np.testing.assert_array_equal(net.parameters()["fc1_w"], 0.5)
        net.loss(np.zeros(2, np.int32))
        np.testing.assert_array_equal(net.parameters()["fc1_w"], 0.5)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "options",
    [{"shared_model": True}, {"net_type": "simple"}, {"memory_budget": "1MiB"}, {"reduce_update_broadcast": True}],
)
def test_options_of_parallelize(options):
    with wrapper(**options) as net:
        for image, label in batches():
            one_step(net, image, label)
        net.eval()(image)
        assert_equal(net.parameters(), reference([0, 1], **options)[0])


@pytest.mark.slow
def test_batch_normalization_over_all_devices():
    """Outputs, losses and parameters are those of one device, however early they are read, with uneven shares too."""
    data = [*batches(2, 8, (3, 4, 4)), *batches(1, 7, (3, 4, 4))]
    found = []
    for devices, early in (([0], False), ([0, 1, 2], False), ([0, 1, 2], True)):
        results = []
        with wrapper(devices, normalized, combine_spatial_bn=True, gather=True) as net:
            for number, (image, label) in enumerate(data):
                output = net(image)
                if early and number:
                    output.numpy()
                loss = net.loss(label)
                net.backward()
                net.step()
                results += [output.numpy(), loss.numpy()]
            found.append([*results, *net.parameters().values()])
    for others in found[1:]:
        for got, want in zip(others, found[0]):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    net = wrapper([0, 1], normalized, combine_spatial_bn=True)
    output = net(data[0][0])[0][0]
    with pytest.raises(NetError, match=r"can be computed once loss\(\) has been called"):
        output.numpy()


def test_a_model_helper():
    """Its nets are copied for each device; the result is that of the function that built it."""
    helper = ModelHelper("whole")
    mean_loss(helper, scores(helper, "image"), "label")

    def loss(helper, outputs):
        return outputs[-1]

    with wrapper([0, 1], helper, loss=loss) as net:
        for image, label in batches():
            outputs = net(image, label=label)
            net.loss()
            net.backward()
            net.step()
        assert [value.shape for value in outputs[0]] == [(6, 8), (6, 4), ()]  # the mask, softmax and loss
        assert_equal(net.parameters(), reference([0, 1])[0])
        assert repr(net) == f"DataParallel({helper!r}, CPU 0, 1; training)"


def test_the_settings_of_a_model_helper_hold():
    helper = ModelHelper("whole", dtype="bfloat16")
    brew.fc(helper, "image", "scores", 6, 3)
    helper.net.set_deterministic(True)
    helper.net.set_allow_tf32(True)
    with wrapper([0], helper) as net:
        net(np.ones((4, 6), np.float32))
        found = arguments(net.model.net.Proto())
        assert found["activation_dtype"] == b"bfloat16"
        assert found["deterministic"] == found["allow_tf32"] == 1
    with wrapper([0], helper, dtype="float32", deterministic=False) as net:
        net(np.ones((4, 6), np.float32))
        found = arguments(net.model.net.Proto())
        assert found["activation_dtype"] == b"float32"
        assert not found.get("deterministic")
    with pytest.raises(NetError, match="allow_tf32 must be True or False, got 'yes'"):
        wrapper(allow_tf32="yes")
    with pytest.raises(TypeError, match="deterministic"):
        wrapper(deterministic="yes")


def test_a_model_helper_with_other_kinds_of_parameters():
    """Weight decay applies to copies of weights only, and computed parameters are those of the function."""

    def decay(helper):
        add_weight_decay(helper, 0.1)
        return sgd(helper)

    helper = ModelHelper("whole")
    normalized(helper, "image")
    data = list(batches(3, 8, (3, 4, 4)))
    found = []
    for model, loss in (
        (normalized, mean_loss),
        (helper, lambda helper, outputs, y: mean_loss(helper, outputs[-1], y)),
    ):
        with wrapper([0, 1], model, loss=loss, optimizer=decay) as net:
            for image, label in data:
                one_step(net, image, label)
            found.append(net.parameters())
    assert_equal(found[1], found[0])
    undecayed = reference([0, 1], normalized, data)[0]
    assert not np.array_equal(found[0]["fc_w"], undecayed["fc_w"])


def test_a_model_helper_that_has_gradients():
    helper = ModelHelper("whole")
    helper.AddGradientOperators([mean_loss(helper, scores(helper, "image"), "label")])
    with pytest.raises(NetError, match="has a backward pass already; give it without one"):
        DataParallel(helper, [0, 1], cpu_device=True)


# One plan, no new threads.


def test_a_step_is_one_run_of_one_net():
    with wrapper() as net:
        for image, label in batches(2):
            one_step(net, image, label)
        runs = []
        runtime = net.workspace.net(net.model.net.Name())

        class Observer:
            def run_starts(self, net):
                runs.append(net.name)

            def run_ends(self, net):
                pass

        runtime.observers.append(Observer())
        for image, label in batches(3):
            one_step(net, image, label)
        assert runs == [runtime.name] * 3
        assert net.workspace.nets() == [runtime.name]  # what the first call needed is gone


def test_a_hundred_steps_make_no_threads():
    with wrapper() as net:
        data = list(batches(4))
        for image, label in data:
            one_step(net, image, label)
        before = threading.active_count()
        for number in range(100):
            one_step(net, *data[number % 4])
        assert threading.active_count() == before


# Threads.


def test_threads_that_share_a_wrapper_get_their_own_results():
    """Calls in test mode, and training steps, of several threads: each result is that of its own input."""
    net = wrapper(gather=True)
    one_step(net, *next(batches(1)))
    net.eval()
    inputs = [np.random.default_rng(k).random((6, 6), np.float32) for k in range(4)]
    wants = [net(x).numpy() for x in inputs]
    wrong = []

    def work(k):
        for _ in range(30):
            if not np.array_equal(net(inputs[k]).numpy(), wants[k]):
                wrong.append(k)

    run_threads(work, 4)
    assert not wrong


def run_threads(work, count):
    errors = []

    def quietly(k):
        try:
            work(k)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=quietly, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


def test_training_steps_of_two_threads_do_not_mix():
    """With a rate of 0 the loss of each step depends on its own input and labels only."""

    def plain(helper, image):
        return brew.fc(helper, image, "fc1", 6, 4)

    net = wrapper([0, 1], plain, optimizer=lambda helper: build_sgd(helper, 1e-30), gather=True)
    data = list(batches(4))
    wants = []
    for image, label in data:
        net(image)
        wants.append(float(net.loss(label)))
        net.backward()
        net.step()
    wrong = []

    def work(k):
        for turn in range(20):
            image, label = data[(k + turn) % 4]
            net(image)
            loss = net.loss(label)
            net.backward()
            net.step()
            if float(loss) != wants[(k + turn) % 4]:
                wrong.append((float(loss), wants[(k + turn) % 4]))

    run_threads(work, 3)
    assert not wrong


def test_a_step_whose_forward_pass_another_thread_overwrote_is_refused():
    net = wrapper()
    image, label = next(batches(1))
    one_step(net, image, label)
    before = net.parameters()
    outputs = net(image)
    kept = outputs[0][0].numpy()
    run_threads(lambda k: net(image + 1)[0][0].numpy(), 1)
    np.testing.assert_array_equal(outputs[0][0], kept)
    with pytest.raises(NetError, match="another call, of another thread or in test mode, has overwritten"):
        net.loss(label)
    assert_equal(net.parameters(), before)
    one_step(net, image, label)


# Errors.


def called(devices=(0, 1), **options):
    net = wrapper(devices, **options)
    net(next(batches(1))[0])
    return net


IMAGE, LABEL = next(batches(1))


@pytest.mark.parametrize(
    "error, match, act",
    [
        (NetError, r"inputs: the function takes \(image\), got 2 positional", lambda: wrapper()(IMAGE, LABEL)),
        (NetError, r"inputs: the function takes \(image\), got 0 positional arguments", lambda: wrapper()()),
        (NetError, "got 0 positional arguments and picture", lambda: wrapper()(picture=IMAGE)),
        (NetError, r"targets: the function takes \(label\), got 0", lambda: called().loss()),
        (ShapeError, "the batch has no samples; give at least one", lambda: wrapper()(IMAGE[:0])),
        (TypeError, "batch_size must be a number of samples, or None, got 'all'", lambda: wrapper().step("all")),
        (NetError, "batch_size must be a positive number of samples, got 0", lambda: wrapper().step(0)),
        (ShapeError, r"same number of samples, got {'inputs': 12, 'label': 5}", lambda: called().loss(LABEL[:5])),
        (NetError, r"inputs\[0\] is a list, and was an array in the first call", lambda: called()([IMAGE])),
        (NetError, r"inputs has 0 items, and had 1 in the first call", lambda: called()(image=IMAGE)),
        (UsageError, r"must follow loss\(\), and the last call is at: called", lambda: called().backward()),
        (UsageError, r"backward\(\) must follow loss\(\), and there is none", lambda: wrapper().backward()),
        (UsageError, r"step\(\) must follow backward\(\)", lambda: called().step()),
        (UsageError, r"backward\(\) needs a wrapper that was made with optimizer=",
         lambda: called(optimizer=None).backward()),
        (UsageError, r"loss\(\) must follow a call, and there is none", lambda: wrapper().loss(LABEL)),
        (UsageError, "the nets are built at the first call", lambda: wrapper().model),
        (NetError, r"devices must all be different, got \[1\] more than once", lambda: wrapper([1, 1])),
        (NetError, "devices must be non-negative integers, got 'tpu'", lambda: wrapper(["tpu"])),
        (NetError, "devices must list at least one device", lambda: wrapper([])),
        (NetError, "an optimizer needs a loss", lambda: wrapper(loss=None)),
        (ArgumentError, r"unknown options \['accumulate_steps'\]", lambda: wrapper(accumulate_steps=2)),
        (TypeError, "^DataParallel: .* instead of 'device', did you mean 'devices'",
         lambda: DataParallel(scores, device=[0])),
        (TypeError, "model must be a function or a ModelHelper, got 3", lambda: DataParallel(3)),
        (TypeError, "optimizer must be a function", lambda: wrapper(optimizer=0.1)),
        (NetError, "loss must return a blob of one number", lambda: called(loss=lambda h, s, y: 3.0).loss(LABEL)),
        (NetError, "has 3 samples|no axis 3", lambda: wrapper(batch_axes={"image": 3})(IMAGE)),
        (ArgumentError, "dtypes: no array of a call has the name 'imag'", lambda: wrapper(dtypes={"imag": np.float32})),
        (ArgumentError, "batch_axes: no array of a call has the name 'labels'",
         lambda: wrapper(batch_axes={"labels": 1})(IMAGE)),
        (NetError, "writes blob 'image', in which the argument of this name is fed",
         lambda: DataParallel(lambda helper, image: brew.relu(helper, image, "image"), [0], cpu_device=True)(IMAGE)),
    ],
)  # fmt: skip
def test_errors(error, match, act):
    with pytest.raises(error, match=match):
        act()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("early", [False, True])
def test_indices_that_pass_through_other_operators(early):
    """Types of arguments matter where nets are checked before they run."""

    def model(helper, words):
        flat, _ = helper.net.Reshape(words, ["flat", "shape"], shape=[-1])
        table = helper.create_param("table", [5, 4], Initializer("UniformFill", min=-0.5, max=0.5))
        return helper.net.Gather([table, flat], "rows")

    net = wrapper(model=model, dtypes={"words": np.int32})
    output = net(np.arange(12).reshape(12, 1) % 5)[0][0]
    if early:
        output.numpy()
    net.loss(LABEL)
    net.backward()
    net.step()
    assert net.parameters()["table"].shape == (5, 4)


@pytest.mark.parametrize("early", [False, True])
def test_a_loss_of_several_numbers_is_refused(early):
    """The gradient of its sum would depend on the number of devices. A number for each sample is allowed."""

    def loss(helper, scores, target):
        return helper.net.Sub([scores, target], "distance")

    net = wrapper(loss=loss)
    output = net(IMAGE)[0][0]
    if early:
        output.numpy()
    for _ in range(2):
        with pytest.raises(
            ShapeError, match=r"'cpu_0/distance' has shape \(6, 4\), and must be one number.*AveragedLoss"
        ):
            net.loss(np.zeros((12, 4), np.float32))


def test_buffers_of_calls_that_do_not_run_are_used_again():
    net = wrapper()
    one_step(net, IMAGE, LABEL)
    for _ in range(10):
        net(IMAGE)
        with pytest.raises(NetError):
            net.loss(LABEL, LABEL)
        net.loss(LABEL)
    one_step(net, IMAGE, LABEL)
    for name in ("image", "label"):
        ring = net.workspace.get(f"cpu_1/{name}").ring
        assert len(ring.buffers) <= 3


def test_unknown_gpus():
    with pytest.raises(DeviceError, match=rf"no GPU \[{gpu_count() + 3}\]; give others, or cpu_device=True"):
        DataParallel(scores, [gpu_count() + 3])
    with pytest.raises(NetError, match="all CPU devices or all GPUs"):
        DataParallel(scores, [make_device_option(0, 0), 1])
    assert "CPU 0, 3" in repr(DataParallel(scores, [make_device_option(0, 0), make_device_option(0, 3)]))


def test_changed_constants_are_refused():
    net = DataParallel(lambda helper, x, by: helper.net.Scale(x, "y", scale=by), [0, 1], cpu_device=True)
    net(IMAGE, 2.0)
    with pytest.raises(NetError, match=r"inputs\[1\] is 3.0, and was 2.0 in the first call.*arrays for what changes"):
        net(IMAGE, 3.0)


def test_a_closed_wrapper():
    net = wrapper()
    outputs = net(IMAGE)
    one_step(net, IMAGE, LABEL)
    outputs = net(IMAGE)
    outputs[0][0].numpy()
    other = net.eval()(IMAGE)
    net.close()
    net.close()
    assert other[0][0].shape == (6, 4) and repr(net).endswith("closed)")
    assert not net.workspace.nets()
    for act in (lambda: net(IMAGE), lambda: net.loss(LABEL), net.backward, net.step, net.wait, net.parameters):
        with pytest.raises(UsageError, match="is closed; make another one"):
            act()


def test_an_error_names_device_and_operator_and_the_wrapper_works_again():
    net = wrapper()
    for image, label in batches(2):
        one_step(net, image, label)
    bad = LABEL.copy()
    bad[-1] = 9
    net(IMAGE)
    net.loss(bad)
    net.backward()
    with pytest.raises(Exception, match="SoftmaxWithLoss.*cpu_1") as caught:
        net.step()
    assert "cpu_0/label" not in str(caught.value)
    with pytest.raises(NetError, match="an operator failed in this call; call the wrapper again"):
        net.step()
    one_step(net, IMAGE, LABEL)


def test_wrappers_in_one_workspace_share_parameters():
    workspace = Workspace(threads=2)
    net = wrapper(workspace=workspace)
    for image, label in batches():
        one_step(net, image, label)
    other = DataParallel(scores, [0, 1], cpu_device=True, workspace=workspace)
    np.testing.assert_array_equal(other(IMAGE)[1][0], net.eval()(IMAGE)[1][0])
    assert_equal(other.parameters(), net.parameters())


def test_builders_that_differ_between_devices():
    calls = []

    def model(helper, image):
        calls.append(image)
        return (image,) * len(calls)

    with pytest.raises(NetError, match="the model must make the same net on each device"):
        DataParallel(model, [0, 1], cpu_device=True)(IMAGE)


def test_repr_shows_what_is_wrapped_and_where():
    assert repr(wrapper([0, 3])) == "DataParallel(scores, CPU 0, 3; training)"
    assert repr(called()(IMAGE)[0]) == "(Output(not read yet),)"


def test_other_optimizers():
    with wrapper(optimizer=lambda helper: build_adagrad(helper, 0.05)) as net:
        before = None
        for image, label in batches(2):
            one_step(net, image, label)
            before = before or net.parameters()
        assert any(not np.array_equal(before[name], value) for name, value in net.parameters().items())
