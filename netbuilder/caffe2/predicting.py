"""``workspace.Predictor``: a predict net fed by position or by name."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from netbuilder.data.forking import new_lock
from netbuilder.exchange.net_pool import NetPool
from netbuilder.exchange.trust import check_not_swapped
from netbuilder.graph.message import message_of
from netbuilder.graph.observability import OUTPUTS
from netbuilder.proto import ArgumentError, NetDef, NetError, files
from netbuilder.proto.suggestions import did_you_mean
from netbuilder.runtime import Workspace

__all__ = ["Predictor"]


class Predictor:
    """A predict net with its parameters, in a workspace of its own, also for several threads at the same time.

    ``netbuilder.exchange.Predictor`` checks its inputs more strictly and distinguishes them from parameters.

    Args:
        init_net: fills the parameters; a Net, a NetDef or its bytes.
        predict_net: computes its external outputs; also a Net, a NetDef or its bytes.

    Raises:
        ArgumentError: one of them is a path.
        NetError: the two are swapped.

    >>> from netbuilder.proto.arguments import make_op
    >>> init_net = NetDef(op=[make_op("GivenTensorFill", [], ["w"], shape=[2], values=[1.0, 2.0])])
    >>> net = NetDef(name="face_example", op=[make_op("Add", ["x", "w"], ["y"], broadcast=1)])
    >>> net.external_input.extend(["x", "w"])
    >>> net.external_output.append("y")
    >>> Predictor(init_net, net).run([np.float32([[1, 1]])])
    [array([[2., 3.]], dtype=float32)]
    """

    def __init__(self, init_net: Any, predict_net: Any) -> None:
        self._workspace = Workspace()
        self._workspace.draw_anew()
        init_message, self._net = _message(init_net, "init_net"), _message(predict_net, "predict_net")
        check_not_swapped(init_message, self._net, "init_net", "predict_net")
        self._workspace.run_net_once(init_message)
        _create(self._workspace, self._net)
        self._pool: tuple[frozenset[str], NetPool] | None = None  # the inputs of the first call, and the pool
        self._first_call = new_lock()

    def run(self, inputs: Sequence[Any] | Mapping[str, Any]) -> list[Any]:
        """Return the external outputs, in their order.

        Args:
            inputs: arrays for the first external inputs of the net, in their order; or arrays by name. Other inputs
                keep the value that the init net or an earlier call gave them. Calls that are given the inputs that the
                first one was given run at the same time in several threads; others take turns with them.

        Raises:
            ArgumentError: ``inputs`` is neither a list nor a mapping, but an array, say.
            NetError: there are too many arrays, or a name is not an external input; an operator failed.
        """
        names = list(self._net.external_input)
        if not isinstance(inputs, Mapping):
            if not isinstance(inputs, Sequence) or isinstance(inputs, (str, bytes)):
                kind = type(inputs).__name__
                raise ArgumentError(
                    f"Predictor.run: inputs must be a list of arrays, or a mapping from names to arrays, got a {kind}; "
                    "give [array] for the first input"
                )
            if len(inputs) > len(names):
                raise NetError(
                    f"Predictor.run: net {self._net.name!r} has the inputs {names}, got {len(inputs)} arrays"
                )
            inputs = dict(zip(names, inputs))
        if unknown := [name for name in inputs if name not in names]:
            raise NetError(
                f"Predictor.run: net {self._net.name!r} has the inputs {names}, got values for {unknown}"
                f"{did_you_mean(unknown[0], names)}"
            )
        fed, pool = self._pool or self._new_pool(inputs)
        seat = pool.take(first=inputs.keys() != fed)
        try:
            for name, value in inputs.items():
                seat.workspace.feed(name, value)
            seat.workspace.run_net(self._net.name)
            return [seat.workspace.fetch(name) for name in self._net.external_output]
        finally:
            pool.give_back(seat)

    def _new_pool(self, inputs: Collection[str]) -> tuple[frozenset[str], NetPool]:
        """Make the pool: what the first call is given is no parameter, all other external inputs are."""
        with self._first_call:
            if self._pool is None:
                parameters = [name for name in self._net.external_input if name not in inputs]
                pool = NetPool(self._workspace, self._net, partial(_create, net=self._net), parameters, None)
                self._pool = frozenset(inputs), pool
            return self._pool


def _create(workspace: Workspace, net: NetDef) -> None:
    for name in net.external_input:
        workspace.make(name)
    workspace.create_net(net, observable_default=OUTPUTS)


def _message(net: Any, what: str) -> NetDef:
    if isinstance(net, bytes):
        return files.parse(net, NetDef, allow_unknown=True)
    if isinstance(net, (str, os.PathLike)):
        raise ArgumentError(
            f"Predictor: {what} must be a Net, a NetDef or its bytes, got {net!r}; of a file give the bytes: "
            f"open({os.fspath(net)!r}, 'rb').read()"
        )
    return message_of(net)
