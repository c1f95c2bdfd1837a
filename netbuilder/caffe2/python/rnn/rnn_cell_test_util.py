"""Reference functions for tests of recurrent cells, and a net of a recurrent layer with random inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.python import workspace
from netbuilder.caffe2.python.model_helper import ModelHelper
from netbuilder.graph import NameScope, Net

__all__ = ["sigmoid", "tanh"]

Array = np.ndarray[Any, Any]

__getattr__ = names_of(__name__)


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + np.exp(-x))


def tanh(x: Any) -> Any:
    """Return 2 sigmoid(2x) - 1."""
    return 2.0 * sigmoid(2.0 * x) - 1


def _prepare_rnn(
    t: int,
    n: int,
    dim_in: int,
    create_rnn: Callable[..., Any],
    outputs_with_grads: Sequence[int],
    forget_bias: float,
    memory_optim: bool = False,
    forward_only: bool = False,
    drop_states: bool = False,
    T: int | None = None,
    two_d_initial_states: bool | None = None,
    dim_out: Any = None,
    num_states: int = 2,
    **kwargs: Any,
) -> tuple[list[Any], Net, list[Any]]:
    """Return the outputs of a recurrent layer, its net, and its initial states and input, which are random.

    The layer is in the name scope "test_name_scope"; its own scope is "external/recurrent".

    Args:
        t, n: maximum number of steps, and number of samples.
        dim_in: width of the input.
        create_rnn: adds a layer, such as ``rnn_cell.LSTM``.
        T: number of steps to unroll; None: do not unroll.
        two_d_initial_states: initial states are (samples, width) instead of (1, samples, width); None: random.
        dim_out: width of the states, or of those of each layer; None: that of the input.
        num_states: number of states of a layer.
    """
    widths = [dim_in] if dim_out is None else dim_out if isinstance(dim_out, list) else [dim_out]
    flat = bool(np.random.randint(2)) if two_d_initial_states is None else two_d_initial_states
    model = ModelHelper(name="external")
    names = [f"state_{i}/layer_{layer}" for layer in range(len(widths)) for i in range(num_states)]
    states = [model.net.AddExternalInput(name) for name in names]
    with NameScope("test_name_scope"):
        input_blob, seq_lengths = model.net.AddScopedExternalInputs("input_blob", "seq_lengths")
        layer = create_rnn(
            model,
            input_blob,
            seq_lengths,
            states,
            dim_in,
            dim_in if dim_out is None else dim_out,
            scope="external/recurrent",
            outputs_with_grads=outputs_with_grads,
            memory_optimization=memory_optim,
            forget_bias=forget_bias,
            forward_only=forward_only,
            drop_states=drop_states,
            static_rnn_unroll_size=T,
            **kwargs,
        )
    workspace.RunNetOnce(model.param_init_net)
    for i, name in enumerate(states):
        shape = (n, widths[i // num_states]) if flat else (1, n, widths[i // num_states])
        workspace.FeedBlob(name, np.random.randn(*shape).astype(np.float32))
    workspace.FeedBlob(input_blob, np.random.randn(t, n, dim_in).astype(np.float32))
    workspace.FeedBlob(seq_lengths, np.random.randint(1, t + 1, size=(n,)).astype(np.int32))
    return list(layer), model.net, [*states, input_blob]
