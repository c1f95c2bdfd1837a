"""Train a small residual net on several CPU devices and evaluate it; as a Caffe2 user writes it."""

from __future__ import absolute_import, division, print_function

import argparse
import json
import zlib

import numpy as np
from caffe2.proto import caffe2_pb2
from caffe2.python import brew, core, data_parallel_model, optimizer, workspace
from caffe2.python.model_helper import ModelHelper
from caffe2.python.models import resnet
from caffe2.python.modeling.initializers import Initializer

CLASSES = 5
SIZE = 16


def colored_spots(rng, count):
    """Pictures of a spot somewhere on a background of noise; the class is its color."""
    colors = np.array([[2, -1, -1], [-1, 2, -1], [-1, -1, 2], [1, 1, -2], [1, -2, 1]])
    label = rng.randint(CLASSES, size=count).astype(np.int32)
    y, x = np.mgrid[:SIZE, :SIZE]
    place = rng.uniform(4, SIZE - 4, (2, count, 1, 1))
    spot = np.exp(-((x - place[0]) ** 2 + (y - place[1]) ** 2) / 6.0)
    pictures = rng.randn(count, 3, SIZE, SIZE) + 2 * colors[label][:, :, None, None] * spot[:, None]
    return pictures.astype(np.float32), label


def add_net(model, is_test):
    """A stem, a bottleneck, two simple blocks and a classifier; returns the scores."""
    with brew.arg_scope([brew.conv], WeightInitializer=Initializer, weight_init=("MSRAFill", {})):
        brew.conv(model, "data", "conv1", 3, 8, kernel=3, pad=1, no_bias=1)
    brew.spatial_bn(model, "conv1", "conv1_bn", 8, epsilon=1e-3, is_test=is_test)
    brew.relu(model, "conv1_bn", "conv1_bn")
    builder = resnet.ResNetBuilder(model, "conv1_bn", no_bias=1, is_test=is_test)
    builder.add_bottleneck(8, 4, 16)
    builder.add_simple_block(16, 16)
    builder.add_simple_block(16, 24, down_sampling=True)
    pool = brew.average_pool(model, builder.prev_blob, "final_avg", kernel=SIZE // 2, stride=1)
    return brew.fc(model, pool, "last_out", 24, CLASSES)


def feed(model, pictures, label):
    """Give each device its share of a batch."""
    devices = model.GetDevices()
    for i, device in enumerate(devices):
        option = core.DeviceOption(caffe2_pb2.CPU, device)
        share = slice(i * len(label) // len(devices), (i + 1) * len(label) // len(devices))
        workspace.FeedBlob("cpu_%d/data" % device, pictures[share], device_option=option)
        workspace.FeedBlob("cpu_%d/label" % device, label[share], device_option=option)


def feed_weights(model):
    """First values on the first device that depend on the names alone; the other devices get them from there."""
    for param in model.GetParams("cpu_0"):
        name = str(param)[len("cpu_0/") :]
        shape = workspace.FetchBlob(param).shape
        rng = np.random.RandomState(zlib.crc32(name.encode()))
        if len(shape) > 1:
            value = rng.randn(*shape) * np.sqrt(2.0 / np.prod(shape[1:]))
        else:
            value = np.full(shape, 1.0 if name.endswith("_s") else 0.0)
        workspace.FeedBlob(param, value.astype(np.float32))
    data_parallel_model.FinalizeAfterCheckpoint(model, cpu_mode=True)


def build_training_model(args, devices):
    model = ModelHelper(name="resnet_train", arg_scope={"order": "NCHW", "use_cudnn": False})

    def input_builder(model):
        model.net.AddExternalInput(core.ScopedBlobReference("data"))
        model.net.AddExternalInput(core.ScopedBlobReference("label"))

    def forward_builder(model, loss_scale):
        scores = add_net(model, is_test=False)
        softmax, loss = model.SoftmaxWithLoss([scores, "label"], ["softmax", "loss"])
        loss = model.Scale(loss, "scaled_loss", scale=loss_scale)
        brew.accuracy(model, [softmax, "label"], "accuracy")
        return [loss]

    def optimizer_builder(model):
        optimizer.add_weight_decay(model, 1e-3)
        return optimizer.build_sgd(
            model, args.learning_rate, momentum=0.9, nesterov=1, policy="inv", gamma=0.1, power=0.75
        )

    data_parallel_model.Parallelize(
        model,
        input_builder_fun=input_builder,
        forward_pass_builder_fun=forward_builder,
        optimizer_builder_fun=optimizer_builder,
        devices=devices,
        cpu_device=True,
        shared_model=False,
    )
    return model


def build_test_model(devices):
    model = ModelHelper(name="resnet_test", arg_scope={"order": "NCHW", "use_cudnn": False}, init_params=False)

    def forward_builder(model, loss_scale):
        softmax = brew.softmax(model, add_net(model, is_test=True), "test_softmax")
        brew.accuracy(model, [softmax, "label"], "test_accuracy")

    data_parallel_model.Parallelize_CPU(
        model,
        input_builder_fun=lambda model: None,
        forward_pass_builder_fun=forward_builder,
        param_update_builder_fun=None,
        devices=devices,
    )
    return model


def mean_over_devices(name, devices):
    return float(np.mean([workspace.FetchBlob("cpu_%d/%s" % (device, name)) for device in devices]))


def main():
    parser = argparse.ArgumentParser(description="a residual net on several CPU devices")
    parser.add_argument("--num_devices", type=int, default=2)
    parser.add_argument("--batch", type=int, default=24, help="over all devices")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--learning_rate", type=float, default=0.05)
    parser.add_argument("--output", help="file for the numbers")
    args = parser.parse_args()
    devices = list(range(args.num_devices))

    workspace.ResetWorkspace()
    model = build_training_model(args, devices)
    rng = np.random.RandomState(5)
    feed(model, *colored_spots(rng, args.batch))
    data_parallel_model.RunInitNet(model)
    feed_weights(model)

    losses = []
    for step in range(args.steps):
        feed(model, *colored_spots(rng, args.batch))
        data_parallel_model.RunNet(model, 1)
        losses.append(mean_over_devices("loss", devices))
        if step % 5 == 0:
            accuracy = mean_over_devices("accuracy", devices)
            print("step %2d  loss %.5f  accuracy %.3f" % (step, losses[-1], accuracy))

    weights = [workspace.FetchBlob("cpu_%d/last_out_w" % device) for device in devices]
    spread = max(float(np.abs(weight - weights[0]).max()) for weight in weights)

    test_model = build_test_model(devices)
    feed(test_model, *colored_spots(np.random.RandomState(6), 60))
    workspace.CreateNet(test_model.net)
    workspace.RunNet(test_model.net)
    accuracy = mean_over_devices("test_accuracy", devices)
    checkpoint = sorted(str(blob) for blob in data_parallel_model.GetCheckpointParams(model))
    print("test accuracy %.3f, %d blobs in a checkpoint" % (accuracy, len(checkpoint)))
    if args.output:
        numbers = {
            "losses": losses,
            "accuracy": accuracy,
            "weights": weights[0].ravel().tolist(),
            "spread": spread,
            "running_mean": workspace.FetchBlob("cpu_%d/conv1_bn_rm" % devices[-1]).tolist(),
            "momentum": float(np.abs(workspace.FetchBlob("cpu_0/last_out_w_momentum")).sum()),
            "test_softmax": workspace.FetchBlob("cpu_%d/test_softmax" % devices[-1])[:4].ravel().tolist(),
            "rate": float(workspace.FetchBlob(data_parallel_model.GetLearningRateBlobNames(model)[0])),
        }
        with open(args.output, "w") as file:
            json.dump(numbers, file)


if __name__ == "__main__":
    main()
