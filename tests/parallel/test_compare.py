"""The first value that differs between two runs: planted differences are found where they are, equal runs are equal."""

import numpy as np
import pytest

from netbuilder import ModelHelper, Workspace, brew
from netbuilder.graph import Net, reset_names
from netbuilder.optimizers import build_sgd, reset_optimizer_instance_count
from netbuilder.parallel import Parallelize_CPU
from netbuilder.parallel.compare import Comparison, difference_from_file, distance, first_difference
from netbuilder.proto import NetDef, NetError
from netbuilder.runtime.execute.recorded_run import recorded
from netbuilder.tools.proof.table import MODELS
from parallel_models import OPTIMIZERS
from toy_models import layers, scaled_loss

FORWARD = layers(5, 4, 3)


def batch_of_rows(rng):
    return {"data": rng.standard_normal((12, 5), dtype=np.float32), "label": rng.integers(0, 3, 12).astype(np.int32)}


class Side:
    """A model on some devices, with its batch fed.

    Args:
        devices: their number.
        plant: changes the net.
        parallel: further arguments of Parallelize.
    """

    def __init__(
        self,
        devices,
        plant=lambda net: None,
        *,
        build=FORWARD,
        batch=batch_of_rows,
        axes=None,
        parallel=None,
        **options,
    ):
        reset_names()
        reset_optimizer_instance_count()
        model = ModelHelper("compared")
        self.record = Parallelize_CPU(
            model, lambda model: None, build, devices=list(range(devices)),
            **{"optimizer_builder_fun": lambda model: build_sgd(model, 0.1, momentum=0.9), **(parallel or {})},
        )  # fmt: skip
        plant(model.net.Proto())
        self.workspace = Workspace(threads=2)
        self.workspace.run_net_once(model.param_init_net)
        for name, whole in batch(np.random.default_rng(0)).items():
            parts = np.split(whole, devices, (axes or {}).get(name, 0))
            for blob, part in zip(self.record.devices.copies(name), parts):
                self.workspace.feed(blob, np.ascontiguousarray(part))
        self.name = self.workspace.create_net(model.net, **options)

    def step(self):
        net = self.workspace.net(self.name)
        with recorded([net]) as found:
            net.run()
        return found


def compare(a, b, steps=1, **options):
    for _ in range(steps):
        found = first_difference(a.step(), b.step(), records=(a.record, b.record), **options)
        if found is not None:
            return found
    return None


@pytest.mark.one_in(4)
@pytest.mark.parametrize("devices", [2, 3, 4])
def test_devices_are_equal(devices):
    assert compare(Side(1), Side(devices), steps=3, bound=1e-5) is None


def test_other_numbers_of_devices():
    assert compare(Side(2), Side(3), steps=2, bound=1e-5) is None


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", [name for name in MODELS if not (MODELS[name].last or MODELS[name].by_devices)])
def test_tables_and_recurrent_layers(name):
    proof = MODELS[name]
    if proof.outside is not None:
        pytest.skip("a table outside the replicas is made by the caller")
    options = {"build": lambda model, scale: proof.build(model, scale, None), "batch": proof.batch, "axes": proof.axes,
               "parallel": proof.options}  # fmt: skip
    assert compare(Side(1, **options), Side(2, **options), bound=1e-4) is None


def test_an_operator_that_is_wrong_on_one_device():
    def plant(net):
        op = next(op for op in net.op if op.output[0] == "cpu_1/relu1")
        op.type = "Tanh"

    found = compare(Side(1), Side(2, plant, without="fusion"))
    assert (found.blob, found.op_type) == ("relu1", "Tanh")
    assert "on CPU 1" in found.where and "in forward" in found.source and found.operator is not None
    assert "joined along axis 0" in found.what and found.relative > 1e-2 and found.bound == 1e-4
    assert "Relu ['cpu_0/fc1']" in found.where_first
    assert "'relu1' differs (the values of the replicas joined along axis 0): by " in str(found)


def test_a_missing_allreduce():
    def plant(net):
        kept = [op for op in net.op if not (op.type in ("Sum", "Copy") and "cpu_0/fc1_w_grad" in op.input)]
        assert len(kept) < len(net.op)
        copies = [type(op).FromString(op.SerializeToString()) for op in kept]
        del net.op[:]
        net.op.extend(copies)

    found = compare(Side(1), Side(2, plant))
    assert (found.blob, found.op_type) == ("fc1_w_grad", "FCGradient")
    assert found.what == "the gradient on each replica after the reduction"


def test_a_gradient_that_is_reduced_twice():
    def plant(net):
        op = next(op for op in net.op if op.type == "Sum" and op.output[0] == "cpu_0/fc2_b_grad")
        op.input.append("cpu_1/fc2_b_grad")

    found = compare(Side(1), Side(2, plant))
    assert (found.blob, found.op_type) == ("fc2_b_grad", "Copy") or (found.blob, found.op_type) == ("fc2_b_grad", "Sum")


def test_an_update_that_is_wrong_on_one_device():
    def plant(net):
        op = next(op for op in net.op if op.type == "MomentumSGDUpdate" and "cpu_1/fc2_w" in op.output)
        next(argument for argument in op.arg if argument.name == "momentum").f = 0.5

    found = compare(Side(1), Side(2, plant, without="fusion"), steps=3)
    assert found.blob in ("fc2_w_momentum", "fc2_w", "fc2_w_grad") and found.op_type == "MomentumSGDUpdate"
    assert "on CPU 1" in found.where


def test_an_initial_value_that_differs():
    a, b = Side(1), Side(2)
    value = b.workspace.fetch("cpu_1/fc2_w")
    value[0, 0] += 1
    b.workspace.feed("cpu_1/fc2_w", value)
    found = compare(a, b)
    assert (found.blob, found.operator, found.where) == ("fc2_w", None, "") and found.absolute == pytest.approx(1)
    assert "it differs before the run" in str(found)


def test_statistics_of_each_device_differ_from_those_of_the_batch():
    """Normalization without synchronization is a real difference, and is named."""

    def build(model, loss_scale):
        x = brew.spatial_bn(model, "data", "bn", 3, is_test=False)
        x = brew.fc(model, model.net.AveragePool(x, "pool", global_pooling=True), "fc", 3, 2)
        return scaled_loss(model, x, loss_scale)

    def batch(rng):
        return {"data": rng.standard_normal((6, 3, 4, 4), dtype=np.float32), "label": np.int32([0, 1] * 3)}

    found = compare(Side(1, build=build, batch=batch), Side(2, build=build, batch=batch))
    assert (found.blob, found.op_type) == ("bn", "SpatialBN")


class TestSettings:
    def test_fusions_and_layouts(self):
        assert compare(Side(2), Side(2, without="all"), steps=2, bound=1e-4) is None

    def test_recomputation_is_equal_to_the_bit(self):
        assert compare(Side(1, observable="outputs"), Side(1, memory_budget=1.0), steps=2, bound=0) is None

    def test_a_wrong_operator(self):
        def plant(net):
            next(op for op in net.op if op.output[0] == "cpu_0/fc2").input[2] = "cpu_0/fc2_b_momentum"

        found = compare(Side(1), Side(1, plant), bound=1e-6, steps=2)
        assert (found.blob, found.op_type) == ("cpu_0/fc2", "FC")

    def test_an_operator_that_only_one_net_has(self):
        """Then values are compared by their names."""

        def plant(net):
            op = net.op.add(type="Relu", input=["cpu_0/fc1"], output=["cpu_0/more"])
            ops = [type(op).FromString(each.SerializeToString()) for each in (*net.op[-1:], *net.op[:-1])]
            ops[0].input[0] = "cpu_0/data"
            del net.op[:]
            net.op.extend(ops)

        assert compare(Side(1), Side(1, plant)) is None


def test_the_run_is_as_without_recording():
    a, b = Side(2), Side(2)
    a.step()
    b.workspace.run_net(b.name)
    for name in ("cpu_0/fc1_w", "cpu_1/fc2_b_momentum"):
        assert (a.workspace.fetch(name) == b.workspace.fetch(name)).all()
    assert a.workspace.net(a.name)._on_operator is None


def test_stored_values():
    net = Net("stored")
    net.Relu("x", "y")
    net.Exp("y", "z")
    workspace = Workspace()
    workspace.feed("x", np.float32([-1, 1]))
    workspace.create_net(net)
    with recorded([workspace.net("stored")]) as run:
        workspace.run_net("stored")
    right = {"y": np.float32([0, 1]), "z": np.exp(np.float32([0, 1]))}
    assert difference_from_file(run, right) is None
    found = difference_from_file(run, {**right, "y": np.float32([0, 1.5])})
    assert (found.blob, found.op_type, found.absolute) == ("y", "Relu", 0.5)
    assert "shapes (3,) and (2,)" in difference_from_file(run, {"z": np.zeros(3)}).what
    with pytest.raises(NetError, match="written none of the stored blobs"):
        difference_from_file(run, {"x": np.float32([1])})


def test_the_distance():
    assert distance(np.zeros(4), np.full(4, 1e-9)) == (1e-9, pytest.approx(1e-3))  # against 1e-6 in the mean
    assert distance(np.float32([np.nan, np.inf]), np.float32([np.nan, np.inf])) == (0, 0)
    assert distance(np.float32([np.nan, 1]), np.float32([0, 1])) == (np.inf, np.inf)
    assert distance(np.zeros(0), np.zeros(0)) == (0, 0)
    assert distance(np.array([True, False]), np.array([True, True])) == (1, 1)


def test_a_net_def_is_recorded_in_branches():
    branch = NetDef(name="branch")
    branch.op.add(type="Relu", input=["x"], output=["y"])
    outer = NetDef(name="outer", external_input=["condition", "x"])
    op = outer.op.add(type="If", input=["condition", "x"])
    op.arg.add(name="then_net").n.CopyFrom(branch)
    workspace = Workspace()
    workspace.feed("condition", np.bool_(True))
    workspace.feed("x", np.float32([-1, 1]))
    workspace.create_net(outer)
    with recorded([workspace.net("outer")]) as run:
        workspace.run_net("outer")
    assert [(written.net, written.name) for written in run.written] == [("branch", "y")]


class TestValuesThatAreZero:
    """But for rounding: the gradient of a bias before a batch normalization, a mean of what is normalized."""

    @staticmethod
    def build(model, loss_scale):
        x = brew.conv(model, "data", "conv", 3, 8, 3)  # with a bias
        x = brew.spatial_bn(model, x, "bn1", 8, is_test=False)
        x = brew.conv(model, x, "conv2", 8, 6, 1)  # the mean of what it makes is its bias
        x = brew.relu(model, brew.spatial_bn(model, x, "bn2", 6, is_test=False), "relu")
        x = brew.fc(model, model.net.AveragePool(x, "pool", global_pooling=True), "fc", 6, 2)
        return scaled_loss(model, x, loss_scale)

    @staticmethod
    def batch(rng):
        return {"data": rng.standard_normal((12, 3, 7, 7), dtype=np.float32), "label": np.int32([0, 1, 1] * 4)}

    def side(self, devices, optimizer, plant=lambda net: None, **options):
        parallel = {"combine_spatial_bn": True, "optimizer_builder_fun": optimizer}
        return Side(devices, plant, build=self.build, batch=self.batch, parallel=parallel, **options)

    @staticmethod
    def compare(a, b, steps=3, bound=1e-4):
        comparison = Comparison((a.record, b.record), bound=bound)
        for _ in range(steps):
            if found := comparison.step(a.step(), b.step()):
                return found, comparison
            for name, value in comparison.aligned.items():
                b.workspace.feed(name, value)
        return None, comparison

    @pytest.mark.one_in(6)
    @pytest.mark.parametrize("name", ["sgd", "adam", "adagrad"])
    @pytest.mark.parametrize("devices", [2, 3])
    def test_they_are_not_compared(self, name, devices):
        """Adam and Adagrad make steps of the usual size of these gradients."""
        found, comparison = self.compare(self.side(1, OPTIMIZERS[name]), self.side(devices, OPTIMIZERS[name]))
        assert found is None
        assert {"cpu_0/conv_b", "cpu_1/conv_b", "cpu_0/conv2_b"} <= comparison.aligned.keys()
        others = {"cpu_0/conv_w", "cpu_0/conv2_w", "cpu_0/bn2_s", "cpu_0/bn2_b", "cpu_0/bn2_riv", "cpu_0/fc_b"}
        assert not others & comparison.aligned.keys()

    def test_nor_with_another_setting(self):
        adam = OPTIMIZERS["adam"]
        assert self.compare(self.side(2, adam), self.side(2, adam, without="all"))[0] is None

    def test_equality_to_the_bit_has_no_exceptions(self):
        sgd = OPTIMIZERS["sgd"]
        found, _ = self.compare(self.side(1, sgd), self.side(2, sgd), bound=0)
        assert found is not None
        assert self.compare(self.side(2, sgd), self.side(2, sgd), bound=0)[0] is None

    def test_one_that_is_not_zero_in_the_other_run_is_found(self):
        def plant(net):
            op = next(op for op in net.op if "cpu_1/conv_b_grad" in op.output)
            op.output[list(op.output).index("cpu_1/conv_b_grad")] = "cpu_1/unused"
            net.op.add(type="Copy", input=["cpu_1/conv_w"], output=["cpu_1/more"])
            fill = net.op.add(type="ConstantFill", input=["cpu_1/unused"], output=["cpu_1/conv_b_grad"])
            fill.arg.add(name="value").f = 0.5
            fill.is_gradient_op = True
            fill.device_option.CopyFrom(op.device_option)
            ops = [type(each).FromString(each.SerializeToString()) for each in net.op]
            place = next(i for i, each in enumerate(ops) if "cpu_1/unused" in each.output) + 1
            del net.op[:]
            net.op.extend([*ops[:place], ops[-1], *ops[place:-2]])

        sgd = OPTIMIZERS["sgd"]
        found, _ = self.compare(self.side(1, sgd), self.side(2, sgd, plant))
        assert found.blob == "conv_b_grad"

    def test_stored_values(self):
        side = self.side(1, OPTIMIZERS["adam"])
        run = side.step()
        stored = {written.name: written.value for written in run.written if written.step < 0}
        noise = dict.fromkeys(("cpu_0/conv_b_grad", "cpu_0/bn2_rm"), 1e-09) | {"cpu_0/conv_b": 0.01}
        for name, by in noise.items():
            stored[name] = stored[name] + np.float32(by)
        assert difference_from_file(run, stored, record=side.record) is None
        assert difference_from_file(run, stored).blob in noise
        stored["cpu_0/fc_b"] = stored["cpu_0/fc_b"] + np.float32(0.01)
        assert difference_from_file(run, stored, record=side.record).blob == "cpu_0/fc_b"
