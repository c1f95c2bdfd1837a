"""Cores of tensor trains, and the replacement of FC by TT."""

from __future__ import annotations

from typing import Any

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.tensor_cores import init_tt_cores, matrix_to_tt, tt_svd
from netbuilder.caffe2.tensor_train import fc_net_to_tt_net as _replace
from netbuilder.graph import Net
from netbuilder.graph.message import message_of
from netbuilder.runtime.execute import default

__all__ = ["fc_net_to_tt_net", "init_tt_cores", "matrix_to_tt", "tt_svd"]

__getattr__ = names_of(__name__)


def fc_net_to_tt_net(net: Any, *, num_cores: int = 2, rank: int = 16) -> Net:
    """Return a copy of a net in which TT replaces each FC whose weights are in the current workspace.

    The cores are fed as ``<weights>_cores``. See ``netbuilder.caffe2.tensor_train.fc_net_to_tt_net``; Caffe2's
    function is empty.

    Args:
        net: a Net or NetDef without gradients.
        num_cores: number of cores of each layer.
        rank: maximum rank between two cores.

    Raises:
        NetError: an argument is less than 1, or the net has gradient operators.
    """
    workspace = default.workspace()
    names = {name for op in message_of(net).op if op.type == "FC" for name in op.input[1:2]}
    known = {name: workspace.fetch(name) for name in names if workspace.has(name) and not workspace.get(name).is_empty}
    made, cores = _replace(net, known, num_cores=num_cores, rank=rank)
    for name, value in cores.items():
        workspace.feed(name, value)
    return Net(made)
