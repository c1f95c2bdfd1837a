"""Asks cuDNN which graphs it has kernels for on an H100; run as a program of its own, without a GPU.

``python cudnn_program.py RECIPES PROPERTIES`` reads pickled recipes, and the properties of a GPU as JSON, and prints a
JSON object: the library's version, for each recipe how many plans cuDNN proposes, 0 if it supports none, and whether it
supports one that gives the same bits in each run. The program needs a library in the place of the driver
(``libcuda.c``), which the dynamic linker must find first. Plans are not built: that takes cuDNN seconds for each kernel
that it compiles.
"""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

from netbuilder.ops.engines.cudnn import library
from netbuilder.ops.engines.cudnn.compiled import compile_graph


def main() -> None:
    recipes = pickle.loads(Path(sys.argv[1]).read_bytes())
    cudnn = library.cudnn()
    gpu = cudnn.create_device_properties(Path(sys.argv[2]).read_text())
    plans, repeatable = [], []
    for recipe in recipes:
        builder = compile_graph(recipe, device_property=gpu)
        plans.append(0 if builder is None else int(builder.graph.get_execution_plan_count()))
        repeatable.append(compile_graph(recipe, deterministic=True, device_property=gpu) is not None)
    print(json.dumps({"version": library.version(), "plans": plans, "repeatable": repeatable}))


if __name__ == "__main__":
    main()
