"""Nets of the zoo trained with the plan's optimizations on and off: the same to the bit, or within the stated bound."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from netbuilder.engines import onednn
from netbuilder.model import ModelHelper
from netbuilder.optimizers import build_sgd
from netbuilder.runtime import Workspace
from netbuilder.runtime.plan.optimizations import OPTIMIZATIONS, Optimization, Switch
from netbuilder.zoo import (
    create_alexnet,
    create_inception_v1,
    create_lenet,
    create_mlp,
    create_resnet,
    create_resnet_cifar,
    create_resnext,
    create_vgg,
)
from switches import single
from zoo_models import create_small_inception, create_small_resnext

pytestmark = pytest.mark.skipif(not onednn.available(), reason="needs oneDNN")

CLASSES = 7
AMPLIFIED = 30  # times as far as the rounding of the input moves a net, but at most
CHAOS = 0.5
BFLOAT16 = 0.02

# Name -> the builder, its arguments after the data, its options, shape of the input. A block of each kind is in one of
# the first two groups; the large nets repeat them, and tests of these are slow. ResNet-50 has the blocks of the last
# one, with one group and eight times the parameters.
SMALL = {
    "mlp": (create_mlp, ([48, 20, CLASSES],), {}, (4, 3, 4, 4)),
    "lenet": (create_lenet, (1, CLASSES), {}, (2, 1, 28, 28)),
    "alexnet": (create_alexnet, (3, CLASSES), {"hidden": 16, "image_size": 67}, (2, 3, 67, 67)),
    "resnet8": (create_resnet_cifar, (3, CLASSES, 8), {}, (4, 3, 16, 16)),
}
JOINED = {
    "small_inception": (create_small_inception, (3, CLASSES), {}, (2, 3, 64, 64)),
    "small_inception_bn": (create_small_inception, (3, CLASSES), {"batch_norm": True}, (2, 3, 64, 64)),
    "small_resnext": (create_small_resnext, (3, CLASSES, 50, 8, 4), {}, (2, 3, 64, 64)),
}
LARGE = {
    "alexnet_one_tower": (create_alexnet, (3, CLASSES), {"hidden": 16, "image_size": 67, "towers": 1}, (2, 3, 67, 67)),
    "vgg11": (create_vgg, (3, CLASSES, 11), {"hidden": 16, "image_size": 32, "batch_norm": True}, (2, 3, 32, 32)),
    "inception_v1": (create_inception_v1, (3, CLASSES), {"image_size": 64}, (2, 3, 64, 64)),
    "inception_bn": (create_inception_v1, (3, CLASSES), {"image_size": 64, "batch_norm": True, "lrn": False},
                     (2, 3, 64, 64)),
    "resnet18": (create_resnet, (3, CLASSES, 18), {}, (2, 3, 64, 64)),
    "resnext50": (create_resnext, (3, CLASSES, 50, 8, 4), {}, (2, 3, 64, 64)),
}  # fmt: skip
ALL = {**SMALL, **JOINED, **LARGE}

# What concerns step nets, which no net of the zoo has, is switched off in tests/ops/recurrent/test_network.py.
CONCERNED = [each for each in OPTIMIZATIONS.values() if not each.name.startswith("step_")]
EXACT = [each for each in CONCERNED if each.bound == 0]
ROUNDED = [each for each in CONCERNED if each.bound > 0]
# A pool after a pool whose windows overlap: positive elements of its windows are equal, see ``kept_maxima``.
POOLS_OF_POOLS = tuple(name for name in ALL if "inception" in name)


@dataclass
class Case:
    """A net with its gradient and update, where it starts, and its input."""

    model: ModelHelper
    start: dict[str, Any]
    data: Any
    label: Any
    always: tuple[Optimization, ...]

    def train(self, *without: Switch, data: Any = None, steps: int = 2, **options: Any) -> dict[str, Any]:
        """Return all blobs that the init net made, after some steps."""
        workspace = Workspace(threads=1, seed=1)
        for name, value in {**self.start, "data": self.data if data is None else data, "label": self.label}.items():
            workspace.feed(name, value)
        options.setdefault("observable", "outputs")
        net = workspace.create_net(self.model.net, without=[*self.always, *without], **options)
        workspace.run_net(net, steps)
        return {name: workspace.fetch(name) for name, value in self.start.items() if isinstance(value, np.ndarray)}

    def distance(self, got: dict[str, Any], want: dict[str, Any]) -> float:
        """Return how far apart the results are, as a share of how far they moved from the start."""
        names = [name for name, value in want.items() if value.dtype == np.float32]
        apart = sum(np.square(got[n].astype("d") - want[n]).sum() for n in names)
        moved = sum(np.square(want[n].astype("d") - self.start[n]).sum() for n in names)
        return float(np.sqrt(apart / moved))


def allowed(bound: float, moved: float) -> float:
    """Return the tolerance for results: a net may amplify rounding errors; see ``reference``."""
    return bound + min(AMPLIFIED * moved, CHAOS) if bound else 0.0


@functools.lru_cache(2)
def case_of(name: str) -> Case:
    create, args, options, shape = ALL[name]
    model = ModelHelper(name, arg_scope={"order": "NCHW"})
    _, loss = create(model, "data", *args, label="label", **options)
    model.AddGradientOperators([loss])
    build_sgd(model, 1e-4, momentum=0.9)  # small, so that the second step does not amplify what the first one rounds
    workspace, rng = Workspace(threads=1, seed=1), np.random.default_rng(0)
    workspace.run_net_once(model.param_init_net)
    start = {blob: workspace.fetch(blob) for blob in workspace.blobs()}
    data = rng.normal(size=shape).astype(np.float32)
    always = single("kept_maxima") if name in POOLS_OF_POOLS else ()
    return Case(model, start, data, rng.integers(0, CLASSES, shape[0]).astype(np.int32), always)


@functools.lru_cache(4)
def reference(name: str, dtype: str = "float32") -> tuple[dict[str, Any], float]:
    """Return the results with everything on, and how far they move if each element of the input is rounded away."""
    case = case_of(name)
    want = case.train(dtype=dtype)
    moved = case.train(dtype=dtype, data=np.nextafter(case.data, np.float32(np.inf)))
    return want, case.distance(moved, want)


def assert_same(got: dict[str, Any], want: dict[str, Any]) -> None:
    for blob, value in want.items():
        np.testing.assert_array_equal(got[blob], value, err_msg=blob)


# What changes nothing in AlexNet is off all at once in the next test; one by one, that is slow.
@pytest.mark.parametrize(
    "name, without",
    [
        pytest.param(name, each, marks=[pytest.mark.slow] * (name == "alexnet" and each in EXACT))
        for name in SMALL
        for each in CONCERNED
    ],
)
@pytest.mark.one_in(12)
def test_each_in_turn(name, without):
    case, (want, moved) = case_of(name), reference(name)
    got = case.train(without)
    if without.bound == 0:
        assert_same(got, want)
    assert case.distance(got, want) <= allowed(without.bound, moved)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", [*SMALL, *JOINED, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)])
def test_several_at_once(name):
    """Without all that change nothing, the same to the bit; without any, within the bound."""
    case, (want, moved) = case_of(name), reference(name)
    assert_same(case.train(*EXACT), want)
    bound = max(each.bound for each in OPTIMIZATIONS.values())
    assert case.distance(case.train("all"), want) <= allowed(bound, moved)


@pytest.mark.parametrize(
    "name, without",
    [
        pytest.param(name, each, marks=[pytest.mark.slow] * (name in LARGE))
        for name in ("small_inception", "small_resnext", "inception_v1", "resnet18")
        for each in ROUNDED
        if each.name != "kept_maxima"
    ],
)
@pytest.mark.one_in(48)
def test_what_rounds_otherwise_in_nets_with_joins(name, without):
    case, (want, moved) = case_of(name), reference(name)
    assert case.distance(case.train(without), want) <= allowed(without.bound, moved)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["lenet", "resnet8"])
def test_several_in_bfloat16(name):
    case, want = case_of(name), reference(name, "bfloat16")[0]
    assert_same(case.train(*EXACT, dtype="bfloat16"), want)
    assert case.distance(case.train("all", dtype="bfloat16"), want) <= BFLOAT16


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lenet", pytest.param("resnet8", marks=pytest.mark.slow)])
def test_each_in_bfloat16(name):
    case, want = case_of(name), reference(name, "bfloat16")[0]
    for without in CONCERNED:
        got = case.train(without, dtype="bfloat16")
        if without.bound == 0:
            assert_same(got, want)
        assert case.distance(got, want) <= BFLOAT16, without


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["lenet", "resnet8"])
def test_every_blob_observable(name):
    case, (want, _) = case_of(name), reference(name)
    for without in ((), EXACT):
        assert_same(case.train(*without, observable=None), case.train(observable=None))
    assert case.distance(case.train(observable=None), want) <= max(each.bound for each in OPTIMIZATIONS.values())
