"""Nets of the zoo as cases: small ones for tests, usual ones for the comparison with PyTorch's libraries."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from netbuilder.graph import NameScope, ScopedBlobReference
from netbuilder.graph.net_names import reset_names
from netbuilder.model import ModelHelper, ParameterSharing
from netbuilder.runtime import Workspace
from netbuilder.zoo import bert, convnext, dcgan, densenet, dlrm, efficientnet, gpt2, mobilenet, regnet, swin, unet, vit

__all__ = ["CLASSES", "SMALL", "USUAL", "Case", "Result", "digest", "fill", "run", "weights"]

CLASSES = 7
Inputs = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A net.

    Args:
        create: called as ``create(model, size, is_test=...)``; returns the loss. The net's result is ``scores``.
        size: a row of the family's table, or the name of one.
        draw: called with a random generator and the number of samples; returns the inputs.
        batch: number of samples.
        scores: the blob with the result.
        normalizes: whether a step depends on all samples of the batch, so that replicas must exchange statistics.
    """

    create: Callable[..., Any]
    size: Any
    draw: Callable[[np.random.Generator, int], Inputs]
    batch: int = 4
    scores: str = "scores"
    normalizes: bool = False


def images(side: int) -> Callable[[np.random.Generator, int], Inputs]:
    def draw(rng: np.random.Generator, count: int) -> Inputs:
        return {
            "data": rng.standard_normal((count, 3, side, side)),
            "label": rng.integers(0, CLASSES, count).astype(np.int32),
        }

    return draw


def classifier(create: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    def made(model: ModelHelper, size: Any, *, is_test: bool) -> Any:
        return create(model, "data", 3, CLASSES, size, label="label", is_test=is_test, **options)[1]

    return made


def pixels(side: int) -> Callable[[np.random.Generator, int], Inputs]:
    def draw(rng: np.random.Generator, count: int) -> Inputs:
        labels = rng.integers(0, CLASSES, (count, side, side)).astype(np.int32)
        return {"data": rng.standard_normal((count, 3, side, side)), "label": labels}

    return draw


def text(tokens: int, steps: int, segments: bool = False) -> Callable[[np.random.Generator, int], Inputs]:
    def draw(rng: np.random.Generator, count: int) -> Inputs:
        given = {"data": rng.integers(0, tokens, (count, steps)).astype(np.int32)}
        if not segments:
            return {**given, "label": rng.integers(0, tokens, (count, steps)).astype(np.int32)}
        ends = rng.integers(2, steps + 1, (count, 1))
        given["segments"] = (np.arange(steps) >= ends // 2).astype(np.int32)
        given["mask"] = np.where(np.arange(steps) < ends, 0.0, -1e30)[:, None, None]
        return {**given, "label": rng.integers(0, CLASSES, count).astype(np.int32)}

    return draw


def language_model(steps: int) -> Callable[..., Any]:
    def made(model: ModelHelper, size: Any, *, is_test: bool) -> Any:
        return gpt2.create_gpt2(model, "data", size, "label", is_test, dropout=0.0, steps=steps)[1]

    return made


def encoder(steps: int) -> Callable[..., Any]:
    def made(model: ModelHelper, size: Any, *, is_test: bool) -> Any:
        return bert.create_bert(
            model, "data", CLASSES, size, "label", is_test, segments="segments", mask="mask", dropout=0.0, steps=steps
        )[1]

    return made


def recommender(size: dlrm.DLRMSize) -> dict[str, Any]:
    names = [(f"indices{i}", f"lengths{i}") for i in range(len(size.tables))]

    def made(model: ModelHelper, size: Any, *, is_test: bool) -> Any:
        return dlrm.create_dlrm(model, "data", names, size, "label")[1]

    def draw(rng: np.random.Generator, count: int) -> Inputs:
        given: Inputs = {"data": rng.standard_normal((count, size.bottom[0]))}
        for (indices, lengths), rows in zip(names, size.tables):
            given[lengths] = rng.integers(0, 4, count).astype(np.int32)
            given[indices] = rng.integers(0, rows, given[lengths].sum()).astype(np.int32)
        return {**given, "label": rng.integers(0, 2, (count, 1)).astype(np.float64)}

    return {"create": made, "size": size, "draw": draw, "scores": f"top{len(size.top) + 1}"}


def adversaries(model: ModelHelper, size: dcgan.DCGANSize, *, is_test: bool) -> Any:
    """The discriminator's loss on real and generated images, with gradients in both nets."""
    z, data = ScopedBlobReference("z"), ScopedBlobReference("data")
    with NameScope("G"):
        made = dcgan.create_dcgan_generator(model, z, 3, size, is_test)
    losses = []
    for scope, image, label in (("D", data, "ones"), ("D_of_made", made, "zeros")):
        with ParameterSharing({"D_of_made": "D"}), NameScope(scope):
            logits = dcgan.create_dcgan_discriminator(model, image, 3, size, is_test)
        loss = model.net.SigmoidCrossEntropyWithLogits([logits, label], f"{label}_losses")
        losses.append(model.net.AveragedLoss(loss, f"{label}_loss"))
    return model.net.Add(losses, "loss")


def noise(size: dcgan.DCGANSize) -> Callable[[np.random.Generator, int], Inputs]:
    def draw(rng: np.random.Generator, count: int) -> Inputs:
        side = 4 << size.layers
        return {
            "z": rng.standard_normal((count, size.noise, 1, 1)),
            "data": rng.standard_normal((count, 3, side, side)),
            "ones": np.ones((count, 1)),
            "zeros": np.zeros((count, 1)),
        }

    return draw


EFFICIENT = classifier(efficientnet.create_efficientnet, dropout=0.0, stochastic_depth=0.0)
CONVNEXT = classifier(convnext.create_convnext, stochastic_depth=0.0)
SWIN = classifier(swin.create_swin, stochastic_depth=0.0)

_V2 = mobilenet.MobileNetV2(0.5, ((1, 16, 1, 1), (2, 24, 2, 2)))
_EFFICIENT = efficientnet.EfficientNet(0.5, 1.5, 0.0, ((1, 3, 1, 16, 1), (2, 5, 2, 24, 1)))
_V3 = mobilenet.MobileNetV3(
    ((3, 8, 8, True, "relu", 2), (5, 24, 16, True, "hard_swish", 2), (3, 32, 16, False, "relu", 1)), 24, 8
)
_DLRM = dlrm.DLRMSize((11, 5), 4, (6, 8), (10,))
_GAN = dcgan.DCGANSize(2, 4, 6)

SMALL: dict[str, Case] = {
    "mobilenet-v2": Case(classifier(mobilenet.create_mobilenet_v2, dropout=0.0), _V2, images(32), normalizes=True),
    "mobilenet-v3": Case(classifier(mobilenet.create_mobilenet_v3, dropout=0.0), _V3, images(32), normalizes=True),
    "efficientnet": Case(EFFICIENT, _EFFICIENT, images(32), normalizes=True),
    "regnet-x": Case(
        classifier(regnet.create_regnet), regnet.RegNet(4, 8, 6.0, 2.0, 4, stem=8), images(32), normalizes=True
    ),
    "regnet-y": Case(
        classifier(regnet.create_regnet), regnet.RegNet(3, 8, 9.0, 2.0, 16, True, 8), images(32), normalizes=True
    ),
    "densenet": Case(
        classifier(densenet.create_densenet), densenet.DenseNet((2, 3), 4, 8), images(32), normalizes=True
    ),
    "convnext": Case(classifier(convnext.create_convnext, layer_scale=0.5), ((8, 1), (16, 2)), images(32)),
    "vit": Case(classifier(vit.create_vit, image_size=16), vit.ViT(8, 2, 2, 8), images(16)),
    "deit-distilled": Case(classifier(vit.create_vit, image_size=16), vit.ViT(8, 1, 2, 8, distilled=True), images(16)),
    "swin": Case(classifier(swin.create_swin, image_size=16), swin.Swin(8, (2, 1), (2, 4), 2, 2), images(16)),
    "unet": Case(classifier(unet.create_unet), (4, 8, 12), pixels(16), normalizes=True),
    "gpt2": Case(language_model(6), gpt2.GPT2Size(8, 2, 2, 13, 9), text(13, 6)),
    "bert": Case(encoder(6), bert.BertSize(8, 2, 2, 13, 9), text(13, 6, segments=True)),
    "dlrm": Case(**recommender(_DLRM)),
    "dcgan": Case(adversaries, _GAN, noise(_GAN), scores="D_of_made/logits", normalizes=True),
}

_KAGGLE = dlrm.DLRMSize((1460, 583, 3000, 305), 16, (13, 512, 256, 64), (512, 256))

USUAL: dict[str, Case] = {
    "mobilenet-v2": Case(classifier(mobilenet.create_mobilenet_v2, dropout=0.0), "1.0x", images(64)),
    **{
        f"mobilenet-v3-{size}": Case(classifier(mobilenet.create_mobilenet_v3, dropout=0.0), size, images(64))
        for size in mobilenet.MOBILENET_V3
    },
    **{f"efficientnet-{size}": Case(EFFICIENT, size, images(64)) for size in efficientnet.EFFICIENTNET},
    **{f"regnet-{size}": Case(classifier(regnet.create_regnet), size, images(64)) for size in regnet.REGNET},
    **{f"densenet{size}": Case(classifier(densenet.create_densenet), size, images(64)) for size in densenet.DENSENET},
    **{f"convnext-{size}": Case(CONVNEXT, size, images(64)) for size in convnext.CONVNEXT},
    **{size: Case(classifier(vit.create_vit, image_size=64), size, images(64)) for size in vit.VIT},
    **{f"swin-{size}": Case(SWIN, size, images(224), batch=1) for size in ("tiny",)},
    "unet": Case(classifier(unet.create_unet), "usual", pixels(32)),
    "gpt2-small": Case(language_model(16), "small", text(50257, 16), batch=2),
    "bert-base": Case(encoder(16), "base", text(30522, 16, segments=True), batch=2),
    "dlrm": Case(**recommender(_KAGGLE)),
    "dcgan": Case(adversaries, dcgan.DCGANSize(4), noise(dcgan.DCGANSize(4)), scores="D_of_made/logits"),
}


@dataclass
class Result:
    """What a run gave: the scores, the loss, and the gradients of parameters, by name."""

    scores: np.ndarray
    loss: float
    gradients: dict[str, np.ndarray] = field(default_factory=dict)
    parameters: dict[str, np.ndarray] = field(default_factory=dict)
    trained: frozenset[str] = frozenset()


def digest(result: Result) -> dict[str, Any]:
    """Return the result in few numbers: some of the scores, the loss, and a weighted sum of each gradient."""
    scores = result.scores.ravel()[:: max(1, result.scores.size // 40)]
    sums = {blob: float(np.vdot(weights(blob, g.shape), g)) for blob, g in result.gradients.items()}
    return {"scores": scores.tolist(), "loss": result.loss, "gradients": sums}


def weights(blob: str, shape: Any) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(blob.encode()) + 1).standard_normal(shape)


def fill(name: str, shape: Any) -> np.ndarray:
    """Return the value of a parameter in all comparisons, drawn from its name."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    drawn = rng.standard_normal(shape)
    if name.endswith("_riv"):
        return 1 + 0.5 * np.tanh(drawn)
    if len(shape) > 1 and not name.endswith("_scale"):
        return drawn / np.sqrt(np.prod(shape[1:]))
    return (1 if name.endswith(("_s", "_scale")) else 0) + 0.1 * drawn


def run(case: Case, *, is_test: bool, dtype: Any = np.float64) -> Result:
    """Run a net, and its backward pass unless it is a test net, on parameters that ``fill`` draws."""
    reset_names()
    model = ModelHelper("case")
    loss = case.create(model, case.size, is_test=is_test)
    gradients = {} if is_test else model.AddGradientOperators([loss])
    workspace = Workspace(threads=1)
    workspace.run_net_once(model.param_init_net)
    parameters = {}
    for blob in map(str, model.GetAllParams("")):
        value = workspace.fetch(blob)
        if value.dtype.kind == "f":
            drawn = blob in map(str, model.params) or blob.endswith(("_rm", "_riv"))  # others are constants
            parameters[blob] = (fill(blob, value.shape) if drawn else value).astype(dtype)
            workspace.feed(blob, parameters[blob])
    inputs = case.draw(np.random.default_rng(0), case.batch)
    for blob, value in inputs.items():
        workspace.feed(blob, value.astype(dtype) if value.dtype.kind == "f" else value)
    workspace.run_net_once(model.net)
    found = Result(workspace.fetch(case.scores), float(workspace.fetch(str(loss))), parameters=parameters)
    found.trained = frozenset(map(str, model.params))
    for parameter in map(str, model.params):
        gradient = gradients.get(parameter)
        if gradient is not None:
            found.gradients[parameter] = dense(workspace, gradient, parameters[parameter].shape)
    return found


def dense(workspace: Workspace, gradient: Any, shape: Any) -> np.ndarray:
    """Return a gradient, whose rows are added up if it is sparse."""
    if not hasattr(gradient, "indices"):
        return workspace.fetch(str(gradient))
    values, indices = workspace.fetch(str(gradient.values)), workspace.fetch(str(gradient.indices))
    whole = np.zeros(shape, values.dtype)
    np.add.at(whole, indices.reshape(-1), values.reshape(-1, *shape[1:]))
    return whole
