"""Calls of layer helpers, optimizers and the zoo, in the names that Caffe2 and this library share.

``record.py`` runs them on Caffe2; the tests run them here and compare. Each piece of code finds a fresh ``model``.
"""

_FC = 'brew.fc(model, "x", "f0", 2, 3); brew.fc(model, "f0", "f1", 3, 2); model.net.AveragedLoss("f1", "loss")\n'
_MLP = _FC + 'model.AddGradientOperators(["loss"])\n'
_TABLE = """\
table = model.param_init_net.UniformFill([], "table", shape=[5, 2])
model.AddParameter(table)
rows = model.net.Gather([table, "i"], "rows")
brew.fc(model, rows, "f", 2, 3)
model.net.AveragedLoss("f", "loss")
model.AddGradientOperators(["loss"])
"""
_TWO_GPUS = """\
for i in range(2):
    with core.NameScope("gpu_%d" % i), core.DeviceScope(core.DeviceOption(1, i)):
        brew.fc(model, "x", "f", 2, 3)
        model.net.AveragedLoss("f", "loss")
model.AddGradientOperators(["gpu_0/loss", "gpu_1/loss"])
"""
_TWO_CPUS = _TWO_GPUS.replace("gpu_", "cpu_").replace("DeviceOption(1, i)", "DeviceOption(0, i)")

HELPERS = {
    "conv": 'brew.conv(model, "x", "y", 3, 4, 3)',
    "conv_window": 'brew.conv(model, "x", "y", 3, 4, kernel=[3, 5], pads=[1, 1, 1, 1], strides=[2, 2])',
    "conv_no_bias": 'brew.conv(model, "x", "y", 3, 4, 3, ws_nbytes_limit=1000, no_bias=True)',
    "conv_no_cudnn": """brew.conv(
    model, "x", "y", 3, 4, 3, use_cudnn=False, cudnn_exhaustive_search=True, engine="EIGEN")""",
    "conv_search": 'brew.conv(model, "x", "y", 3, 4, 3, cudnn_exhaustive_search=True, dilation=2)',
    "conv_nhwc": 'brew.conv(model, "x", "y", 5, 4, 3, order="NHWC")',
    "conv_group": """brew.conv(
    model, "x", "y", 4, 6, 3, group=2, weight_init=("MSRAFill", {}), bias_init=("ConstantFill", {"value": 0.5}))""",
    "conv_group_nhwc": 'brew.conv(model, "x", "y", 4, 6, 3, group=2, order="NHWC")',
    "conv_unnamed": 'brew.conv(model, "x", None, 4, 4, 3)',
    "conv_nd": 'brew.conv_nd(model, "x", "y", 3, 4, [1, 2, 3])',
    "conv_nd_single": 'brew.conv_nd(model, "x", "y", 3, 4, 3, no_bias=1)',
    "conv_transpose": 'brew.conv_transpose(model, "x", "y", 3, 4, 2, stride=2, weight_init=("MSRAFill", {}))',
    "conv_transpose_nhwc": 'brew.conv_transpose(model, "x", "y", 3, 4, 2, order="NHWC", ws_nbytes_limit=7)',
    "conv_transpose_no_cudnn": 'brew.conv_transpose(model, "x", "y", 3, 4, 2, use_cudnn=False, ws_nbytes_limit=7)',
    "group_conv": 'brew.group_conv(model, "x", "y", 4, 8, 3, group=2, stride=2)',
    "fc": 'brew.fc(model, "x", "y", 3, 4)',
    "fc_axis": 'brew.fc(model, "x", "y", 3, 4, axis=2, engine="other", weight_init=("GaussianFill", {"std": 0.5}))',
    "fc_float16": 'brew.fc(model, "x", "y", 3, 4, float16_compute=True)',
    "fc_unnamed": 'brew.fc(model, "x", None, 3, 4)',
    "spatial_bn": 'brew.spatial_bn(model, "x", "y", 3)',
    "spatial_bn_test": 'brew.spatial_bn(model, "x", "y", 3, is_test=True)',
    "spatial_bn_arguments": """brew.spatial_bn(
    model, "x", "y", 3, is_test=0, epsilon=1e-3, momentum=0.5, order="NHWC", init_scale=0.5, init_bias=0.25)""",
    "lrn": 'brew.lrn(model, "x", "y", size=5, alpha=0.5, beta=0.75)',
    "lrn_nhwc": 'brew.lrn(model, "x", "y", size=5, use_cudnn=False, order="NHWC")',
    "max_pool": 'brew.max_pool(model, "x", "y", kernel=2, stride=2)',
    "max_pool_nhwc": 'brew.max_pool(model, "x", "y", kernel=2, stride=2, use_cudnn=False, order="NHWC")',
    "average_pool": 'brew.average_pool(model, "x", "y", kernel=2, stride=2)',
    "relu": 'brew.relu(model, "x", "y"); brew.relu(model, "y", "y", order="NHWC")',
    "relu_no_cudnn": 'brew.relu(model, "x", "y", use_cudnn=False)',
    "tanh": 'brew.tanh(model, "x", "y"); brew.tanh(model, "x", "z", use_cudnn=False)',
    "prelu": 'brew.prelu(model, "x", "y")',
    "prelu_channels": """brew.prelu(
    model, "x", "y", num_channels=4, slope_init=("ConstantFill", {"value": 0.5}))""",
    "softmax": 'brew.softmax(model, "x", "y"); brew.softmax(model, "x"); brew.softmax(model, "x")',
    "softmax_axis": 'brew.softmax(model, "x", "y", use_cudnn=False, axis=2)',
    "dropout": 'brew.dropout(model, "x", "y", ratio=0.25, is_test=False)',
    "dropout_test": 'brew.dropout(model, "x", "y", is_test=1, use_cudnn=False)',
    "sum": 'brew.sum(model, ["x", "z"], "y"); brew.sub(model, ["x", "z"], "w")',
    "mat_mul": 'brew.mat_mul(model, ["x", "z"], "y", trans_b=1)',
    "batch_mat_mul": 'brew.batch_mat_mul(model, ["x", "z"], "y", trans_b=1, enable_tensor_core=True)',
    "transpose": 'brew.transpose(model, "x", "y", axes=[0, 2, 1])',
    "transpose_no_cudnn": 'brew.transpose(model, "x", "y", axes=[0, 2, 1], use_cudnn=False)',
    "reduce_sum": 'brew.reduce_sum(model, "x", "y", axes=[0])',
    "arg_min": 'brew.arg_min(model, "x", "y", axis=1)',
    "concat": 'brew.concat(model, ["x", "z"], "y")',
    "concat_axis": 'brew.concat(model, ["x", "z"], "y", axis=1, order="NHWC")',
    "accuracy": 'brew.accuracy(model, ["x", "z"], "y")',
    "iter": 'brew.iter(model, "it")',
    "db_input": 'brew.db_input(model, ["data", "label"], 8, "digits.db", "minidb")',
    "db_input_method": 'model.TensorProtosDBInput([], ["data", "label"], 8, "digits.db", "minidb")',
    "add_weight_decay": "brew.add_weight_decay(model, 0.5)",
    "scopes": """\
with core.NameScope("a"):
    y = brew.fc(model, "x", "y", 3, 4)
    with core.DeviceScope(core.DeviceOption(1, 2)), core.NameScope("b"):
        brew.fc(model, y, "z", 4, 5)""",
    "arg_scope": """\
with brew.arg_scope([brew.conv, brew.fc], weight_init=("MSRAFill", {})):
    brew.fc(model, "x", "f1", 2, 2)
    with brew.arg_scope(brew.fc, weight_init=("ConstantFill", {"value": 2.0}), engine="other"):
        brew.fc(model, "x", "f2", 2, 2)
        brew.fc(model, "x", "f3", 2, 2, engine="third")
        brew.conv(model, "x", "c1", 2, 2, 1)
    with brew.arg_scope([brew.conv], no_bias=1, order="NHWC", use_cudnn=False):
        brew.conv(model, "x", "c2", 2, 2, 1)
        brew.conv(model, "x", "c3", 2, 2, 1, no_bias=0)
brew.fc(model, "x", "f4", 2, 2)""",
    "sharing": """\
with core.NameScope("a"):
    brew.fc(model, "x", "fc", 2, 2)
with ParameterSharing({"b": "a", "c": "b"}):
    for scope in ("b", "c"):
        with core.NameScope(scope):
            brew.fc(model, "x", "fc", 2, 2)
    with core.NameScope("c"), core.NameScope("d"):
        brew.fc(model, "x", "fc", 2, 2)""",
    "sharing_nested": """\
with ParameterSharing({"b": "a"}):
    with ParameterSharing({"c": "b"}), core.NameScope("c"):
        brew.fc(model, "x", "fc1", 2, 2)
    with core.NameScope("c"):
        brew.fc(model, "x", "fc2", 2, 2)
with core.NameScope("b"):
    brew.fc(model, "x", "fc3", 2, 2)""",
    "sharing_longest": """\
with ParameterSharing({"g": "h", "g/x": "y", "k": ""}):
    with core.NameScope("g"):
        brew.fc(model, "x", "fc1", 2, 2)
        with core.NameScope("x"):
            brew.fc(model, "x", "fc2", 2, 2)
        with core.NameScope("xx"):
            brew.fc(model, "x", "fc3", 2, 2)
    with core.NameScope("k"):
        brew.fc(model, "x", "fc4", 2, 2)""",
    "sharing_in_scope": """\
with core.NameScope("gpu_0"), ParameterSharing({"m2": "m1/"}):
    for scope in ("m1", "m2"):
        with core.NameScope(scope):
            brew.fc(model, "x", "fc", 2, 2)""",
    "create_param": """\
model.create_param("w", [2, 3], Initializer("XavierFill"), tags=ParameterTags.WEIGHT)
model.create_param("w", [2, 3], Initializer("XavierFill"))
with core.NameScope("s"):
    model.create_param("c", [2], Initializer("ConstantFill", value=1.0), tags=ParameterTags.COMPUTED_PARAM)
    model.create_param(core.BlobReference("b"), [3], ExternalInitializer(), tags=[ParameterTags.BIAS])""",
}

OPTIMIZERS = {
    "sgd_two_models": """\
other = ModelHelper("other")
brew.fc(other, "x", "f", 2, 3)
other.net.AveragedLoss("f", "loss")
other.AddGradientOperators(["loss"])
optimizer.build_sgd(other, 0.5)
"""
    + _MLP
    + "optimizer.build_sgd(model, 0.25, iter_val=7)",
    "sgd_twice": _MLP + "optimizer.build_sgd(model, 0.5); optimizer.build_sgd(model, 0.25, momentum=0.5)",
    "sgd_called": _MLP
    + """\
sgd = optimizer.SgdOptimizer(0.5, policy="step", stepsize=2, gamma=0.5)
sgd.scale_learning_rate(0.5)
sgd(model.net, model.param_init_net, core.BlobReference("f0_w"), core.BlobReference("f0_w_grad"))
for info in model.GetOptimizationParamInfo([core.BlobReference("f1_b")]):
    sgd(model.net, model.param_init_net, info)""",
    "own_optimizer": _MLP
    + """\
model.get_param_info(core.BlobReference("f0_w")).optimizer = optimizer.AdamOptimizer()
optimizer.build_sgd(model, 0.5)""",
    "unused_parameter": """\
model.AddParameter(model.param_init_net.ConstantFill([], "unused", shape=[1]), ParameterTags.WEIGHT)
"""
    + _MLP
    + "optimizer.add_weight_decay(model, 0.5); optimizer.build_adagrad(model, 0.5, decay=0.5)",
    "weight_decay_spares_tables": _TABLE + "optimizer.add_weight_decay(model, 0.5)",
    "adagrad_sparse": _TABLE + "optimizer.build_adagrad(model, 0.5, epsilon=0.25)",
    "adam_step": _MLP + 'optimizer.build_adam(model, 0.5, policy="step", stepsize=3, gamma=0.5)',
    "gpus_sgd": _TWO_GPUS + "optimizer.add_weight_decay(model, 0.5); optimizer.build_sgd(model, 0.5, momentum=0.5)",
    "cpus_adam": _TWO_CPUS + "optimizer.build_adam(model, 0.5)",
    "gpus_adagrad_and_a_table": """\
table = model.param_init_net.UniformFill([], "table", shape=[5, 2])
model.AddParameter(table)
with core.DeviceScope(core.DeviceOption(1, 1)):
    rows = model.net.Gather([table, "i"], "rows", device_option=core.DeviceOption(0))
    brew.fc(model, rows, "f", 2, 3)
    model.net.AveragedLoss("f", "loss")
model.AddGradientOperators(["loss"])
optimizer.build_adagrad(model, 0.5)""",
    "injection": _MLP + "optimizer.build_sgd(model, 0.5, allow_lr_injection=True)",
    "clipping": _MLP + "optimizer.build_sgd(model, 0.5, momentum=0.5, max_gradient_norm=2.0)",
    "clipping_sparse": _TABLE + "optimizer.build_sgd(model, 0.5, max_gradient_norm=2.0)",
    "clipping_and_injection": _MLP
    + "optimizer.build_adagrad(model, 0.5, max_gradient_norm=2.0, allow_lr_injection=True)",
}

ZOO = {
    "resnet_32x32": 'resnet.create_resnet_32x32(model, "data", 3, 2, 10)',
    "resnet50_loss": 'resnet.create_resnet50(model, "data", 3, 10, label="label")',
    "resnet50_test": """resnet.create_resnet50(
    model, "data", 3, 10, no_bias=1, is_test=True, conv1_kernel=3, conv1_stride=1, final_avg_kernel=4)""",
    "resnext18": 'resnet.create_resnext(model, "data", 3, 10, 18, 1, 64, label="label", no_loss=True)',
    "resnext50_32x4": 'resnet.create_resnext(model, "data", 3, 10, 50, 32, 4, label="label")',
}
