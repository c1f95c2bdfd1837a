"""Calls as in ``calls.py``: nets in float16, and the optimizers other than SGD, Adagrad, Adam and RMSProp."""

_FC = 'brew.fc(model, "x", "f0", 2, 3); model.net.AveragedLoss("f0", "loss"); model.AddGradientOperators(["loss"])\n'
_PSEUDO = "WeightInitializer=PseudoFP16Initializer, BiasInitializer=PseudoFP16Initializer"


def _convnet(initializers: str) -> str:
    return f"""\
half = model.net.FloatToHalf("data", "data_fp16")
brew.conv(model, half, "conv1", 1, 4, 3, {initializers})
brew.spatial_bn(model, "conv1", "bn1", 4, is_test=False)
brew.relu(model, "bn1", "bn1")
brew.max_pool(model, "bn1", "pool1", kernel=2, stride=2)
brew.fc(model, "pool1", "fc2", 36, 10, {initializers})
single = model.net.HalfToFloat("fc2", "fc2_fp32")
model.net.SoftmaxWithLoss([single, "label"], ["softmax", "loss"])
model.AddGradientOperators(["loss"])
"""


CONVNET = _convnet(_PSEUDO)
_REVERSED = _convnet(_PSEUDO.replace("Pseudo", "ReversePseudo"))
_FILLED = _convnet(
    'weight_init=("Float16UniformFill", {"min": -0.25, "max": 0.25}), bias_init=("Float16ConstantFill", {"value": 0.5})'
)

HALF = {
    "multi_precision": CONVNET + "optimizer.build_multi_precision_sgd(model, 0.5, momentum=0.5, nesterov=False)",
    "multi_precision_plain": CONVNET + "optimizer.build_multi_precision_sgd(model, 0.5)",
    "multi_precision_policy": CONVNET
    + 'optimizer.build_multi_precision_sgd(model, 0.5, momentum=0.5, policy="step", stepsize=5, gamma=0.5)',
    "multi_precision_clipping": CONVNET
    + "optimizer.build_multi_precision_sgd(model, 0.5, momentum=0.5, max_gradient_norm=2.0, allow_lr_injection=True)",
    "multi_precision_of_float32": _FC + "optimizer.build_multi_precision_sgd(model, 0.5)",
    "multi_precision_on_a_gpu": f"""\
with core.DeviceScope(core.DeviceOption(1, 1)):
    brew.fc(model, "x", "f0", 2, 3, {_PSEUDO})
    model.net.AveragedLoss("f0", "loss")
    model.AddGradientOperators(["loss"])
optimizer.build_multi_precision_sgd(model, 0.5, momentum=0.5)""",
    "fp16_sgd": CONVNET + "optimizer.build_fp16_sgd(model, 0.5)",
    "fp16_sgd_arguments": CONVNET
    + "optimizer.build_fp16_sgd(model, 0.5, momentum=0.5, nesterov=False, weight_decay=0.25)",
    "fp16_sgd_reversed": _REVERSED + "optimizer.build_fp16_sgd(model, 0.5, momentum=0.5)",
    "fp16_sgd_of_fills": _FILLED + "optimizer.build_fp16_sgd(model, 0.5, momentum=0.5)",
    "fp16_sgd_of_float32": _FC + "optimizer.build_fp16_sgd(model, 0.5, momentum=0.5)",
    "sgd_of_masters": CONVNET + "optimizer.build_sgd(model, 0.5, momentum=0.5)",
}

_DENSE = {
    "adadelta": "build_adadelta(model, 0.5)",
    "adadelta_arguments": 'build_adadelta(model, 0.5, engine="E", decay=0.5, epsilon=0.25, policy="inv", gamma=0.5)',
    "ftrl": "build_ftrl(model, engine=None, alpha=0.5, beta=0.25, lambda1=0.5, lambda2=0.125)",
    "ftrl_defaults": 'build_ftrl(model, engine="")',
    "gftrl": "build_gftrl(model)",
    "yellowfin": "build_yellowfin(model)",
    "yellowfin_arguments": "build_yellowfin(model, 0.5, mu=0.25, curv_win_width=5, zero_debias=False, beta=0.5)",
    "storm": "build_storm(model, 0.5, momentum=2.0, beta=0.25, grad_sq_init=0.5)",
    "storm_lars": "build_storm(model, 0.5, lars=0.25)",
    "wngrad": "build_wngrad(model, 0.5)",
    "wngrad_lars": "build_wngrad(model, 0.5, lars=0.25, moment_init=3.0, output_effective_lr=True)",
    "wngrad_outputs": 'build_wngrad(model, 0.5, output_effective_lr_and_update=True, engine="E")',
    "decay_adagrad": "build_decay_adagrad(model, 0.5)",
    "decay_adagrad_arguments": """build_decay_adagrad(
    model, 0.5, beta1=0.5, weight_decay=0.125, bias_correction_first=False)""",
    "sgd_lars": "build_sgd(model, 0.5, lars=0.25)",
    "sgd_lars_momentum": "build_sgd(model, 0.5, lars=0.25, momentum=0.5)",
    "sgd_lars_clipping": "build_sgd(model, 0.5, lars=0.25, max_gradient_norm=2.0)",
    "adagrad_lars": "build_adagrad(model, 0.5, lars=0.25)",
    "adagrad_weight_decay": "build_adagrad(model, 0.5, weight_decay=0.25, output_effective_lr=True)",
    "adagrad_outputs": "build_adagrad(model, 0.5, output_effective_lr_and_update=True, decay=0.5)",
    "adam_lr_adaption": "build_adam(model, 0.5, use_lr_adaption=True)",
    "adam_lr_adaption_product": """build_adam(
    model, 0.5, use_lr_adaption=True, normalized_lr_adaption=False, lr_alpha=0.5)""",
}

DENSE = {name: f"{_FC}optimizer.{call}" for name, call in _DENSE.items()}
DENSE["sgd_lars_in_a_scope"] = """\
with core.NameScope("s"):
    brew.fc(model, "x", "f0", 2, 3)
    model.net.AveragedLoss("f0", "loss")
model.AddGradientOperators(["s/loss"])
optimizer.build_sgd(model, 0.5, lars=0.25)"""
DENSE["sgd_lars_sparse"] = """\
table = model.param_init_net.UniformFill([], "table", shape=[5, 2])
model.AddParameter(table)
rows = model.net.Gather([table, "i"], "rows")
model.net.AveragedLoss(rows, "loss")
model.AddGradientOperators(["loss"])
optimizer.build_sgd(model, 0.5, lars=0.25)"""
