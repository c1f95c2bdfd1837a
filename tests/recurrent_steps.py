"""Shared by tests of RecurrentNetwork: a hand-written step net, its reference, and a net with it and its gradient."""

import numpy as np

from netbuilder.graph.gradients import differentiate
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace

STEPS, SAMPLES, WIDTH = 4, 3, 2


def tanh_step(*more):
    """h = tanh(x + h_prev W^T + b)."""
    return NetDef(
        name="step",
        op=[
            make_op("FC", ["h_prev", "w", "b"], ["s"], axis=2),
            make_op("Sum", ["s", "x"], ["s"]),
            make_op("Tanh", ["s"], ["h"]),
            *more,
        ],
    )


def recurrent(step, *, inputs=("seq", "h0", "w", "b"), outputs=("all", "last", "work"), **args):
    given = {
        "step_net": step,
        "recurrent_states": ["states"],
        "initial_recurrent_state_ids": [1],
        "link_internal": ["h_prev", "h", "x"],
        "link_external": ["states", "states", "seq"],
        "link_offset": [0, 1, 0],
        "alias_src": ["states", "states"],
        "alias_dst": ["all", "last"],
        "alias_offset": [1, -1],
        "outputs_with_grads": [0, 1],
        **args,
    }
    return make_op("RecurrentNetwork", inputs, outputs, **given)


def values(seed=0, dtype=np.float64):
    r = np.random.default_rng(seed)
    shapes = {"seq": (STEPS, SAMPLES, WIDTH), "h0": (1, SAMPLES, WIDTH), "w": (WIDTH, WIDTH), "b": (WIDTH,)}
    return {name: r.normal(size=shape).astype(dtype) for name, shape in shapes.items()}


def reference(v):
    h, found = v["h0"].reshape(-1, SAMPLES, WIDTH)[-1] if v["h0"].ndim > 1 else v["h0"], []
    for x in v["seq"]:
        h = np.tanh(x + h @ v["w"].T + v["b"])
        found.append(h)
    return np.stack(found)


def run(ops, feeds, engines=None, **options):
    workspace = Workspace(engines=engines, threads=1, **options)
    for name, value in feeds.items():
        workspace.feed(name, value)
    net = NetDef(name="outer", op=ops, external_input=list(feeds))
    workspace.create_net(net)
    workspace.run_net("outer")
    workspace.run_net("outer")  # a replay gives the same
    return workspace


def with_gradient(op, d_outputs):
    """The operators of a net of ``op`` and its gradient, and where the gradients are."""
    net = NetDef(name="outer", op=[op], external_input=list(op.input))
    done = differentiate(net, d_outputs)
    return [op, *done.net.op], done.gradients
