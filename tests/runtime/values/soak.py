"""Run a net on new shapes, or new nets, again and again; print the memory of the process after each tenth.

``python soak.py shapes 10000`` and ``python soak.py nets 1000`` take some minutes; run by test_memory.py.
A third argument bounds the bytes of primitives that are kept, so that short runs reach their level.
"""

import gc
import sys
import time

import numpy as np

from netbuilder.engines.onednn import primitive
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace

SIDES = 100  # heights and widths, each from 8 on
PRIME = 7919  # spreads the shapes, so that large ones do not come last


def net(name):
    """A small net for images: convolution, pooling, a layer over all, and gradients of the last two operators."""
    made = NetDef(name=name, external_input=["x", "w", "b", "cw", "cb", "label"])
    made.op.extend([
        make_op("Conv", ["x", "cw", "cb"], ["c"], kernel=3, pad=1),
        make_op("Relu", ["c"], ["r"]),
        make_op("MaxPool", ["r"], ["p"], kernel=2, stride=2),
        make_op("AveragePool", ["p"], ["g"], global_pooling=True),
        make_op("FC", ["g", "w", "b"], ["f"]),
        make_op("Softmax", ["f"], ["s"]),
        make_op("LabelCrossEntropy", ["s", "label"], ["loss"]),
        make_op("SoftmaxGradient", ["s", "s"], ["f_grad"]),
        make_op("FCGradient", ["g", "w", "f_grad"], ["w_grad", "b_grad", "g_grad"]),
    ])  # fmt: skip
    return made


def feed(workspace, index):
    place = index * PRIME % SIDES**2
    workspace.feed("x", np.zeros((1, 3, 8 + place % SIDES, 8 + place // SIDES), np.float32))


def shapes(workspace, index):
    """Run one net on a shape that it has not seen."""
    if not workspace.nets():
        workspace.create_net(net("net"))
    feed(workspace, index)
    workspace.run_net("net")


def nets(workspace, index):
    """Create, run and delete a net, on one of a hundred shapes."""
    feed(workspace, index % 100)
    workspace.create_net(net(f"net {index}"))
    workspace.run_net(f"net {index}")
    workspace.delete_net(f"net {index}")


def resident():
    """Return the memory of the process in MiB."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


def main(kind, count, kept=None):
    """Do ``count`` rounds; print the memory after each tenth, then after ``reset``."""
    if kept is not None:
        primitive._KEPT_BYTES = int(kept)
    workspace, rng = Workspace(threads=2), np.random.default_rng(0)
    for name, shape in {"w": (10, 16), "b": (10,), "cw": (16, 3, 3, 3), "cb": (16,)}.items():
        workspace.feed(name, rng.standard_normal(shape, dtype=np.float32))
    workspace.feed("label", np.zeros(1, np.int32))
    began, step = time.monotonic(), max(1, int(count) // 10)
    for index in range(int(count)):
        {"shapes": shapes, "nets": nets}[kind](workspace, index)
        if (index + 1) % step == 0:
            print(f"{index + 1} {resident():.1f} MiB, {time.monotonic() - began:.0f} s", flush=True)
    workspace.reset()
    gc.collect()
    print(f"reset {resident():.1f} MiB")


if __name__ == "__main__":
    main(*sys.argv[1:])
