"""A right command line for each command, and a folder with the files that they read."""

import contextlib
import os
import shutil
import struct
from pathlib import Path

import numpy as np

from image_cases import make_folder
from netbuilder.exchange import save_predictor
from netbuilder.model import ModelHelper, brew
from netbuilder.runtime import Workspace
from netbuilder.tools import simulate, speed_page

__all__ = ["FAILING", "VALID", "folder_of_lines"]

NET = ["net.pb", "--init=init.pb", "--input=data=1x3x8x8"]
VALID = {
    "benchmark": ["build", "--devices=1"],
    "char_lm": ["book.txt", "--export=lm", "--epochs=1", "--batch=2", "--steps=5", "--hidden=4"],
    "check": NET,
    "compare": ["--net=net.pb", *NET[1:], "--against=numpy", "--steps=1"],
    "compile_kernels": [],
    "draw": [*NET, "--output=net.html"],
    "evaluate_predictor": ["predictor", "--data=images", "--crop=8"],
    "extract_predictor_net": [
        "net.pb", "--parameters=init.pb", "--inputs=data", "--outputs=softmax", "--output-dir=again",
    ],
    "fetch_cifar10": ["cifar", "--archive=book.txt"],
    "imagenet_trainer": ["--cpu", "--model=mlp", "--data=set.npz", "--batch=4", "--epochs=1"],
    "launch": ["program.py"],
    "make_db": ["images", "made.minidb", "--replace"],
    "onednn_interface": ["interface.py"],
    "operator_methods": ["stub.pyi"],
    "operators_page": ["page.md"],
    "predict": ["predictor", "photo.jpg"],
    "doctor": [],
    "preflight": ["--timeout=2"],
    "profile": [*NET, "--runs=1", "--warmup=1"],
    "prove": ["--models=dense", "--optimizers=SGD", "--devices=1", "--steps=1"],
    "seq2seq": ["reverse", "--length=2", "--steps=1", "--batch=2", "--units=4", "--questions=1"],
    "simulate": ["step.json", "--devices=1"],
    "speed_page": ["pages"],
}  # fmt: skip
"""For each command a line that is right, with its arguments first, and small."""

FAILING = ("compile_kernels", "fetch_cifar10")  # their lines are not right: they need NVRTC, and the network


@contextlib.contextmanager
def folder_of_lines(folder):
    """Make ``folder`` the current one, with what the lines in VALID read."""
    old = os.getcwd()
    os.chdir(folder)
    Path("pages").mkdir()
    places = [f"<!-- table {name} -->\n\n<!-- end of {name} -->\n" for name in speed_page.TABLES]
    Path("pages", "speed.md").write_text("\n".join(places))
    model = ModelHelper(name="small", arg_scope={"order": "NCHW"})
    brew.conv(model, "data", "conv", dim_in=3, dim_out=2, kernel=3)
    brew.softmax(model, brew.fc(model, "conv", "scores", dim_in=2 * 6 * 6, dim_out=2), "softmax")
    workspace = Workspace()
    workspace.run_net_once(model.param_init_net)
    save_predictor(
        "predictor", model.net, list(model.GetParams()), inputs=["data"], outputs=["softmax"], workspace=workspace,
        shapes={"data": (1, 3, 8, 8)},
    )  # fmt: skip
    shutil.copy("predictor/predict_net.pb", "net.pb")
    shutil.copy("predictor/init_net.pb", "init.pb")
    images = make_folder(folder / "images", ("cat", "dog"), 4)
    shutil.copy(next((images / "cat").iterdir()), "photo.jpg")
    rng = np.random.default_rng(0)
    np.savez("set.npz", images=rng.integers(0, 255, (12, 8, 8, 3)).astype(np.uint8), labels=np.arange(12) % 2)
    Path("book.txt").write_text("in the beginning " * 20)
    Path("pixels").write_bytes(struct.pack(">BBBB3I", 0, 0, 8, 3, 4, 8, 8) + bytes(4 * 8 * 8))
    Path("program.py").write_text("print(1)\n")
    assert simulate.main(["lenet", "--batch=2", "--runs=1", "--devices=1", "--save=step.json"]) == 0
    try:
        yield folder
    finally:
        os.chdir(old)
