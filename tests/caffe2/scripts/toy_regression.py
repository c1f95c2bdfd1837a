"""A line fitted by nets, plans and execution steps, as a unittest; as a Caffe2 user writes it."""

from __future__ import absolute_import, division, print_function

import json
import sys
import unittest

import numpy as np
from caffe2.python import core, dyndep, test_util, utils, workspace
from caffe2.python.core import DataType

dyndep.InitOpsLibrary("@/caffe2/caffe2/contrib/nothing:nothing_ops")

TRUE_W = np.array([[2.0, 1.5]], dtype=np.float32)
TRUE_B = np.array([0.5], dtype=np.float32)


def batch(step, count=32):
    rng = np.random.RandomState(step)
    x = rng.randn(count, 2).astype(np.float32)
    return x, x.dot(TRUE_W.T) + TRUE_B + 0.01 * rng.randn(count, 1).astype(np.float32)


def build():
    """An init net and a train net, from single operators."""
    init_net = core.Net("toy_init")
    w = init_net.ConstantFill([], "W", shape=[1, 2], value=0.1)
    b = init_net.ConstantFill([], "B", shape=[1], value=0.0)
    one = init_net.ConstantFill([], "ONE", shape=[1], value=1.0)
    counter = init_net.ConstantFill([], "ITER", shape=[1], value=0, dtype=DataType.INT64)

    train_net = core.Net("toy_train")
    train_net.AddExternalInput(core.BlobReference("X"), core.BlobReference("Y_true"))
    train_net.Iter(counter, counter)
    with core.NameScope("fit"):
        prediction = train_net.FC([core.BlobReference("X"), w, b], "prediction")
        error = train_net.Sub([prediction, core.BlobReference("Y_true")], "error")
        loss = error.Sqr([], "square").AveragedLoss([], "loss")
    gradients = train_net.AddGradientOperators([loss])
    rate = train_net.LearningRate(counter, "LR", base_lr=-0.1, policy="step", stepsize=20, gamma=0.9)
    for param in (w, b):
        train_net.WeightedSum([param, one, gradients[param], rate], param)
    return init_net, train_net, loss


def regress(steps=40):
    """Fit the line, one plan a step; return the losses and the parameters."""
    init_net, train_net, loss = build()
    workspace.RunNetOnce(init_net)
    losses = []
    for step in range(steps):
        x, y = batch(step)
        workspace.FeedBlob("X", x)
        workspace.blobs["Y_true"] = y
        plan = core.Plan("toy_plan_%d" % step)
        plan.AddStep(core.ExecutionStep("train_step", train_net, 1))
        workspace.RunPlan(plan)
        losses.append(float(workspace.FetchBlob(loss)))
    return losses, workspace.FetchBlob("W"), workspace.FetchBlob("B")


def shrink(net, blob, factor):
    def run(inputs, outputs):
        outputs[0].feed(inputs[0].data * factor)

    net.Python(run)([blob], [blob])


class TestToyRegression(test_util.TestCase):
    def testFindsTheLine(self):
        losses, w, b = regress()
        self.assertLess(losses[-1], 1e-3)
        self.assertLess(losses[-1], losses[0])
        np.testing.assert_allclose(w, TRUE_W, atol=0.05)
        np.testing.assert_allclose(b, TRUE_B, atol=0.05)
        self.assertEqual(workspace.FetchBlob("ITER"), 40)

    def testOneFixedBatchInOneStep(self):
        init_net, train_net, loss = build()
        x, y = batch(7)
        workspace.FeedBlob("X", x)
        workspace.FeedBlob("Y_true", y)
        plan = core.Plan("toy_fixed")
        plan.AddStep(core.ExecutionStep("init", init_net))
        plan.AddStep(core.execution_step("train", [train_net], num_iter=50))
        self.assertTrue(workspace.RunPlan(plan.Proto().SerializeToString()))
        self.assertLess(workspace.FetchBlob(str(loss)), 1e-3)

    def testAStepThatEndsByItself(self):
        self.assertEqual(workspace.Blobs(), [])
        init = core.Net("count_init")
        count = init.ConstantFill([], "count", shape=[1], value=0.0)
        limit = init.ConstantFill([], "limit", shape=[1], value=5.0)
        one = init.ConstantFill([], "one", shape=[1], value=1.0)
        body = core.Net("count_body")
        body.Add([count, one], count)
        check = core.Net("count_check")
        done = check.GE([count, limit], "done")
        loop = core.execution_step(
            "loop", [core.execution_step("body", body), core.execution_step("check", check)], should_stop_blob=done
        )
        workspace.FeedBlob(str(done), np.array([False]))
        workspace.RunPlan(core.execution_step("whole", [core.execution_step("init", init), loop]))
        np.testing.assert_array_equal(workspace.FetchBlob("count"), [5.0])

    def testErrorsAreRuntimeErrors(self):
        with self.assertRaises(RuntimeError):
            workspace.FetchBlob("nowhere")
        with self.assertRaises(RuntimeError):
            workspace.RunNet("never_created")
        net = core.Net("reads_nothing")
        net.Relu("missing", "y")
        self.assertRaises(RuntimeError, workspace.CreateNet, net)
        self.assertRaises(AttributeError, getattr, net, "NoSuchOperator")

    def testWorkspaceObjects(self):
        op = core.CreateOperator("Relu", ["x"], ["y"])
        array = test_util.rand_array(3, 2)
        self.ws.create_blob("x").feed(array)
        self.ws.run(op)
        np.testing.assert_array_equal(self.ws.blobs["y"].fetch(), np.maximum(array, 0))
        self.assertFalse(workspace.HasBlob("y"))
        self.assertEqual(utils.ArgsToDict(op.arg), {})

    def testPythonOperator(self):
        net = core.Net("python")
        shrink(net, "x", 0.5)
        test_util.randBlobFloat32("x", 4)
        before = workspace.FetchBlob("x")
        workspace.CreateNet(net)
        workspace.RunNet(net.Proto().name, 2)
        np.testing.assert_allclose(workspace.FetchBlob("x"), before / 4, rtol=1e-6)
        self.assertEqual(test_util.numOps(net), 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--output"]:
        losses, w, b = regress()
        with open(sys.argv[2], "w") as file:
            json.dump({"losses": losses, "w": w.ravel().tolist(), "b": b.tolist()}, file)
        sys.exit(0)
    unittest.main()
