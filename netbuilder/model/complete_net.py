"""Init net and main net joined into one net, and that net taken apart again."""

from __future__ import annotations

from netbuilder.graph.net import Net

__all__ = ["complete_net", "split_complete_net"]

_INIT_MARK = "/param_init_net"
"""Ends the ``debug_info`` of the operators that came from the init net."""


def complete_net(name: str, init_net: Net, main_net: Net) -> Net:
    """Return a net named ``name`` that runs ``init_net``'s operators, marked as such, and then ``main_net``'s.

    How it is executed is ``main_net``'s affair.
    """
    joined = init_net.Clone(name)
    for op in joined.Proto().op:
        op.debug_info += _INIT_MARK
    joined.AppendNet(main_net)
    proto, main = joined.Proto(), main_net.Proto()
    if main.HasField("type"):
        proto.type = main.type
    if main.HasField("num_workers"):
        proto.num_workers = main.num_workers
    return joined


def split_complete_net(net: Net) -> tuple[Net, Net]:
    """Return the init net and the main net of a net that ``complete_net`` made, or one saved by Caffe2's helper."""
    init_ops: list[int] = []
    main_ops: list[int] = []
    for index, op in enumerate(net.Proto().op):
        (init_ops if op.debug_info.endswith(_INIT_MARK) else main_ops).append(index)
    init_net, main_net = (
        net.Clone(f"{net.Name()}/{name}", op_id_mask=ops, update_external_list=True)
        for name, ops in (("generated_param_init_net", init_ops), ("generated_net", main_ops))
    )
    return init_net, main_net
