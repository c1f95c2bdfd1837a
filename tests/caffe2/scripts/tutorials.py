"""What Caffe2's tutorials are about, in small: control flow, Python operators, digits from a database with logs and a
predictor, and a net loaded from files; written for Caffe2. Everything is fed, so that all prints the same numbers.
"""

import os
import shutil
import tempfile

import numpy as np

import caffe2.python.predictor.predictor_exporter as exporter
from caffe2.proto import caffe2_pb2
from caffe2.python import brew, core, model_helper, optimizer, utils, workspace
from caffe2.python.net_builder import NetBuilder, ops
from caffe2.python.predictor import mobile_exporter


def branches_and_loops():
    with NetBuilder(_use_control_ops=True) as builder:
        ops.Const(0, blob_out="zero")
        ops.Const(1, blob_out="one")
        ops.Const(5, blob_out="x")
        ops.Const(0, blob_out="y")
        ops.Const(7, blob_out="z")
        with ops.WhileNet():
            with ops.Condition():
                ops.GT(["x", "zero"])
            ops.Add(["y", "x"], ["y"])
            ops.Sub(["x", "one"], ["x"])
        with ops.IfNet(ops.GT(["y", "one"])):
            ops.Copy("one", "z")
        with ops.Else():
            ops.Copy("zero", "z")
    plan = core.Plan("control")
    plan.AddStep(core.to_execution_step(builder))
    ws = workspace.C.Workspace()
    ws.run(plan)
    print("control", [int(ws.blobs[name].fetch()) for name in ("x", "y", "z")])


def twice(inputs, outputs):
    outputs[0].reshape(inputs[0].shape)
    outputs[0].data[...] = 2 * inputs[0].data


def twice_gradient(inputs, outputs):
    outputs[0].reshape(inputs[-1].shape)
    outputs[0].data[...] = 2 * inputs[-1].data


def python_operators():
    net = core.Net("python")
    net.Python(twice, twice_gradient)(["x"], ["y"])
    net.AddExternalInput("y_slope")
    gradients = net.AddGradientOperators({"y": "y_slope"})
    workspace.FeedBlob("x", np.float32([1, 2]))
    workspace.FeedBlob("y_slope", np.float32([1, 10]))
    workspace.RunNetOnce(net)
    print("python", workspace.FetchBlob("y"), workspace.FetchBlob(gradients["x"]))


def write_digits(path, count):
    """Bars of ten heights, as bytes, with their labels."""
    database = workspace.C.create_db("minidb", path, workspace.C.Mode.write)
    transaction = database.new_transaction()
    for index in range(count):
        image = np.zeros((28, 28, 1), np.uint8)
        image[2 * (index % 10) : 2 * (index % 10) + 5, 4:20] = 100 + 5 * (index % 7)
        features = caffe2_pb2.TensorProtos()
        pixels = features.protos.add(data_type=caffe2_pb2.TensorProto.BYTE, byte_data=image.tobytes())
        pixels.dims.extend(image.shape)
        features.protos.add(data_type=caffe2_pb2.TensorProto.INT32).int32_data.append(index % 10)
        transaction.put("{:08d}".format(index), features.SerializeToString())
    del transaction
    database.close()


def lenet(model, data):
    blob = brew.conv(model, data, "conv1", dim_in=1, dim_out=4, kernel=5)
    blob = brew.max_pool(model, blob, "pool1", kernel=2, stride=2)
    blob = brew.conv(model, blob, "conv2", dim_in=4, dim_out=8, kernel=5)
    blob = brew.max_pool(model, blob, "pool2", kernel=2, stride=2)
    blob = brew.relu(model, brew.fc(model, blob, "fc3", dim_in=8 * 4 * 4, dim_out=32), "relu3")
    return brew.softmax(model, brew.fc(model, blob, "pred", dim_in=32, dim_out=10), "softmax")


def feed_parameters(model):
    rng = np.random.RandomState(7)
    for param in model.params:
        shape = workspace.FetchBlob(param).shape
        workspace.FeedBlob(param, (rng.randn(*shape) * 0.1).astype(np.float32))


def digits(folder):
    write_digits(folder + "/digits", 256)
    workspace.ResetWorkspace(folder)
    model = model_helper.ModelHelper(name="digits", arg_scope={"order": "NCHW"})
    bytes_in, label = brew.db_input(model, ["bytes", "label"], batch_size=32, db=folder + "/digits", db_type="minidb")
    data = model.net.NHWC2NCHW(model.Cast(bytes_in, "data_nhwc", to=core.DataType.FLOAT), "data")
    data = model.StopGradient(model.Scale(data, data, scale=1.0 / 256), data)
    softmax = lenet(model, data)
    loss = model.AveragedLoss(model.LabelCrossEntropy([softmax, label], "xent"), "loss")
    brew.accuracy(model, [softmax, label], "accuracy")
    model.AddGradientOperators([loss])
    optimizer.build_sgd(model, base_learning_rate=0.1, policy="step", stepsize=1, gamma=0.999)
    model.Print("accuracy", [], to_file=1)
    for param in model.params:
        model.Summarize(param, [], to_file=1)
        model.Summarize(model.param_to_grad[param], [], to_file=1)
    workspace.RunNetOnce(model.param_init_net)
    feed_parameters(model)
    workspace.CreateNet(model.net, overwrite=True)
    losses = []
    for _ in range(12):
        workspace.RunNet(model.net)
        losses.append(round(float(workspace.blobs["loss"]), 2))
    print("losses", losses[::3], "accuracy", float(workspace.FetchBlob("accuracy")))
    for name in sorted(os.listdir(folder)):
        if name.endswith((".log", ".summary")):
            with open(os.path.join(folder, name)) as file:
                lines = file.read().splitlines()
            print(name, len(lines), [len(line.split(" ")) for line in lines[:1]])
    with open(folder + "/accuracy.log") as file:
        print(file.readline().split(":")[:2])
    deploy = model_helper.ModelHelper(name="deploy", arg_scope={"order": "NCHW"}, init_params=False)
    lenet(deploy, "data")
    meta = exporter.PredictorExportMeta(
        predict_net=deploy.net.Proto(), parameters=[str(p) for p in deploy.params], inputs=["data"], outputs=["softmax"]
    )
    exporter.save_to_db("minidb", folder + "/predictor", meta)
    batch = workspace.FetchBlob("data")
    workspace.ResetWorkspace(folder)
    predict_net = exporter.prepare_prediction_net(folder + "/predictor", "minidb")
    workspace.FeedBlob("data", batch)
    workspace.RunNetOnce(predict_net)
    print("predicted", np.argmax(workspace.FetchBlob("softmax"), 1)[:12])


def loaded_net():
    workspace.ResetWorkspace()
    model = model_helper.ModelHelper("loaded", arg_scope={"order": "NCHW"})
    blob = brew.relu(model, brew.conv(model, "data", "conv", 3, 4, 3, stride=2), "conv_relu")
    blob = brew.average_pool(model, blob, "pooled", global_pooling=True)
    softmax = brew.softmax(model, brew.fc(model, blob, "pred", 4, 3), "softmax")
    model.net.AddExternalOutput(softmax)
    workspace.RunNetOnce(model.param_init_net)
    feed_parameters(model)
    init_net, predict_net = mobile_exporter.Export(workspace, model.net, model.params)
    predictor = workspace.Predictor(init_net.SerializeToString(), predict_net.SerializeToString())
    image = np.arange(3 * 9 * 9, dtype=np.float32).reshape(1, 3, 9, 9) / 243
    for given in ([image], {"data": image}):
        print("loaded", np.round(np.asarray(predictor.run(given)[0]).squeeze(), 3))
    print(sorted(utils.ArgsToDict(predict_net.op[0].arg)))


def main():
    folder = tempfile.mkdtemp()
    branches_and_loops()
    python_operators()
    digits(folder)
    loaded_net()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
