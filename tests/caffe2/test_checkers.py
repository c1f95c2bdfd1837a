"""gradient_checker, device_checker and hypothesis_test_util: right operators pass, wrong ones do not."""

import os
import subprocess
import sys

import numpy as np
import pytest
from caffe2.python import core, device_checker, gradient_checker, workspace

from house import ROOT
from netbuilder.proto import GradientError, NetError
from waiting import HANG

X = np.float32([[0.5, -1.0], [2.0, 0.25]])


def test_a_right_gradient_passes():
    op = core.CreateOperator("FC", ["x", "w", "b"], ["y"])
    checker = gradient_checker.GradientChecker(0.05, 0.005, core.DeviceOption(0))
    for place in range(3):
        good, gradient, estimate = checker.CheckSimple(
            op, [X, np.float32([[1, 2]]), np.float32([0.5])], place, [0], ensure_outputs_are_inferred=True
        )
        assert good
        np.testing.assert_allclose(gradient, estimate, atol=5e-3)


def test_in_place_and_empty():
    op = core.CreateOperator("Tanh", ["x"], ["x"])
    assert gradient_checker.GradientChecker(0.01, 0.005).CheckSimple(op, [X], 0, [0])[0]
    op = core.CreateOperator("Sqr", ["x"], ["y"])
    good, gradient, _ = gradient_checker.GradientChecker(0.05, 0.005).CheckSimple(op, [X[:0]], 0, [0])
    assert good and gradient.shape == (0, 2)


def test_a_wrong_gradient_does_not():
    op = core.CreateOperator("Sqr", ["x"], ["y"])
    wrong = core.CreateOperator("Copy", ["y_grad"], ["x_grad"])
    good, gradient, estimate = gradient_checker.GradientChecker(0.05, 0.005).CheckSimple(op, [X], 0, [0], [wrong])
    assert not good
    np.testing.assert_allclose(gradient, X**2)
    np.testing.assert_allclose(estimate, 2 * X**3, atol=0.05)


def test_a_sparse_gradient():
    op = core.CreateOperator("Gather", ["x", "i"], ["y"])
    good, gradient, _ = gradient_checker.GradientChecker(0.05, 0.005).CheckSimple(op, [X, np.int32([1, 1])], 0, [0])
    assert good and gradient.shape == X.shape


def test_an_input_without_gradient():
    op = core.CreateOperator("Gather", ["x", "i"], ["y"])
    with pytest.raises(GradientError, match="has no gradient with respect to input 1, 'i'"):
        gradient_checker.GradientChecker(0.05, 0.005).CheckSimple(op, [X, np.int32([1])], 1, [0])


def net(name, square):
    made = core.Net(name)
    made.FC(["x", "w", "b"], "y")
    made.Sqr("y", "z") if square == "Sqr" else made.Mul(["y", "y"], "z")
    return made


VALUES = {"x": X, "w": np.float32([[1, 2]]), "b": np.float32([0.5])}


def test_nets():
    mean, most = gradient_checker.NetGradientChecker.Check(net("one", "Sqr"), ["z"], VALUES, "x", step_size=0.01)
    assert 0 <= mean <= most < 0.01
    pair = [net("two", "Sqr"), net("three", "Mul")]
    gradient_checker.NetGradientChecker.CompareNets(pair, [["z"], ["z"]], [0], ["x", "w"], VALUES, threshold=1e-5)
    pair[1].Scale("z", "z", scale=2.0)
    with pytest.raises(AssertionError, match="output 0 of net"):
        gradient_checker.NetGradientChecker.CompareNets(pair, [["z"], ["z"]], [0], ["x"], VALUES)
    with pytest.raises(NetError, match=r"input_values must have a value for 'q'"):
        gradient_checker.NetGradientChecker.Check(net("four", "Sqr"), ["z"], VALUES, "q")


def test_nets_of_the_same_outputs_with_other_gradients():
    half = core.Net("half")
    half.FC(["x", "w", "b"], "y")
    half.StopGradient("y", "constant")
    half.Mul(["y", "constant"], "z")
    with pytest.raises(AssertionError, match="gradient 0 of net 'half"):
        gradient_checker.NetGradientChecker.CompareNets([net("whole", "Sqr"), half], [["z"], ["z"]], [0], ["x"], VALUES)


def test_nets_with_parameters_in_the_workspace():
    for name in ("w", "b"):
        workspace.FeedBlob(name, VALUES[name])
    gradient_checker.NetGradientChecker.Check(net("six", "Sqr"), ["z"], {"x": X}, "x", step_size=0.01)


def test_devices(capsys):
    cpus = [core.DeviceOption(0), core.DeviceOption(0)]
    checker = device_checker.DeviceChecker(0.01, cpus)
    assert checker.CheckSimple(core.CreateOperator("Relu", ["x"], ["y"]), [X], [0])
    random = core.CreateOperator("UniformFill", [], ["y"], shape=[4])
    assert checker.CheckNet(net("five", "Sqr"), VALUES, ["z"])
    assert device_checker.DeviceChecker(-1.0, cpus).CheckSimple(random, [], [0]) is False
    assert "differs by more than -1.0 between device 0 (type 0, id 0) and device 1" in capsys.readouterr().out


CASES = """
import hypothesis.strategies as st
import numpy as np
import caffe2.python.hypothesis_test_util as hu
import caffe2.python.serialized_test.serialized_test_util as serial
from caffe2.python import core
from hypothesis import given, settings


class TestOperators(serial.SerializedTestCase):
    @serial.given(X=hu.tensor(max_dim=3), scale=hu.floats(min_value=0.1, max_value=2.0), **hu.gcs)
    @settings(max_examples=3, deadline=None)
    def test_scale(self, X, scale, gc, dc):
        op = core.CreateOperator("Scale", ["X"], ["Y"], scale=scale)
        self.assertReferenceChecks(
            gc, op, [X], lambda x: (x * np.float32(scale),), output_to_grad="Y",
            grad_reference=lambda g, outputs, inputs: (g * np.float32(scale),), ensure_outputs_are_inferred=True,
        )
        self.assertDeviceChecks(dc, op, [X], [0])
        self.assertGradientChecks(gc, op, [X], 0, [0], threshold=0.01)

    @given(pair=hu.lengths_tensor(max_dim=2), **hu.gcs_cpu_only)
    @settings(max_examples=3, deadline=None)
    def test_segments(self, pair, gc, dc):
        values, lengths = pair
        assert lengths.sum() == len(values) and lengths.dtype == np.int32
        op = core.CreateOperator("Copy", ["X"], ["Y"])
        self.assertValidationChecks(gc, op, [values], lambda X, Y: np.testing.assert_array_equal(X, Y))

    def test_wrong_references(self):
        op = core.CreateOperator("Relu", ["X"], ["Y"])
        X = np.float32([1, -1])
        with self.assertRaises(AssertionError):
            self.assertReferenceChecks(hu.cpu_do, op, [X], lambda x: (x,))
        with self.assertRaises(TypeError):
            self.assertReferenceChecks(hu.cpu_do, op, [X], lambda x: x)
        with self.assertRaises(AssertionError):
            self.assertReferenceChecks(
                hu.cpu_do, op, [X], lambda x: (x.clip(0),), output_to_grad="Y", grad_reference=lambda g, o, i: (g + 1,)
            )
        self.assertRunOpRaises(
            hu.cpu_do, core.CreateOperator("Softmax", ["X"], ["Y"], axis=5), [X], regexp="axis must lie"
        )
        assert len(hu.runOpBenchmark(hu.cpu_do, op, [X], iterations=2)) == 2
        np.testing.assert_array_equal(hu.runOpOnInput(hu.cpu_do, op, [X])[0], [1, 0])

    @given(ids=hu.segment_ids(5, True), rows=hu.sparse_lengths_tensor(max_dim=2))
    @settings(max_examples=5)
    def test_strategies(self, ids, rows):
        assert ids[0] == 0 and set(np.diff(ids)) <= {0, 1}
        data, indices, lengths = rows
        assert lengths.sum() == len(indices) and indices.max() < len(data)
"""


@pytest.mark.slow
def test_tests_of_operators_run_as_they_are(tmp_path):
    (tmp_path / "operators_test.py").write_text(CASES)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "netbuilder.caffe2", "-m", "unittest", "operators_test"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Ran 4 tests" in done.stderr
