"""The recorded calls make the recurrent nets here that they made on Caffe2, but for the differences listed."""

import difflib
import functools
import gzip
import importlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from netbuilder.graph import reset_names
from recorded.calls_rnn import CALLS, lines_of
from recorded.numbers_rnn import NETS, numbers_of

MODULES = ("workspace", "core", "model_helper", "rnn_cell", "gru_cell", "recurrent", "attention", "crf", "crf_predict")
SEQ2SEQ = ("seq2seq_util", "seq2seq_model_helper")

# What differs, in how many lines, and why.
_RESIDUAL = "a layer whose output has a residual keeps the gradient of its own hidden state, which Caffe2's loses"
_PLAIN = "the plain cell names its state alike whether states are dropped or not, and has a gradient"
_AGAIN = "all that the gates of a multiplicative cell are made of is computed again, where Caffe2 keeps the parts"
JUSTIFIED = {
    "cells_residual": (_RESIDUAL, 6),
    "milstm_computed_again": (_AGAIN, 7),
    "rnn_forward": (_PLAIN, 9),
}


@functools.cache
def recorded():
    return json.loads(gzip.decompress((Path(__file__).parent / "rnn_nets.json.gz").read_bytes()))


@functools.cache
def compatibility_layer():
    names = [*MODULES, *(f"models.seq2seq.{name}" for name in SEQ2SEQ)]
    loaded = {name.rpartition(".")[2]: importlib.import_module(f"netbuilder.caffe2.python.{name}") for name in names}
    return SimpleNamespace(**loaded)


def in_order(lines):
    """The sums of shares of one operator's gradients, which Caffe2 adds in no fixed order, sorted; and the others."""
    sums = [line for line in lines if line.lstrip().startswith("Sum ") and "_autosplit_" in line]
    return sorted(sums), [line for line in lines if line not in set(sums)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CALLS)
def test_nets_are_those_of_caffe2(name):
    reset_names()
    model, want = CALLS[name](compatibility_layer()), recorded()[name]
    found = {"init": lines_of(model.param_init_net.Proto()), "main": lines_of(model.net.Proto())}
    assert [str(p) for p in model.GetParams("")] == want["params"]
    changed = [
        line
        for part in found
        for one, other in zip(in_order(want[part]), in_order(found[part]))
        for line in difflib.unified_diff(one, other, lineterm="", n=0)
        if line[:1] in "+-" and line[:3] not in ("+++", "---")
    ]
    reason, count = JUSTIFIED.get(name, ("", 0))
    assert len(changed) == count, "\n".join([reason, *changed])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", NETS)
def test_losses_and_gradients_are_those_of_caffe2(name):
    with np.load(Path(__file__).parent / "rnn_numbers.npz") as stored:
        want = {key.partition("/")[2]: stored[key] for key in stored.files if key.startswith(f"{name}/")}
    found = numbers_of(compatibility_layer(), name)
    assert found.keys() == want.keys()
    for key, value in want.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-5 * np.abs(value).max(), err_msg=key)
