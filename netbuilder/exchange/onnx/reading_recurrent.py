"""How ONNX's recurrent layers become operators."""

from __future__ import annotations

from typing import Any

from netbuilder.exchange.onnx.reading import Reader, reads
from netbuilder.proto import OperatorError

__all__: list[str] = []

_OPTIONAL = ("B", "sequence_lens", "initial_h", "initial_c", "P")


@reads("LSTM", "GRU", "RNN")
def _recurrent(r: Reader, node: Any) -> None:
    found = r.attributes(node)
    if found.get("input_forget", 0):
        raise OperatorError("input_forget, a joint gate, is not read")
    if found.get("activation_alpha") or found.get("activation_beta"):
        raise OperatorError("activations with parameters are not read")
    inputs = [(name, value) for name, value in zip(_OPTIONAL, node.input[3:]) if value]
    activations = [each.decode() for each in found.get("activations", ())]
    states = 2 if node.op_type == "LSTM" else 1
    outputs = [*node.output, *[""] * (1 + states - len(node.output))]
    r.add(
        f"ONNX{node.op_type}",
        [*node.input[:3], *(value for _, value in inputs)],
        [name or r.between(next(filter(None, node.output))) for name in outputs],
        hidden_size=found.get("hidden_size", r.shape(node.input[2])[2]),
        direction=found.get("direction", "forward"),
        given=[name for name, _ in inputs] or None,
        activations=activations or None,
        clip=found.get("clip"),
        layout=found.get("layout"),
        linear_before_reset=1 if found.get("linear_before_reset", 0) else None,
    )
