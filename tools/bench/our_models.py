"""The nets of the zoo that benchmarks train, and the tagger, by the names of ``Work.net``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from netbuilder.model import ModelHelper, brew
from netbuilder.model.seq2seq import rnn_bidirectional_layer
from netbuilder.tools.bench.draw import TABLES, WORDS
from netbuilder.tools.bench.work import Work
from netbuilder.zoo import bert, convnext, densenet, dlrm, efficientnet, gpt2, mobilenet, regnet, swin, unet, vit

__all__ = ["add_model"]


def _classifier(create: Callable[..., Any], size: Any, **options: Any) -> Callable[[ModelHelper, Work], Any]:
    def add(model: ModelHelper, work: Work) -> Any:
        return create(model, "data", 3, work.classes, size, label="label", **options)[1]

    return add


def _of_image_size(create: Callable[..., Any], size: Any, **options: Any) -> Callable[[ModelHelper, Work], Any]:
    return lambda model, work: _classifier(create, size, image_size=work.size, **options)(model, work)


def _gpt2(model: ModelHelper, work: Work) -> Any:
    size = gpt2.GPT2Size(768, 2, 12, WORDS["gpt2"])
    return gpt2.create_gpt2(model, "data", size, "label", dropout=0.0, steps=work.length)[1]


def _bert(model: ModelHelper, work: Work) -> Any:
    return bert.create_bert(
        model, "data", work.classes, bert.BertSize(768, 2, 12, WORDS["bert"]), "label",
        segments="segments", mask="mask", dropout=0.0, steps=work.length,
    )[1]  # fmt: skip


def _dlrm(model: ModelHelper, work: Work) -> Any:
    size = dlrm.DLRMSize((work.classes,) * TABLES, 16, (13, 512, 256, 64), (512, 256))
    features = [(f"indices{i}", f"lengths{i}") for i in range(TABLES)]
    return dlrm.create_dlrm(model, "data", features, size, "label")[1]


def _tagger(model: ModelHelper, work: Work) -> Any:
    words = brew.embedding(model, "data", "words", WORDS["tagger"], work.size, dense_gradient=1)
    states = rnn_bidirectional_layer(model, words, "lengths", work.size, work.size, None, False, True, False)[0]
    rows, _ = model.net.Reshape(states, ["rows", "rows_shape"], shape=[-1, 2 * work.size])
    label, _ = model.net.Reshape("label", ["row_labels", "label_shape"], shape=[-1])
    scores = brew.fc(model, rows, "scores", 2 * work.size, work.classes)
    return model.net.SoftmaxWithLoss([scores, label], ["softmax", "loss"])[1]


_NETS: dict[str, Callable[[ModelHelper, Work], Any]] = {
    "mobilenet-v2": _classifier(mobilenet.create_mobilenet_v2, "1.0x", dropout=0.0),
    "mobilenet-v3": _classifier(mobilenet.create_mobilenet_v3, "large", dropout=0.0),
    "efficientnet-b0": _classifier(efficientnet.create_efficientnet, "b0", dropout=0.0, stochastic_depth=0.0),
    "regnet-y": _classifier(regnet.create_regnet, "y-400mf"),
    "densenet-121": _classifier(densenet.create_densenet, "121"),
    "convnext-tiny": _classifier(convnext.create_convnext, "tiny", stochastic_depth=0.0),
    "vit-small": _of_image_size(vit.create_vit, "vit-s16"),
    "swin-tiny": _of_image_size(swin.create_swin, "tiny", stochastic_depth=0.0),
    "unet": _classifier(unet.create_unet, "usual"),
    "gpt2": _gpt2,
    "bert": _bert,
    "dlrm": _dlrm,
    "tagger": _tagger,
}


def add_model(model: ModelHelper, work: Work) -> Any:
    """Add the net of ``MODELS`` that ``work`` names, with the inputs that ``draw`` returns; return its loss."""
    return _NETS[work.net](model, work)
