"""Train a LeNet on pictures of stripes, evaluate it, export it; as a Caffe2 user writes it."""

from __future__ import absolute_import, division, print_function

import argparse
import json
import zlib

import numpy as np
from caffe2.proto import caffe2_pb2
from caffe2.python import brew, core, model_helper, optimizer, workspace
from caffe2.python.predictor import mobile_exporter

CLASSES = 6
SIZE = 20


def stripes(rng, count):
    """Pictures whose stripes run in one of six directions, with noise, and their classes."""
    label = rng.randint(CLASSES, size=count).astype(np.int32)
    angle = label * np.pi / CLASSES
    y, x = np.mgrid[:SIZE, :SIZE]
    phase = rng.uniform(0, 2 * np.pi, count)
    wave = np.cos(angle)[:, None, None] * x + np.sin(angle)[:, None, None] * y
    pictures = np.sin(1.2 * wave + phase[:, None, None]) + 1.2 * rng.randn(count, SIZE, SIZE)
    return pictures[:, None].astype(np.float32), label


def add_lenet(model, data):
    conv1 = brew.conv(model, data, "conv1", dim_in=1, dim_out=6, kernel=5)
    pool1 = brew.max_pool(model, conv1, "pool1", kernel=2, stride=2)
    conv2 = brew.conv(model, pool1, "conv2", dim_in=6, dim_out=12, kernel=5)
    pool2 = brew.max_pool(model, conv2, "pool2", kernel=2, stride=2)
    fc3 = brew.fc(model, pool2, "fc3", dim_in=12 * 2 * 2, dim_out=32)
    fc3 = brew.relu(model, fc3, fc3)
    pred = brew.fc(model, fc3, "pred", dim_in=32, dim_out=CLASSES)
    return brew.softmax(model, pred, "softmax")


def add_training_operators(model, softmax, label, rate):
    xent = model.LabelCrossEntropy([softmax, label], "xent")
    loss = model.AveragedLoss(xent, "loss")
    brew.accuracy(model, [softmax, label], "accuracy")
    model.AddGradientOperators([loss])
    optimizer.add_weight_decay(model, 1e-4)
    optimizer.build_sgd(model, base_learning_rate=rate, policy="step", stepsize=20, gamma=0.8, momentum=0.9, nesterov=1)


def feed_weights(model):
    """First values that depend on the names alone, so that every library starts from the same."""
    for param in model.GetParams():
        shape = workspace.FetchBlob(param).shape
        rng = np.random.RandomState(zlib.crc32(str(param).encode()))
        scale = 1.0 / np.sqrt(np.prod(shape[1:])) if len(shape) > 1 else 0.0
        workspace.FeedBlob(param, (scale * rng.randn(*shape)).astype(np.float32))


def train(model, steps, batch):
    rng = np.random.RandomState(1)
    losses = []
    for step in range(steps):
        data, label = stripes(rng, batch)
        workspace.FeedBlob("data", data)
        workspace.FeedBlob("label", label)
        workspace.RunNet(model.net.Proto().name)
        losses.append(float(workspace.FetchBlob("loss")))
        if step % 10 == 0:
            print("step %3d  loss %.5f  accuracy %.2f" % (step, losses[-1], workspace.FetchBlob("accuracy")))
    return losses


def evaluate(model, batch):
    data, label = stripes(np.random.RandomState(2), batch)
    workspace.FeedBlob("data", data)
    workspace.FeedBlob("label", label)
    workspace.RunNet(model.net.Proto().name)
    return float(workspace.FetchBlob("test_accuracy"))


def exported_outputs(model, batch):
    """The outputs of the exported pair of nets, in a fresh workspace."""
    init_net, predict_net = mobile_exporter.Export(workspace, model.net, model.params)
    init_net, predict_net = init_net.SerializeToString(), predict_net.SerializeToString()
    data, _ = stripes(np.random.RandomState(3), batch)
    workspace.SwitchWorkspace("exported", True)
    workspace.RunNetOnce(init_net)
    workspace.FeedBlob("data", data)
    net = caffe2_pb2.NetDef()
    net.ParseFromString(predict_net)
    workspace.CreateNet(net)
    workspace.RunNet(net.name)
    outputs = workspace.FetchBlob("softmax")
    workspace.SwitchWorkspace("default")
    return outputs


def main():
    parser = argparse.ArgumentParser(description="LeNet on stripes")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--learning_rate", type=float, default=0.02)
    parser.add_argument("--output", help="file for the numbers")
    args = parser.parse_args()

    core.GlobalInit(["caffe2", "--caffe2_log_level=0"])
    workspace.ResetWorkspace()
    arg_scope = {"order": "NCHW", "use_cudnn": False}

    train_model = model_helper.ModelHelper(name="lenet_train", arg_scope=arg_scope)
    softmax = add_lenet(train_model, "data")
    add_training_operators(train_model, softmax, "label", args.learning_rate)

    test_model = model_helper.ModelHelper(name="lenet_test", arg_scope=arg_scope, init_params=False)
    softmax = add_lenet(test_model, "data")
    brew.accuracy(test_model, [softmax, "label"], "test_accuracy")

    deploy_model = model_helper.ModelHelper(name="lenet_deploy", arg_scope=arg_scope, init_params=False)
    deploy_model.net.AddExternalOutput(add_lenet(deploy_model, "data"))

    workspace.FeedBlob("data", np.zeros((args.batch, 1, SIZE, SIZE), np.float32))
    workspace.FeedBlob("label", np.zeros(args.batch, np.int32))
    workspace.RunNetOnce(train_model.param_init_net)
    feed_weights(train_model)
    workspace.CreateNet(train_model.net, overwrite=True)
    workspace.CreateNet(test_model.net, overwrite=True)

    losses = train(train_model, args.steps, args.batch)
    accuracy = evaluate(test_model, 200)
    outputs = exported_outputs(deploy_model, 4)
    rate = [op.output[0] for op in train_model.net.Proto().op if op.type == "LearningRate"][0]
    print("test accuracy %.3f, learning rate %.6f" % (accuracy, workspace.FetchBlob(rate)))
    if args.output:
        numbers = {
            "losses": losses,
            "accuracy": accuracy,
            "outputs": outputs.ravel().tolist(),
            "rate": float(workspace.FetchBlob(rate)),
            "operators": [op.type for op in train_model.net.Proto().op],
        }
        with open(args.output, "w") as file:
            json.dump(numbers, file)


if __name__ == "__main__":
    main()
