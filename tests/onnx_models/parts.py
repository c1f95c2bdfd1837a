"""Write what PyTorch's two exporters make of normalization and attention: python -m onnx_models.parts FILE.zip

The file is ``tests/recorded/onnx/parts.zip``: models named form-exporter-opset, without texts, with coarse weights that
compress well. It needs PyTorch, onnx and onnxscript.
"""

from __future__ import annotations

import io
import math
import sys
import zipfile
from collections.abc import Callable
from typing import Any

import onnx
import torch
from torch import nn
from torch.nn.functional import layer_norm, scaled_dot_product_attention

Tensor = torch.Tensor
BATCH, STEPS, FEATURES, HEADS = 2, 6, 16, 4
WIDTH = FEATURES // HEADS
CAUSAL = torch.ones(STEPS, STEPS, dtype=torch.bool).tril()


class Row(nn.Module):
    """A form of normalization with scale and bias."""

    def __init__(self, form: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.scale, self.bias, self.form = nn.Parameter(torch.rand(FEATURES)), nn.Parameter(torch.rand(FEATURES)), form

    def forward(self, x: Tensor) -> Tensor:
        return self.form(x, self.scale, self.bias)


class Heads(nn.Module):
    """A form of attention over heads of queries, keys and values, and a bias of the scores."""

    def __init__(self, form: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], groups: int = HEADS) -> None:
        super().__init__()
        self.form, self.widths = form, [FEATURES, groups * WIDTH, groups * WIDTH]
        self.layer, self.bias = nn.Linear(FEATURES, sum(self.widths)), nn.Parameter(torch.rand(1, HEADS, STEPS, STEPS))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.view(BATCH, STEPS, -1, WIDTH).transpose(1, 2) for part in self.layer(x).split(self.widths, dim=-1)
        )
        return self.form(q, k, v, self.bias)


def centered(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    return scale * (x - mean) / torch.sqrt(variance + 1e-5) + bias


def centered_once(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    rest = x - x.mean(-1, keepdim=True)
    return scale * (rest * torch.rsqrt((rest * rest).mean(-1, keepdim=True) + 1e-5)) + bias


def weighted(scores: Tensor, v: Tensor) -> Tensor:
    return scores.softmax(-1) @ v


def scored(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-2, -1) * WIDTH**-0.5


def repeated(x: Tensor) -> Tensor:
    n, groups, t, d = x.shape
    return x[:, :, None].expand(n, groups, HEADS // groups, t, d).reshape(n, HEADS, t, d)


FORMS: dict[str, Callable[[], nn.Module]] = {
    "layer_norm": lambda: Row(lambda x, g, b: layer_norm(x, (FEATURES,), g, b)),
    "layer_norm_plain": lambda: Row(lambda x, g, b: layer_norm(x, (FEATURES,))),
    "centered": lambda: Row(centered),
    "centered_once": lambda: Row(centered_once),
    "rms_norm": lambda: nn.RMSNorm(FEATURES, eps=1e-6),
    "rms_by_rsqrt": lambda: Row(lambda x, g, b: g * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))),
    "rms_by_sqrt": lambda: Row(lambda x, g, b: x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * g),
    "scaled": lambda: Heads(lambda q, k, v, b: scaled_dot_product_attention(q, k, v)),
    "causal": lambda: Heads(lambda q, k, v, b: scaled_dot_product_attention(q, k, v, is_causal=True)),
    "masked": lambda: Heads(lambda q, k, v, b: scaled_dot_product_attention(q, k, v, attn_mask=CAUSAL)),
    "biased": lambda: Heads(lambda q, k, v, b: scaled_dot_product_attention(q, k, v, attn_mask=b)),
    "products": lambda: Heads(lambda q, k, v, b: weighted(q @ k.transpose(-2, -1) / math.sqrt(WIDTH), v)),
    "filled": lambda: Heads(lambda q, k, v, b: weighted(scored(q, k).masked_fill(~CAUSAL, -math.inf), v)),
    "low": lambda: Heads(
        lambda q, k, v, b: weighted(torch.where(CAUSAL, scored(q, k), torch.finfo(torch.float32).min), v)
    ),
    "grouped": lambda: Heads(lambda q, k, v, b: weighted(scored(q, repeated(k)), repeated(v)), 2),
    "grouped_scaled": lambda: Heads(
        lambda q, k, v, b: scaled_dot_product_attention(q, repeated(k), repeated(v)), 2
    ),
    "grouped_by_option": lambda: Heads(
        lambda q, k, v, b: scaled_dot_product_attention(q, k, v, enable_gqa=True), 2
    ),
}  # fmt: skip


def exported(name: str, dynamo: bool, opset: int) -> Any:
    """Return the model of a form, without texts."""
    torch.manual_seed(0)
    module, x = FORMS[name]().eval(), torch.zeros(BATCH, STEPS, FEATURES)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_((parameter * 16).round() / 16)
    target = io.BytesIO()
    if dynamo:
        program = torch.onnx.export(module, (x,), opset_version=opset, dynamo=True, verbose=False, input_names=["x"])
        model = program.model_proto
    else:
        torch.onnx.export(module, (x,), target, opset_version=opset, dynamo=False, input_names=["x"])
        model = onnx.load_from_string(target.getvalue())
    for each in (model, *model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output):
        each.doc_string = ""
        del each.metadata_props[:]
    del model.graph.metadata_props[:]
    return model


def main(path: str) -> None:
    """Write the archive."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in FORMS:
            for exporter, opset in (("script", 13), ("script", 17), ("script", 20), ("dynamo", 18), ("dynamo", 21)):
                try:
                    model = exported(name, exporter == "dynamo", opset)
                except (AssertionError, torch.onnx.errors.UnsupportedOperatorError):
                    continue  # the first exporter: attention needs opset 14, and has no groups
                archive.writestr(f"{name}-{exporter}-{opset}.onnx", model.SerializeToString())


if __name__ == "__main__":
    main(sys.argv[1])
