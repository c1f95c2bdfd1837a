"""Rebuilds golden nets: runs the calls that are stored with them on our own library."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from typing import Any

import golden_data
from netbuilder import graph, optimizers, zoo
from netbuilder.caffe2.python.model_helper import ModelHelper
from netbuilder.graph.net_names import reset_names
from netbuilder.model import brew, rnn
from netbuilder.optimizers import reset_optimizer_instance_count

__all__ = ["ROWS_READ", "TABLE_COLUMNS", "names_of_calls", "rebuild"]

# Where the notes tell the calls in words.
_CALLS = {
    "embed_rowwise_adagrad": """
model = ModelHelper("embed_rowwise_adagrad")
model.AddGradientOperators(single_embed(model, rows=2, dim=3))
for_table = optimizer.AdagradOptimizer(alpha=0.1, epsilon=1e-4, rowWise=True)
for_others = optimizer.SgdOptimizer(0.1, policy="fixed")
for info in model.GetOptimizationParamInfo():
    (for_table if info.name == "vecs" else for_others)(model.net, model.param_init_net, info)
""",
    "lstm": """
model = ModelHelper("lstm", arg_scope={"order": "NCHW"})
model.AddGradientOperators(build_lstm(model, 1.0, 3, 4, 4))
optimizer.build_sgd(model, 0.05, policy="fixed", momentum=0.9, nesterov=1)
""",
    "memonger_inference": """
model = ModelHelper("memonger_inference", arg_scope={"order": "NCHW"})
build_convnet(model, c=4, classes=5, is_test=True)
""",
}

TABLE_ROWS, TABLE_COLUMNS, ROWS_READ = 12, 3, 2


def names_of_calls(**more: Any) -> dict[str, Any]:
    """Return the names that stored calls use, with what they stand for here."""
    return {
        "brew": brew,
        "core": graph,
        "optimizer": optimizers,
        "resnet": zoo.resnet,
        "rnn_cell": rnn,
        "V": TABLE_ROWS,
        "D": TABLE_COLUMNS,
        "R": ROWS_READ,
        "held": False,
        **more,
    }


def rebuild(net: golden_data.Net, names: Mapping[str, Any] | None = None) -> ModelHelper:
    """Return the model that the stored calls of a golden net build.

    They run as in a fresh process: nets, steps and optimizers are numbered from 0.

    Args:
        net: its notes say how it was built.
        names: further names for the stored code (a data-parallel module, for instance).
    """
    space = names_of_calls(ModelHelper=ModelHelper, **(names or {}))
    sources = list(net.meta["source"])
    if "single_embed" in net.meta["how"]:  # it calls a function stored with another net
        sources += golden_data.net("dp_embed_inside_1").meta["source"]
    for source in sources:
        exec(textwrap.dedent(source), space)
    reset_names()
    reset_optimizer_instance_count()
    exec(_CALLS.get(net.name) or _calls(net.meta["how"]), space)
    model = space["model"]
    assert isinstance(model, ModelHelper)
    return model


def _calls(how: str) -> str:
    """Return the stored calls as Python: without remarks among them."""
    how = re.sub(r"; (repeated indices|in single_embed V = 12)(?=;|$)", "", how)
    return f"model = {how}" if how.startswith("ModelHelper") else how
