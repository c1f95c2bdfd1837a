"""Asks cuDNN which graphs it has kernels for on an H100; run as a program of its own, without a GPU.

``python cudnn_program.py RECIPES PROPERTIES`` reads pickled recipes, and the properties of a GPU as JSON, and prints a
JSON object: the library's version, and for each recipe how many plans cuDNN proposes, 0 if it supports none. The
program needs a library in the place of the driver (``libcuda.c``), which the dynamic linker must find first. Plans are
not built: that takes cuDNN seconds for each kernel that it compiles.
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
    found = []
    for recipe in recipes:
        builder = compile_graph(recipe, device_property=gpu)
        found.append(0 if builder is None else int(builder.graph.get_execution_plan_count()))
    print(json.dumps({"version": library.version(), "plans": found}))


if __name__ == "__main__":
    main()
