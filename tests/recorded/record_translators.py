"""Runs ``calls_translators.py`` and ``numbers_translators.py`` on Caffe2 and writes what came of it.

Needed only when calls change; run by a Python that has Caffe2 (the one inside PyTorch 1.10 did it) and networkx, with
``tests`` on its path. Files: ``translator_nets.json.gz`` and ``translator_numbers.npz``.
"""

import gzip
import json
import os
from types import SimpleNamespace

import numpy as np
from caffe2.python import core, workspace
from caffe2.python.models.seq2seq import beam_search, seq2seq_model_helper, train, translate

from recorded import calls_translators, numbers_translators
from recorded.calls_rnn import lines_of

HERE = os.path.dirname(os.path.abspath(__file__))
MODULES = SimpleNamespace(
    beam_search=beam_search,
    core=core,
    seq2seq_model_helper=seq2seq_model_helper,
    train=train,
    translate=translate,
    workspace=workspace,
)


def record(build):
    core.Net._net_names_used = set()
    return {part: lines_of(net, devices=True) for part, net in build(MODULES).items()}


def main():
    found = {name: record(build) for name, build in calls_translators.CALLS.items()}
    text = json.dumps(found, sort_keys=True).encode()
    with open(os.path.join(HERE, "translator_nets.json.gz"), "wb") as file:
        with gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
            packed.write(text)
    numbers = {
        f"{name}/{key}": value for name, run in numbers_translators.RUNS.items() for key, value in run(MODULES).items()
    }
    np.savez_compressed(os.path.join(HERE, "translator_numbers.npz"), **numbers)


if __name__ == "__main__":
    main()
