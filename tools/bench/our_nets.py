"""The nets of the benchmarks in netbuilder, by the names of ``Work.net``."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.blob import ScopedName
from netbuilder.model import ModelHelper, brew
from netbuilder.model.initializers import Initializer
from netbuilder.model.parameter_info import ParameterTags
from netbuilder.model.rnn import AttentionType, LSTMCell, LSTMWithAttentionCell
from netbuilder.proto import ArgumentError
from netbuilder.proto.arguments import set_argument
from netbuilder.tools.bench.our_models import add_model
from netbuilder.tools.bench.work import MODELS, Work
from netbuilder.zoo import create_alexnet, create_inception_v1, create_resnet, create_resnext, create_vgg

__all__ = ["add_loss", "add_scores"]


def _mlp(model: ModelHelper, work: Work) -> Any:
    blob: Any = "data"
    for i in range(3):
        blob = brew.fc(model, blob, f"fc{i}", work.size, work.size)
        blob = brew.relu(model, blob, blob)
    return brew.fc(model, blob, "fc3", work.size, work.classes)


def _resnet(model: ModelHelper, work: Work) -> Any:
    if work.width:
        # ResNeXt with one group is a ResNet whose width can be chosen.
        return create_resnext(
            model, "data", 3, work.classes, work.layers, 1, work.width, no_loss=True, is_test=work.test
        )
    return create_resnet(model, "data", 3, work.classes, work.layers, no_loss=True, is_test=work.test)


def _alexnet(model: ModelHelper, work: Work) -> Any:
    return create_alexnet(
        model, "data", 3, work.classes, no_loss=True, image_size=work.size,
        towers=1 if work.net == "alexnet_one_tower" else 2, is_test=work.test, **_dropout(work),
    )  # fmt: skip


def _vgg16(model: ModelHelper, work: Work) -> Any:
    return create_vgg(
        model, "data", 3, work.classes, 16, no_loss=True, image_size=work.size, is_test=work.test, **_dropout(work)
    )


def _inception_v1(model: ModelHelper, work: Work) -> Any:
    return create_inception_v1(model, "data", 3, work.classes, no_loss=True, is_test=work.test, **_dropout(work))


def _dropout(work: Work) -> dict[str, Any]:
    return {} if work.dropout else {"dropout": 0.0}


def _embed(model: ModelHelper, work: Work) -> Any:
    """Add an embedding table, and the embeddings of the words in ``data``."""
    fill = Initializer("UniformFill", min=-0.1, max=0.1)
    table = model.create_param("table", [work.classes, work.size], fill, ParameterTags.WEIGHT)
    return model.net.Gather([table, "data"], "words", dense_gradient=1)


def _zeros(model: ModelHelper, work: Work, *names: str) -> list[Any]:
    shape = [1, work.batch, work.size]
    return [model.param_init_net.ConstantFill([], name, shape=shape, value=0.0) for name in names]


def _attention(model: ModelHelper, work: Work) -> Any:
    words = _embed(model, work)
    cell = LSTMWithAttentionCell(
        work.size, words, None, work.size, work.size, "decoder", AttentionType.Regular, None, 0.0, False, False
    )
    outputs, _ = cell.apply_over_sequence(model, words, None, _zeros(model, work, "h0", "c0", "seen0"))
    rows, _ = model.net.Reshape(outputs, ["rows", "rows_shape"], shape=[-1, cell.get_output_dim()])
    return brew.fc(model, rows, "scores", cell.get_output_dim(), work.classes)


def _lstm(model: ModelHelper, work: Work) -> Any:
    words = _embed(model, work)
    cell = LSTMCell(work.size, work.size, forget_bias=0.0, memory_optimization=False, name="lstm")
    states, _ = cell.apply_over_sequence(model, words, None, _zeros(model, work, "h0", "c0"))
    rows, _ = model.net.Reshape(states, ["rows", "rows_shape"], shape=[-1, work.size])
    return brew.fc(model, rows, "scores", work.size, work.classes)


_NETS = {
    "attention": _attention,
    "lstm": _lstm,
    "mlp": _mlp,
    "alexnet": _alexnet,
    "alexnet_one_tower": _alexnet,
    "vgg16": _vgg16,
    "inception_v1": _inception_v1,
}


def add_loss(model: ModelHelper, work: Work) -> Any:
    """Add the net that ``work`` names, with the inputs that ``draw`` returns; return its loss.

    The gradient of the images is not computed: no peer computes it either.

    Raises:
        ArgumentError: there is no net of that name.
    """
    if work.net not in MODELS:
        return model.net.SoftmaxWithLoss([add_scores(model, work), "label"], ["softmax", "loss"])[1]
    loss = add_model(model, work)
    _stop_at_data(model)
    return loss


def add_scores(model: ModelHelper, work: Work) -> Any:
    """Add the net that ``work`` names, with the input ``data``; return its scores. See ``add_loss``."""
    make = _resnet if work.layers else _NETS.get(work.net)
    if make is None:
        raise ArgumentError(f"unknown net {work.net!r}; known are {sorted(_NETS)} and resnet18, resnet34, ...")
    scores = make(model, work)
    _stop_at_data(model)
    return scores


def _stop_at_data(model: ModelHelper) -> None:
    data = ScopedName("data")
    for op in model.net.Proto().op:
        if op.type == "Conv" and op.input[0] == data:
            set_argument(op, "no_gradient_to_input", 1)
