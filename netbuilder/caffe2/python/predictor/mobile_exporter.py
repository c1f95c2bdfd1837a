"""Exports a net and its parameters as an init net and a predict net."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.caffe2.missing import names_of
from netbuilder.exchange.fills import fill_operator
from netbuilder.exchange.mobile_exporter import Export
from netbuilder.graph.blob import blob_name
from netbuilder.graph.message import message_of

__all__ = ["Export", "add_tensor"]

__getattr__ = names_of(__name__)


def add_tensor(net: Any, name: Any, blob: Any) -> None:
    """Append an operator that fills blob ``name`` with an array.

    Args:
        net: a Net or NetDef.
        name: the blob, without scope.
        blob: an array of a data type that fill operators support; bytes are a scalar string.

    Raises:
        ArgumentError: fill operators do not support the data type.
    """
    value = np.array(blob, object) if isinstance(blob, (str, bytes)) else blob
    message_of(net).op.append(fill_operator(blob_name(name), value))
