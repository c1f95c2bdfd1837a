"""Calls as in ``calls.py``: optimizers of tables that have sparse gradients, and of replicas with such tables."""

_TABLE = """\
table = model.create_param("table", shape=[5, 3], initializer=Initializer("XavierFill"))
model.AddGradientOperators([model.net.SumElements(model.net.Gather([table, "i"], "rows"), "loss")])
"""

# Whole models are built by builders; optimizers that take options of theirs for tables alone are called themselves.
_CALLS = {
    "sgd": "build_sgd(model, 0.5)",
    "sgd_lars": "build_sgd(model, 0.5, lars=0.25)",
    "momentum_sum": 'build_sgd(model, 0.5, momentum=0.25, nesterov=0, sparse_dedup_aggregator="sum")',
    "adagrad": 'build_adagrad(model, 0.5, engine="E")',
    "adagrad_mean": 'build_adagrad(model, 0.5, sparse_dedup_aggregator="mean", output_effective_lr=True)',
    "adagrad_weight_decay": "build_adagrad(model, 0.5, weight_decay=0.25, lars=0.5)",
    "adagrad_counter": "build_adagrad(model, 0.5, counter_halflife=5)",
    "row_wise_adagrad": "build_adagrad(model, 0.5, rowWise=True, epsilon=0.25)",
    "row_wise_adagrad_weight_decay": "build_adagrad(model, 0.5, rowWise=True, weight_decay=0.25)",
    "row_wise_adagrad_counter": "build_adagrad(model, 0.5, rowWise=True, counter_halflife=5)",
    "row_wise_adagrad_all": """build_adagrad(
    model, 0.5, rowWise=True, counter_halflife=5, weight_decay=0.25, sparse_dedup_aggregator="sum", engine="E")""",
    "adam": 'build_adam(model, 0.5, sparse_dedup_aggregator="sum")',
    "adam_lr_adaption": "build_adam(model, 0.5, use_lr_adaption=True)",
    "radam": "build_adam(model, 0.5, enableRAdam=True)",
    "row_wise_adam": "build_adam(model, 0.5, rowWise=True, beta1=0.5)",
    "smart_decay_adam": 'build_adam(model, 0.5, use_smart_decay=True, sparse_dedup_aggregator="sum")',
    "ftrl": 'build_ftrl(model, engine="")',
    "ftrl_sum": 'build_ftrl(model, engine="", alpha=0.5, lambda1=0.25, sparse_dedup_aggregator="sum")',
    "adadelta": "build_adadelta(model, 0.5)",
    "adadelta_sum": 'build_adadelta(model, 0.5, decay=0.5, engine="E", sparse_dedup_aggregator="sum")',
    "wngrad": "build_wngrad(model, 0.5, lars=0.25)",
    "wngrad_mean": 'build_wngrad(model, 0.5, moment_init=2.0, engine="E", sparse_dedup_aggregator="mean")',
    "storm": "build_storm(model, 0.5, lars=0.25)",
    "storm_sum": 'build_storm(model, 0.5, momentum=2.0, beta=0.25, sparse_dedup_aggregator="sum")',
    "decay_adagrad": 'build_decay_adagrad(model, 0.5, beta1=0.5, engine="E")',
    "multi_precision": 'build_multi_precision_sgd(model, 0.5, momentum=0.5, sparse_dedup_aggregator="sum")',
    "injection_and_clipping": "build_adagrad(model, 0.5, rowWise=True, allow_lr_injection=True, max_gradient_norm=2.0)",
}

SPARSE = {name: f"{_TABLE}optimizer.{call}" for name, call in _CALLS.items()}

SPARSE["own_optimizers"] = """\
brew.fc(model, "x", "f0", 3, 3)
table = model.create_param("table", shape=[5, 3], initializer=Initializer("XavierFill"))
rows = model.net.Gather([table, "i"], "rows")
model.AddGradientOperators([model.net.SumElements(model.net.Add(["f0", rows], "sum"), "loss")])
model.get_param_info(table).optimizer = optimizer.AdagradOptimizer(alpha=0.5, rowWise=True)
optimizer.build_sgd(model, 0.25, momentum=0.5)"""

SPARSE["two_lookups"] = """\
table = model.create_param("table", shape=[5, 3], initializer=Initializer("XavierFill"))
rows = model.net.Gather([table, "i"], "rows")
sums = model.net.SparseLengthsSum([table, "j", "lengths"], "sums")
model.AddGradientOperators([model.net.SumElements(model.net.Add([rows, sums], "all"), "loss")])
optimizer.build_adam(model, 0.5)"""
