"""Small nets of each family: equal to PyTorch's, on two devices, and under memory budgets.

``tests/torch_nets/compare.py`` stores what PyTorch's nets compute, and compares those of usual size.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from netbuilder.graph import infer_shapes
from netbuilder.graph.net_names import reset_names
from netbuilder.model import Generator, ModelHelper
from netbuilder.optimizers import build_sgd
from netbuilder.parallel import Parallelize_CPU
from netbuilder.proto import ArgumentError, NetError
from netbuilder.proto.arguments import arguments
from netbuilder.runtime import Workspace
from netbuilder.zoo import bert, convnext, densenet, dlrm, efficientnet, gpt2, mobilenet, regnet, swin, unet, vit
from zoo_cases import CLASSES, SMALL, digest, fill, run
from zoo_models import built, operators, parameter_count

GOLDEN = json.loads((Path(__file__).parents[1] / "torch_nets" / "golden.json").read_text())


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", SMALL)
def test_equal_to_pytorch(name):
    """Scores, loss and gradients of a training net, and those of a test net where that differs."""
    modes = ("train", "test") if SMALL[name].normalizes else ("train",)
    for mode in modes:
        found, want = digest(run(SMALL[name], is_test=mode == "test")), GOLDEN[name][mode]
        np.testing.assert_allclose(found["scores"], want["scores"], rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(found["loss"], want["loss"], rtol=1e-7)
        assert found["gradients"].keys() == want["gradients"].keys()
        least = 1e-7 * max(map(abs, want["gradients"].values()), default=0)
        for blob, value in want["gradients"].items():
            np.testing.assert_allclose(found["gradients"][blob], value, rtol=1e-5, atol=least, err_msg=blob)


def step(name, devices, **options):
    """Return the parameters, of the first replica, after a step of SGD on a batch that the replicas share."""
    reset_names()
    case, model = SMALL[name], ModelHelper("case")

    def forward(model, loss_scale):
        return [model.Scale(case.create(model, case.size, is_test=False), scale=loss_scale)]

    record = Parallelize_CPU(
        model, lambda model: None, forward, optimizer_builder_fun=lambda model: build_sgd(model, 0.1),
        devices=list(range(devices)), combine_spatial_bn=case.normalizes and devices > 1,
    )  # fmt: skip
    workspace = Workspace(threads=1)
    inputs = case.draw(np.random.default_rng(0), case.batch)
    shares = {k: np.split(v, devices) for k, v in inputs.items() if not k.startswith("indices")}
    for blob, whole in inputs.items():
        if blob.startswith("indices"):
            ends = np.cumsum([part.sum() for part in shares[blob.replace("indices", "lengths")]])
            shares[blob] = np.split(whole, ends[:-1])
    for blob, parts in shares.items():
        for scope, part in zip(record.devices.scopes, parts):
            workspace.feed(scope + blob, part.astype(np.float32) if part.dtype.kind == "f" else part)
    workspace.run_net_once(model.param_init_net)
    names = [blob for blob in map(str, model.GetAllParams("")) if blob.startswith("cpu_0/")]
    trained = {str(blob) for blob in model.params}
    for blob in names:
        value = workspace.fetch(blob)
        drawn = blob in trained or blob.endswith(("_rm", "_riv"))
        for number in range(devices) if drawn else ():
            workspace.feed(blob.replace("cpu_0", f"cpu_{number}", 1), fill(blob[6:], value.shape).astype(np.float32))
    net = workspace.create_net(model.net, observable="outputs", **options)
    workspace.run_net(net)
    return {blob: workspace.fetch(blob) for blob in names}


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", SMALL)
def test_two_devices_train_as_one(name):
    one, two = step(name, 1), step(name, 2)
    assert one.keys() == two.keys()
    for blob, value in one.items():
        scale = np.abs(value).max() + 1e-3
        np.testing.assert_allclose(two[blob], value, rtol=1e-4, atol=1e-4 * scale, err_msg=blob)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("name", [name for name in SMALL if name != "dlrm"])
def test_budgets_change_nothing(name):
    with pytest.raises(NetError, match="is too small") as raised:
        step(name, 1, memory_budget=1000)
    least = int(str(raised.value).split("at least ")[1].split()[0].replace(",", ""))
    for blob, value in step(name, 1).items():
        np.testing.assert_array_equal(step(name, 1, memory_budget=least)[blob], value, err_msg=blob)
        break


PARAMETERS = {
    (mobilenet.create_mobilenet_v2, "1.0x"): 3_504_872,
    (mobilenet.create_mobilenet_v3, "large"): 5_483_032,
    (mobilenet.create_mobilenet_v3, "small"): 2_542_856,
    (efficientnet.create_efficientnet, "b0"): 5_288_548,
    (efficientnet.create_efficientnet, "b1"): 7_794_184,
    (efficientnet.create_efficientnet, "b2"): 9_109_994,
    (efficientnet.create_efficientnet, "b3"): 12_233_232,
    (efficientnet.create_efficientnet, "b4"): 19_341_616,
    (regnet.create_regnet, "x-400mf"): 5_495_976,
    (regnet.create_regnet, "x-800mf"): 7_259_656,
    (regnet.create_regnet, "x-1.6gf"): 9_190_136,
    (regnet.create_regnet, "x-3.2gf"): 15_296_552,
    (regnet.create_regnet, "x-8gf"): 39_572_648,
    (regnet.create_regnet, "y-400mf"): 4_344_144,
    (regnet.create_regnet, "y-800mf"): 6_432_512,
    (regnet.create_regnet, "y-1.6gf"): 11_202_430,
    (regnet.create_regnet, "y-3.2gf"): 19_436_338,
    (regnet.create_regnet, "y-8gf"): 39_381_472,
    (densenet.create_densenet, "121"): 7_978_856,
    (densenet.create_densenet, "161"): 28_681_000,
    (densenet.create_densenet, "169"): 14_149_480,
    (densenet.create_densenet, "201"): 20_013_928,
    (convnext.create_convnext, "tiny"): 28_589_128,
    (convnext.create_convnext, "small"): 50_223_688,
    (convnext.create_convnext, "base"): 88_591_464,
    (vit.create_vit, "vit-b16"): 86_567_656,
    (vit.create_vit, "vit-b32"): 88_224_232,
    (vit.create_vit, "vit-s16"): 22_050_664,
    (vit.create_vit, "deit-tiny"): 5_717_416,
    (vit.create_vit, "deit-base-distilled"): 87_338_192,
    (swin.create_swin, "tiny"): 28_288_354,
    (swin.create_swin, "small"): 49_606_258,
    (swin.create_swin, "base"): 87_768_224,
}
"""Of torchvision's and timm's documentation."""


@pytest.mark.one_in(4)
@pytest.mark.parametrize("create, size", PARAMETERS)
def test_usual_sizes_have_the_published_numbers_of_parameters(create, size):
    model, _ = built(create, 3, 1000, size)
    assert parameter_count(model) == PARAMETERS[create, size]


def test_sizes_of_language_models():
    model = ModelHelper("gpt2")
    gpt2.create_gpt2(model, "data", "small", "label")
    assert parameter_count(model) == 124_439_808
    assert len(operators(model, "Dropout")) == 1 + 3 * 12
    model = ModelHelper("bert")
    bert.create_bert(model, "data", 2, "base", "label", True, segments="segments")
    assert parameter_count(model) == 109_483_778
    assert not operators(model, "Dropout")


@pytest.mark.parametrize(
    "create, args, options, match",
    [
        (
            mobilenet.create_mobilenet_v2,
            (3, 5, "1x"),
            {},
            "must be one of 0.5x, .* got '1x'; did you mean .*'1.0x'",
        ),
        (mobilenet.create_mobilenet_v3, (3, 5, "medium"), {}, "size must be one of large, small"),
        (efficientnet.create_efficientnet, (3, 5, "b5"), {}, "size must be one of b0, b1"),
        (regnet.create_regnet, (3, 5, "z"), {}, "size must be one of x-400mf"),
        (densenet.create_densenet, (3, 5, "120"), {}, "size must be one of 121"),
        (convnext.create_convnext, (3, 5, "huge"), {}, "size must be one of tiny"),
        (vit.create_vit, (3, 5, "vit-b17"), {}, "size must be one of vit-s16, .* did you mean 'vit-b16'"),
        (vit.create_vit, (3, 5), {"image_size": 225}, "image_size must be a multiple of 16 pixels, got 225"),
        (swin.create_swin, (3, 5), {"image_size": 240}, "image_size must be a multiple of 224 pixels, got 240"),
        (unet.create_unet, (3, 5, (8,)), {}, "channels of two resolutions or more, got"),
        (gpt2.create_gpt2, ("tiny",), {}, "size must be one of small, medium"),
        (bert.create_bert, (2, "huge"), {"segments": "s"}, "size must be one of tiny, small, base, large"),
        (dlrm.create_dlrm, ([("i", "l")],), {}, "features must be indices and lengths for 8 tables, got 1"),
    ],
)
def test_refusals(create, args, options, match):
    model = ModelHelper("refused")
    with pytest.raises(ArgumentError, match=match):
        create(model, "data", *args, **options)
    assert not model.net.op_len


def test_shapes_are_known_before_a_run():
    for name in ("vit", "swin", "unet", "bert", "dlrm"):
        case, model = SMALL[name], ModelHelper(name)
        case.create(model, case.size, is_test=True)
        inputs = {
            k: v.astype("f") if v.dtype.kind == "f" else v for k, v in case.draw(np.random.default_rng(0), 2).items()
        }
        assert infer_shapes([model.param_init_net, model.net], inputs).shapes[case.scores][:2] in ((2, CLASSES), (2, 1))


@pytest.mark.parametrize(
    "create, size, options, skipping",
    [
        (efficientnet.create_efficientnet, "b0", {}, 9),
        (convnext.create_convnext, "tiny", {}, 17),
        (swin.create_swin, "tiny", {}, 22),
        (swin.create_swin, SMALL["swin"].size, {"image_size": 16}, 0),
        (swin.create_swin, SMALL["swin"].size, {"image_size": 16, "stochastic_depth": 0.5}, 4),
    ],
)
def test_samples_skip_blocks_in_training(create, size, options, skipping):
    model, _ = built(create, 3, 10, size, **options)
    ratios = [arguments(op)["ratio"] for op in operators(model, "Dropout") if op.output[0].endswith("survived_kept")]
    assert len(ratios) == skipping and ratios == sorted(ratios)
    model, _ = built(create, 3, 10, size, is_test=True, **options)
    assert not operators(model, "Dropout")


def test_gpt2_generates_a_token_a_step():
    """With a cache, what the whole net finds most likely."""
    case = SMALL["gpt2"]
    size, steps = case.size, 6

    def build(model, tokens, cache):
        return gpt2.create_gpt2(model, tokens, size, None, True, True, cache=cache)

    model, workspace = ModelHelper("gpt2"), Workspace(threads=1)
    scores = gpt2.create_gpt2(model, "data", size, None, True, True, steps=steps)
    workspace.run_net_once(model.param_init_net)
    for blob in map(str, model.params):
        workspace.feed(blob, fill(blob, workspace.fetch(blob).shape).astype(np.float32))
    found = Generator(workspace, build, length=size.length, batch=2)([[1, 2], [12, 0]], steps - 2)
    workspace.feed("data", found)
    workspace.run_net_once(model.net)
    assert (workspace.fetch(str(scores)).argmax(axis=2)[:, 1:-1] == found[:, 2:]).all()
