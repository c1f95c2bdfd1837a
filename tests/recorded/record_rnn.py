"""Runs ``calls_rnn.py`` and ``numbers_rnn.py`` on Caffe2 and writes ``rnn_nets.json.gz`` and ``rnn_numbers.npz``.

Needed only when calls change; run by a Python that has Caffe2 (the one inside PyTorch 1.10 did it).
"""

import gzip
import json
import os
from types import SimpleNamespace

import calls_rnn
import numbers_rnn
import numpy as np
from caffe2.python import attention, core, crf, crf_predict, gru_cell, model_helper, recurrent, rnn_cell, workspace
from caffe2.python.models.seq2seq import seq2seq_model_helper, seq2seq_util

HERE = os.path.dirname(os.path.abspath(__file__))
MODULES = SimpleNamespace(
    attention=attention,
    core=core,
    crf=crf,
    crf_predict=crf_predict,
    gru_cell=gru_cell,
    model_helper=model_helper,
    recurrent=recurrent,
    rnn_cell=rnn_cell,
    seq2seq_model_helper=seq2seq_model_helper,
    seq2seq_util=seq2seq_util,
    workspace=workspace,
)


def record(build):
    core.Net._net_names_used = set()
    model = build(MODULES)
    return {
        "init": calls_rnn.lines_of(model.param_init_net.Proto()),
        "main": calls_rnn.lines_of(model.net.Proto()),
        "params": [str(parameter) for parameter in model.GetParams("")],
    }


def main():
    found = {name: record(build) for name, build in calls_rnn.CALLS.items()}
    text = json.dumps(found, sort_keys=True).encode()
    with open(os.path.join(HERE, "rnn_nets.json.gz"), "wb") as file:
        with gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
            packed.write(text)
    numbers = {
        f"{name}/{key}": value
        for name in numbers_rnn.NETS
        for key, value in numbers_rnn.numbers_of(MODULES, name).items()
    }
    np.savez_compressed(os.path.join(HERE, "rnn_numbers.npz"), **numbers)


if __name__ == "__main__":
    main()
