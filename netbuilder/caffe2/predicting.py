"""``workspace.Predictor``: a predictor fed by position or by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from netbuilder.exchange import Predictor as NativePredictor
from netbuilder.graph import Net
from netbuilder.proto import NetDef, NetError, files

__all__ = ["Predictor"]


class Predictor:
    """A predict net with its parameters, in a workspace of its own.

    Args:
        init_net: fills the parameters; a Net, a NetDef or its bytes.
        predict_net: computes the outputs; likewise.

    >>> from netbuilder.proto.arguments import make_op
    >>> init_net = NetDef(op=[make_op("GivenTensorFill", [], ["w"], shape=[2], values=[1.0, 2.0])])
    >>> net = NetDef(name="face_example", op=[make_op("Add", ["x", "w"], ["y"], broadcast=1)])
    >>> net.external_input.extend(["x", "w"])
    >>> net.external_output.append("y")
    >>> Predictor(init_net, net).run([np.float32([[1, 1]])])
    [array([[2., 3.]], dtype=float32)]
    """

    def __init__(self, init_net: Any, predict_net: Any) -> None:
        self._predictor = NativePredictor(_message(init_net), _message(predict_net))

    def run(self, inputs: Sequence[Any] | Mapping[str, Any]) -> list[Any]:
        """Return the outputs, in the order of the net's external outputs.

        Args:
            inputs: an array for each input, in the order of the net's external inputs that are no parameters; or
                the arrays by name.

        Raises:
            NetError: there are more or fewer inputs than the net has.
        """
        names = self._predictor.inputs
        if not isinstance(inputs, Mapping):
            if len(inputs) != len(names):
                raise NetError(f"Predictor.run: needs the inputs {list(names)}, got {len(inputs)} arrays")
            inputs = dict(zip(names, inputs))
        found = self._predictor.run(inputs)
        return [found[name] for name in self._predictor.outputs]


def _message(net: Any) -> NetDef:
    if isinstance(net, bytes):
        return files.parse(net, NetDef, allow_unknown=True)
    return net.Proto() if isinstance(net, Net) else net
