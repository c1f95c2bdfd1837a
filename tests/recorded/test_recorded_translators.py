"""The recorded calls build the same nets of translators as on Caffe2, with the same results, except as listed."""

import difflib
import functools
import gzip
import importlib
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from netbuilder.caffe2.python import workspace
from netbuilder.graph import reset_names
from recorded.calls_rnn import lines_of
from recorded.calls_translators import CALLS
from recorded.numbers_translators import RUNS

MODULES = ("core", "workspace")
SEQ2SEQ = ("beam_search", "seq2seq_model_helper", "train", "translate")

# What differs, in how many lines, and why.
JUSTIFIED = {
    "trainer_on_gpus": ("first states are parameters that are not trained, and handed round as such", 4),
    "decoder_without_attention": ("states that no layer of the decoder begins with are not repeated", 2),
    "decoders_of_both_kinds": ("the zeros in place of an attention have the shape of the others' weights", 3),
}


@pytest.fixture(autouse=True)
def _fresh():
    reset_names()
    yield
    workspace.ResetWorkspace()


@functools.cache
def recorded():
    return json.loads(gzip.decompress((Path(__file__).parent / "translator_nets.json.gz").read_bytes()))


@functools.cache
def compatibility_layer():
    names = [*MODULES, *(f"models.seq2seq.{name}" for name in SEQ2SEQ)]
    loaded = {name.rpartition(".")[2]: importlib.import_module(f"netbuilder.caffe2.python.{name}") for name in names}
    return SimpleNamespace(**loaded)


def outer(line):
    """A line without what a net for evaluation does without here: steps of a backward pass."""
    return line.partition(" > ")[0] if line.startswith("RecurrentNetwork ") else line


def compared(part, lines):
    """The lines without what differs on purpose.

    - The factor of all steps is computed once here, on Caffe2 for each parameter.
    - The operator of a search names all that its steps read; Caffe2's steps see the whole workspace.
    - Nets for evaluation have no backward pass here.
    - Init nets of replicas copy in no fixed order on Caffe2.
    """
    if part == "init":
        copies = [line for line in lines if line.startswith("Copy ")]
        lines = [*(line for line in lines if line not in copies), *sorted(copies)]
    lines = [re.sub(r"(> start_time .*)value=\S+|rnn_executor_debug=0 ?", r"\1", line) for line in lines]
    once = dict.fromkeys(lines)
    found = list(once) if part == "main" and any(line.startswith("Negative ") for line in lines) else lines
    if part == "forward":
        found = [outer(line) for line in found if not line.startswith(" ")]
    return [re.sub(r"^(RecurrentNetwork beam_search_fake_input)\S+", r"\1", line) for line in found]


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore:GPUs .* are not on this machine")
@pytest.mark.parametrize("name", CALLS)
def test_nets_are_those_of_caffe2(name):
    found = {part: lines_of(net, devices=True) for part, net in CALLS[name](compatibility_layer()).items()}
    changed = []
    for part, lines in recorded()[name].items():
        one, other = compared(part, lines), compared(part, found[part])
        changed += [
            line
            for line in difflib.unified_diff(one, other, lineterm="", n=0)
            if line[:1] in "+-" and line[:3] not in ("+++", "---")
        ]
    reason, count = JUSTIFIED.get(name, ("", 0))
    assert len(changed) == count, "\n".join([reason, *changed])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", RUNS)
def test_numbers_are_those_of_caffe2(name):
    with np.load(Path(__file__).parent / "translator_numbers.npz") as stored:
        want = {key.partition("/")[2]: stored[key] for key in stored.files if key.startswith(f"{name}/")}
    found = RUNS[name](compatibility_layer())
    assert found.keys() == want.keys()
    for key, value in want.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-5, err_msg=key)
