"""The compatibility layer's functions take Caffe2's parameters, in its order, or the reason why not is written down.

``data/signatures.json`` has the facts of Caffe2, see ``record_signatures.py``.
"""

import ast
import functools
import importlib
import inspect
import json
from pathlib import Path

import pytest

from golden_cases import failures
from netbuilder.caffe2.missing_names import REASONS, reason_of

RECORDED = json.loads((Path(__file__).parent / "data" / "signatures.json").read_text())
MODULES = RECORDED["python"]

# Recorded in a build without GPUs, where these are functions that return None.
WITHOUT_GPUS = {"workspace.GetDeviceProperties", "workspace.GetGPUMemoryInfo"}

# Default values that differ from Caffe2's, and why.
OTHER_DEFAULTS = {
    "data_parallel_model.Parallelize": ("barrier_net_timeout_sec", "300, unless another limit was asked for"),
    "data_parallel_model.Parallelize_BMUF": ("barrier_net_timeout_sec", "likewise"),
    "modeling.parameter_info.ParameterInfo.__init__": ("length", "one key names one entry"),
}


def functions():
    """(name, recorded signature) of every function and method."""
    for module, facts in MODULES.items():
        for name, signature in facts["functions"].items():
            yield f"{module}.{name}", signature
        for cls, members in facts["classes"].items():
            for name, signature in members.items():
                yield f"{module}.{cls}.{name}", signature


def names():
    """Every recorded name, classes and values too, without "caffe2."."""
    for module, facts in MODULES.items():
        yield f"python.{module}"
        yield from (f"python.{module}.{name}" for name in [*facts["values"], *facts["classes"]])
    yield from (f"python.{name}" for name, _ in functions())
    for module, members in RECORDED["proto"].items():
        yield from (f"proto.{module}.{name}" for name in members)


@functools.cache
def found(name):
    """The object that the compatibility layer has under a name; None if it has none."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(["netbuilder.caffe2", *parts[:length]]))
        except ImportError:
            continue
        for part in parts[length:]:
            if not hasattr(value, part):
                return None
            value = inspect.getattr_static(value, part) if inspect.isclass(value) else getattr(value, part)
        return value
    return None


def recorded_parameters(signature):
    """(name, default as text or None) of the positional parameters, and whether others are accepted."""
    arguments = ast.parse(f"def f{signature}: pass").body[0].args
    defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + [*map(ast.unparse, arguments.defaults)]
    positional = list(zip([argument.arg for argument in arguments.args], defaults))
    return positional, arguments.vararg is not None, arguments.kwarg is not None


def own_parameters(function):
    if isinstance(function, (classmethod, staticmethod)):
        function = function.__func__
    return list(inspect.signature(function).parameters.values())


@functools.cache
def present():
    """The recorded functions and methods that the compatibility layer has, by module: name to name and signature."""
    by_module = {module: {} for module in MODULES}
    for name, signature in functions():
        if signature and name not in WITHOUT_GPUS and found(f"python.{name}") is not None:
            module = max((m for m in MODULES if name.startswith(f"{m}.")), key=len)
            by_module[module][name] = (name, signature)
    return by_module


def test_most_functions_are_there():
    assert sum(map(len, present().values())) > 1000


@pytest.mark.parametrize("module", MODULES)
def test_parameters(module):
    assert failures(check_parameters, present()[module]) == {}


def check_parameters(name, signature):
    want, any_place, any_name = recorded_parameters(signature)
    ours = own_parameters(found(f"python.{name}"))
    if want and want[0][0] == "cls" and (not ours or ours[0].name != "cls"):
        want = want[1:]  # a static method is called in the same way as a class method
    places = [p for p in ours if p.kind is p.POSITIONAL_OR_KEYWORD]
    if any_place:  # Caffe2 passes everything on, so any parameters here are right
        assert [p.name for p in places[: len(want)]] == [name for name, _ in want]
        return
    assert [p.name for p in places[: len(want)]] == [name for name, _ in want]
    for parameter, (_, default) in zip(places, want):
        if default is None:
            continue  # what Caffe2 must be given may have a default here
        own = None if parameter.default is parameter.empty else repr(parameter.default)
        if default == "..." or OTHER_DEFAULTS.get(name, ("",))[0] == parameter.name:
            assert own is not None
        else:
            assert own == default, parameter
    kinds = {p.kind for p in ours}
    further = places[len(want) :]
    assert not further or any_name, f"parameters that Caffe2 lacks are keywords: {further}"
    assert not any_name or further or inspect.Parameter.VAR_KEYWORD in kinds, "further keywords are taken, too"


def test_what_is_missing_has_a_reason():
    missing = [name for name in names() if found(name) is None]
    assert [name for name in missing if not reason_of(name)] == []


def test_what_has_a_reason_is_missing():
    assert [name for name in REASONS if found(name) is not None] == []


def test_the_table_knows_our_differences():
    for name, (parameter, _) in OTHER_DEFAULTS.items():
        want, _, _ = recorded_parameters(dict(functions())[name])
        ours = {p.name: p.default for p in own_parameters(found(f"python.{name}"))}
        assert repr(ours[parameter]) != dict(want)[parameter]
