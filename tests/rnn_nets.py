"""Recurrent nets for tests: they are run once with their gradients, which are compared with those of a function."""

from __future__ import annotations

import numpy as np

from netbuilder.ops.core.operator import decode, spec_of
from netbuilder.ops.core.registry import find
from netbuilder.ops.recurrent.backward import BackwardPlan
from netbuilder.runtime import Workspace

__all__ = ["check_gradients", "close", "memory_between_steps", "trained", "weighted_sum"]


def close(got, want, rtol=2e-4, atol=2e-5):
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)


def weighted_sum(model, blob, slope="slope"):
    """Add a weighted sum of a blob's elements."""
    return model.net.SumElements(model.net.Mul([blob, slope]), "loss")


def trained(model, loss, inputs, seed=0):
    """Run the net with its backward pass; return the workspace and the values that went in."""
    workspace, rng = Workspace(threads=1), np.random.default_rng(seed)
    workspace.run_net_once(model.param_init_net)
    given = dict(inputs)
    for name in map(str, model.GetParams("")):
        given[name] = 0.5 * rng.normal(size=workspace.fetch(name).shape)
    model.AddGradientOperators([loss])
    for name, value in given.items():
        workspace.feed(name, np.asarray(value, np.int32 if np.asarray(value).dtype.kind == "i" else np.float32))
    workspace.create_net(model.net)
    workspace.run_net(model.net)
    return workspace, given


def check_gradients(model, workspace, given, function, names):
    """Compare gradients with central differences of a function of the same values in float64."""
    for name in names:
        found = workspace.fetch(str(model.grad_map[name]))
        value = np.array(given[name], np.float64)
        want = np.zeros(value.shape)
        for place in np.ndindex(value.shape):
            sides = []
            for move in (1e-5, -1e-5):
                moved = value.copy()
                moved[place] += move
                sides.append(function({**given, name: moved}))
            want[place] = (sides[0] - sides[1]) / 2e-5
        close(found, want.reshape(found.shape), rtol=1e-3, atol=2e-4)


def memory_between_steps(model, workspace):
    """Return the bytes that the first recurrent net stored for its gradient in a run, and those of its gradient."""
    op_def = next(op for op in model.net.Proto().op if op.type == "RecurrentNetworkGradient")
    plan = BackwardPlan(decode(find(op_def.type), op_def), [spec_of(workspace.fetch(name)) for name in op_def.input])
    return plan.forward.memory.nbytes, plan.arena.nbytes
