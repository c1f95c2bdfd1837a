"""The recorded calls make the recurrent nets here that they made on Caffe2, but for the differences listed."""

import difflib
import functools
import gzip
import importlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from netbuilder.graph import reset_names
from recorded.calls_rnn import CALLS, lines_of

MODULES = ("core", "model_helper", "rnn_cell", "gru_cell", "recurrent", "attention")
SEQ2SEQ = ("seq2seq_util", "seq2seq_model_helper")

# What differs, in how many lines, and why.
_ORDER = "gradients that one operator adds shares to are summed in another order"
_RESIDUAL = "a layer whose output has a residual keeps the gradient of its own hidden state, which Caffe2's loses"
_PLAIN = "the plain cell names its state alike whether states are dropped or not, and has a gradient"
JUSTIFIED = {
    "lstm_written_out": (_ORDER, 2),
    "gru_written_out": (_ORDER, 4),
    "translator_recurrent": (_ORDER, 2),
    "cells_residual": (_RESIDUAL, 6),
    "rnn_forward": (_PLAIN, 9),
}


@functools.cache
def recorded():
    return json.loads(gzip.decompress((Path(__file__).parent / "rnn_nets.json.gz").read_bytes()))


@functools.cache
def face():
    names = [*MODULES, *(f"models.seq2seq.{name}" for name in SEQ2SEQ)]
    loaded = {name.rpartition(".")[2]: importlib.import_module(f"netbuilder.caffe2.python.{name}") for name in names}
    return SimpleNamespace(**loaded)


@pytest.mark.parametrize("name", CALLS)
def test_nets_are_those_of_caffe2(name):
    reset_names()
    model, want = CALLS[name](face()), recorded()[name]
    found = {"init": lines_of(model.param_init_net.Proto()), "main": lines_of(model.net.Proto())}
    assert [str(p) for p in model.GetParams("")] == want["params"]
    changed = [
        line
        for part in found
        for line in difflib.unified_diff(want[part], found[part], lineterm="", n=0)
        if line[:1] in "+-" and line[:3] not in ("+++", "---")
    ]
    reason, count = JUSTIFIED.get(name, ("", 0))
    assert len(changed) == count, "\n".join([reason, *changed])
