"""Write small models and PyTorch's gradients for them: python -m onnx_models.golden FOLDER (tests/recorded/onnx).

Each is exported with a dynamic batch, in prediction. Gradients are those in training, in float64, without dropout, of
the mean cross entropy of the outputs, (4, 3), for the labels 0, 1, 2, 0.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

__all__: list[str] = []

_LABELS = [0, 1, 2, 0]
_WORDS = {"vocab_size": 20}


def _timm(name: str, **options: Any) -> Any:
    import timm

    return timm.create_model(name, pretrained=False, num_classes=3, drop_rate=0.0, drop_path_rate=0.0, **options)


def _text(name: str, **options: Any) -> Any:
    return _classifier(name, lambda made: made.last_hidden_state.mean(1), 8, **_WORDS, **options)


def _classifier(name: str, summary: Callable[[Any], Any], width: int, **options: Any) -> Any:
    import torch
    import transformers

    config = getattr(transformers, f"{name}Config")(**options)
    config.use_cache = False

    class Classifier(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = getattr(transformers, f"{name}Model")(config)
            self.head = torch.nn.Linear(width, 3)

        def forward(self, x: Any) -> Any:
            return self.head(summary(self.body(x)))

    return Classifier()


def _efficientnet() -> Any:
    import torchvision
    from torchvision.models.efficientnet import MBConvConfig

    blocks = [MBConvConfig(1, 3, 1, 8, 8, 1, 1.0, 1.0), MBConvConfig(2, 5, 2, 8, 12, 1, 1.0, 1.0)]
    return torchvision.models.EfficientNet(blocks, 0.0, stochastic_depth_prob=0.0, num_classes=3, last_channel=16)


_SMALL = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16,
          "max_position_embeddings": 8, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # fmt: skip
_GPT = {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 8, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
        "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}  # fmt: skip
_GROUPED = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
            "intermediate_size": 16, "max_position_embeddings": 8, "pad_token_id": 0, "bos_token_id": 0,
            "eos_token_id": 0}  # fmt: skip
_SEGFORMER = {"depths": [1, 1, 1, 1], "hidden_sizes": [4, 6, 8, 8], "num_attention_heads": [1, 2, 2, 2],
              "hidden_dropout_prob": 0.0, "drop_path_rate": 0.0}  # fmt: skip
_VIT = {"img_size": 16, "patch_size": 8, "embed_dim": 12, "depth": 2, "num_heads": 3}
_SWIN = {"img_size": 16, "window_size": 2, "embed_dim": 6, "depths": (2, 2), "num_heads": (1, 2)}

_MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "vit": (lambda: _timm("vit_tiny_patch16_224", **_VIT), (3, 16, 16)),
    "convnext": (lambda: _timm("convnext_atto", depths=(1, 1, 1, 1), dims=(4, 6, 8, 8)), (3, 32, 32)),
    "efficientnet": (_efficientnet, (3, 16, 16)),
    "swin": (lambda: _timm("swin_tiny_patch4_window7_224", **_SWIN), (3, 16, 16)),
    "bert": (lambda: _text("Bert", **_SMALL), (6,)),
    "gpt2": (lambda: _text("GPT2", **_GPT), (6,)),
    "qwen3": (lambda: _text("Qwen3", **_GROUPED), (6,)),
    "gemma3": (lambda: _text("Gemma3Text", **_GROUPED), (6,)),
    "segformer": (
        lambda: _classifier("Segformer", lambda made: made.last_hidden_state.mean((2, 3)), 8, **_SEGFORMER),
        (3, 32, 32),
    ),
}


def _write(name: str, folder: Path) -> None:
    import torch

    torch.manual_seed(0)
    build, shape = _MODELS[name]
    model = build()
    rng = np.random.default_rng(0)
    for parameter in model.parameters():  # none is 0 or 1, so that each has a gradient
        parameter.data += 0.05 * torch.randn_like(parameter)
    x = rng.integers(1, 20, (4, *shape)) if len(shape) == 1 else rng.random((4, *shape), np.float32)
    given = torch.from_numpy(x)
    model.eval()
    program = torch.onnx.export(
        model, (given,), None, dynamo=True, opset_version=18, input_names=["x"], output_names=["scores"],
        dynamic_shapes=({0: torch.export.Dim("N")},), optimize=False,
    )  # fmt: skip
    (folder / f"{name}.onnx").write_bytes(_plain(program.model_proto).SerializeToString())
    model.train().double()
    scores = model(given if len(shape) == 1 else given.double())
    loss = torch.nn.functional.cross_entropy(scores, torch.tensor(_LABELS))
    loss.backward()
    found = {key: value.grad.float().numpy() for key, value in model.named_parameters() if value.grad is not None}
    np.savez_compressed(folder / f"{name}.npz", x=x, loss=loss.item(), scores=scores.detach().float().numpy(),
                        **{f"d {key}": value for key, value in found.items()})  # fmt: skip


def _plain(model: Any) -> Any:
    """Return a model without texts about where its nodes come from."""
    for each in (*model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output,
                 *model.graph.initializer, model.graph, model):  # fmt: skip
        each.ClearField("metadata_props")
        each.ClearField("doc_string")
    return model


if __name__ == "__main__":
    for each in sys.argv[2:] or _MODELS:
        _write(each, Path(sys.argv[1]))
