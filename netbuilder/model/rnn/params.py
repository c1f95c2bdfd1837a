"""The parameters of an LSTM, gate by gate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from netbuilder.proto import NetError

__all__ = ["joined_parameters", "parameter_names"]

GATES = ("input_gate", "forget_gate", "output_gate", "cell")
"""In the order in which ``LSTMUnit`` takes them."""


def parameter_names() -> dict[str, list[str]]:
    """Return what the weights and biases of the gates are called, in the order in which they are joined.

    >>> parameter_names()["biases"]
    ['input_gate_b', 'forget_gate_b', 'output_gate_b', 'cell_b']
    """
    return {"weights": [f"{gate}_w" for gate in GATES], "biases": [f"{gate}_b" for gate in GATES]}


def joined_parameters(
    blobs: Mapping[str, Mapping[str, Any]], values: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[Any, np.ndarray[Any, Any]]]:
    """Return (blob, value) for the parameters of an LSTM.

    Args:
        blobs: under "input" and "recurrent" the blobs of "weights" and "biases".
        values: under "input" and "recurrent" the values of each gate, by the names of ``parameter_names``.

    Raises:
        NetError: a value is missing.
    """
    for part, kinds in blobs.items():
        for kind, names in parameter_names().items():
            missing = [name for name in names if name not in values.get(part, {})]
            if missing:
                raise NetError(f"parameters of an LSTM: {part!r} has no values for {missing}")
            yield kinds[kind], np.concatenate([values[part][name] for name in names])
