"""The nets of ``zoo_cases`` in PyTorch: those of torchvision, timm and transformers, and three written here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import timm.models.deit
import timm.models.vision_transformer
import torch
import torchvision.models as tv
import transformers
from torch import nn
from torch.nn import functional
from torchvision.models.efficientnet import MBConvConfig
from torchvision.models.mobilenetv3 import InvertedResidualConfig
from torchvision.models.regnet import BlockParams

from netbuilder.zoo import convnext, densenet, dlrm, mobilenet, swin, vit
from zoo_cases import CLASSES

__all__ = ["PEERS", "Entry", "Peer"]


@dataclass(frozen=True)
class Entry:
    """The tensors of a parameter: joined along the first axis, each transposed first if ``transposed``."""

    tensors: list[torch.Tensor]
    transposed: bool = False

    def join(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([t.T if self.transposed else t for t in tensors])

    def copy(self, value: torch.Tensor) -> None:
        """Store a value in the tensors."""
        extents = [t.shape[1 if self.transposed else 0] for t in self.tensors]
        for tensor, part in zip(self.tensors, value.split(extents)):
            with torch.no_grad():
                tensor.copy_(part.T if self.transposed else part)


@dataclass(frozen=True)
class Peer:
    """A net of PyTorch.

    Args:
        make: called with the size of the case; returns the module.
        loss: called with the module and the inputs as tensors; returns the scores and the loss.
        entries: called with the module; returns its parameters in the order of netbuilder's.
    """

    make: Callable[[Any], nn.Module]
    loss: Callable[[nn.Module, dict[str, torch.Tensor]], tuple[torch.Tensor, torch.Tensor]]
    entries: Callable[[nn.Module], list[Entry]]


def in_order(module: nn.Module) -> list[Entry]:
    return [Entry([p]) for p in module.parameters()]


def by_name(order: Callable[[dict[str, torch.Tensor]], Iterator[Any]]) -> Callable[[nn.Module], list[Entry]]:
    """Return the parameters as a generator yields their names, or entries."""

    def entries(module: nn.Module) -> list[Entry]:
        named = dict(module.named_parameters())
        return [made if isinstance(made, Entry) else Entry([named[made]]) for made in order(named)]

    return entries


def classified(module: nn.Module, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    scores = module(inputs["data"])
    return scores, functional.cross_entropy(scores, inputs["label"].long())


def mobilenet_v2(size: Any) -> nn.Module:
    table = mobilenet.MOBILENET_V2[size] if isinstance(size, str) else size
    rows = [list(row) for row in table.stages]
    return tv.MobileNetV2(CLASSES, table.width, rows, dropout=0.0)


def mobilenet_v3(size: Any) -> nn.Module:
    if isinstance(size, str):
        return getattr(tv, f"mobilenet_v3_{size}")(num_classes=CLASSES, dropout=0.0)
    blocks, dim = [], size.first
    for kernel, wide, made, gated, activation, stride in size.blocks:
        kind = "HS" if activation == "hard_swish" else "RE"
        blocks.append(InvertedResidualConfig(dim, kernel, wide, made, gated, kind, stride, 1, 1.0))
        dim = made
    return tv.MobileNetV3(blocks, size.last, num_classes=CLASSES, dropout=0.0)


def efficient(size: Any) -> nn.Module:
    if isinstance(size, str):
        return getattr(tv, f"efficientnet_{size}")(num_classes=CLASSES, dropout=0.0, stochastic_depth_prob=0.0)
    blocks, dim = [], 32
    for expansion, kernel, stride, channels, count in size.stages:
        row = (expansion, kernel, stride, dim, channels, count)
        blocks.append(MBConvConfig(*row, width_mult=size.width, depth_mult=size.depth))
        dim = channels
    return tv.EfficientNet(blocks, dropout=0.0, stochastic_depth_prob=0.0, num_classes=CLASSES)


def regular(size: Any) -> nn.Module:
    if isinstance(size, str):
        return getattr(tv, f"regnet_{size.replace('-', '_').replace('.', '_')}")(num_classes=CLASSES)
    ratio = 0.25 if size.gated else None
    params = BlockParams.from_init_params(size.depth, size.first, size.slope, size.step, size.group, se_ratio=ratio)
    return tv.RegNet(params, CLASSES, stem_width=size.stem)


def dense(size: Any) -> nn.Module:
    table = densenet.DENSENET[size] if isinstance(size, str) else size
    return tv.DenseNet(table.growth, tuple(table.blocks), table.first, num_classes=CLASSES)


def conv_next(size: Any) -> nn.Module:
    stages = convnext.CONVNEXT[size] if isinstance(size, str) else size
    after = [*(dim for dim, _ in stages[1:]), None]
    blocks = [tv.convnext.CNBlockConfig(dim, out, n) for (dim, n), out in zip(stages, after)]
    return tv.ConvNeXt(blocks, num_classes=CLASSES)


def vision(size: Any) -> nn.Module:
    table, side = (vit.VIT[size], 64) if isinstance(size, str) else (size, 16)
    module = timm.models.deit if table.distilled else timm.models.vision_transformer
    cls = module.VisionTransformerDistilled if table.distilled else module.VisionTransformer
    options = {"img_size": side, "patch_size": table.patch, "num_classes": CLASSES}
    return cls(**options, embed_dim=table.dim, depth=table.layers, num_heads=table.heads)


def vision_order(named: dict[str, torch.Tensor]) -> Iterator[str]:
    first = ["patch_embed.proj.weight", "patch_embed.proj.bias", "cls_token", "dist_token", "pos_embed"]
    yield from (name for name in first if name in named)
    yield from (name for name in named if name.startswith(("blocks.", "norm.")))
    yield from (name for name in named if name.startswith(("head.", "head_dist.")))


def shifted(size: Any) -> nn.Module:
    size = swin.SWIN[size] if isinstance(size, str) else size
    patch, window = [size.patch] * 2, [size.window] * 2
    layers, heads = list(size.layers), list(size.heads)
    options = {"stochastic_depth_prob": 0.0, "num_classes": CLASSES}
    return tv.SwinTransformer(patch, size.dim, layers, heads, window, **options)


def shifted_order(named: dict[str, torch.Tensor]) -> Iterator[str]:
    """The bias of relative positions after the projection to queries, keys and values; norms before reductions."""
    names = list(named)
    for name in names:
        if name.endswith(("relative_position_bias_table", ".reduction.weight")):
            continue
        yield name
        if name.endswith("attn.qkv.bias"):
            yield name.replace("qkv.bias", "relative_position_bias_table")
        if (reduction := name.replace("norm.bias", "reduction.weight")) in named and reduction != name:
            yield reduction


class UNet(nn.Module):
    """As ``create_unet`` says."""

    def __init__(self, channels: Any) -> None:
        super().__init__()

        def conv(a: int, b: int) -> list[nn.Module]:
            return [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]

        def twice(a: int, b: int) -> nn.Module:
            return nn.Sequential(*conv(a, b), *conv(b, b))

        pairs = list(zip([3, *channels], channels))
        self.down = nn.ModuleList(twice(a, b) for a, b in pairs)
        up = [(nn.ConvTranspose2d(b, a, 2, stride=2), twice(2 * a, a)) for a, b in reversed(pairs[1:])]
        self.up = nn.ModuleList(nn.ModuleList(pair) for pair in up)
        self.scores = nn.Conv2d(channels[0], CLASSES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        across = []
        for level, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if level else x)
            across.append(x)
        for (grow, block), other in zip(self.up, reversed(across[:-1])):
            x = block(torch.cat([other, grow(x)], 1))
        return self.scores(x)


def unet_peer(size: Any) -> nn.Module:
    return UNet((64, 128, 256, 512, 1024) if size == "usual" else size)


def language(size: Any) -> nn.Module:
    of_size = {} if size == "small" else {
        "n_embd": size.dim, "n_layer": size.layers, "n_head": size.heads, "vocab_size": size.tokens,
        "n_positions": size.length,
    }  # fmt: skip
    config = transformers.GPT2Config(
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, **of_size
    )
    return transformers.GPT2LMHeadModel(config)


def language_order(named: dict[str, torch.Tensor]) -> Iterator[Any]:
    for name, tensor in named.items():
        turned = name.endswith("weight") and tensor.ndim == 2 and name.split(".")[-2] in ("c_attn", "c_proj", "c_fc")
        yield Entry([tensor], transposed=turned)


def language_loss(module: nn.Module, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    scores = module(inputs["data"].long()).logits
    return scores, functional.cross_entropy(scores.flatten(0, 1), inputs["label"].long().flatten())


def encoded(size: Any) -> nn.Module:
    of_size = {} if size == "base" else {
        "hidden_size": size.dim, "num_hidden_layers": size.layers, "num_attention_heads": size.heads,
        "intermediate_size": 4 * size.dim, "vocab_size": size.tokens, "max_position_embeddings": size.length,
    }  # fmt: skip
    config = transformers.BertConfig(
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=None, num_labels=CLASSES, **of_size
    )
    return transformers.BertForSequenceClassification(config)


def encoded_order(named: dict[str, torch.Tensor]) -> Iterator[Any]:
    for name in named:
        if ".self.query." in name:
            yield Entry([named[name.replace("query", part)] for part in ("query", "key", "value")])
        elif ".self." not in name:
            yield name


def encoded_loss(module: nn.Module, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    seen = (inputs["mask"][:, 0, 0] == 0).long()
    scores = module(inputs["data"].long(), attention_mask=seen, token_type_ids=inputs["segments"].long()).logits
    return scores, functional.cross_entropy(scores, inputs["label"].long())


class Recommender(nn.Module):
    """As ``create_dlrm`` says."""

    def __init__(self, size: dlrm.DLRMSize) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, size.dim, mode="sum") for rows in size.tables)
        count = len(size.tables) + 1
        bottom = [*size.bottom, size.dim]
        top = [size.dim + count * (count - 1) // 2, *size.top, 1]
        self.bottom, self.top = (nn.ModuleList(map(nn.Linear, s, s[1:])) for s in (bottom, top))

    def forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        x = inputs["data"]
        for layer in self.bottom:
            x = layer(x).relu()
        rows = [x]
        for i, table in enumerate(self.tables):
            offsets = inputs[f"lengths{i}"].cumsum(0) - inputs[f"lengths{i}"]
            rows.append(table(inputs[f"indices{i}"].long(), offsets.long()))
        stacked = torch.stack(rows, 1)
        products = stacked @ stacked.transpose(1, 2)
        below = torch.tril_indices(len(rows), len(rows), -1)
        x = torch.cat([x, products[:, below[0], below[1]]], 1)
        for number, layer in enumerate(self.top, 1):
            x = layer(x) if number == len(self.top) else layer(x).relu()
        return x


def recommended(module: nn.Module, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    scores = module(inputs)
    return scores, functional.binary_cross_entropy_with_logits(scores, inputs["label"])


class Adversaries(nn.Module):
    """As the two builders of DCGAN say."""

    def __init__(self, size: Any) -> None:
        super().__init__()
        widths = [size.width << i for i in range(size.layers)]
        layers: list[nn.Module] = []
        down = [size.noise, *reversed(widths), 3]
        for number, (a, b) in enumerate(zip(down, down[1:])):
            stride = 2 if number else 1
            layers.append(nn.ConvTranspose2d(a, b, 4, stride, stride - 1, bias=False))
            layers += [nn.BatchNorm2d(b), nn.ReLU()] if number < len(widths) else [nn.Tanh()]
        self.generator = nn.Sequential(*layers)
        layers = []
        for number, (a, b) in enumerate(zip([3, *widths], widths)):
            layers.append(nn.Conv2d(a, b, 4, 2, 1, bias=False))
            layers += [nn.BatchNorm2d(b)] * bool(number) + [nn.LeakyReLU(0.2)]
        self.discriminator = nn.Sequential(*layers, nn.Conv2d(widths[-1], 1, 4, bias=False), nn.Flatten())


def contested(module: nn.Module, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    made = module.generator(inputs["z"])
    loss = functional.binary_cross_entropy_with_logits
    real = loss(module.discriminator(inputs["data"]), inputs["ones"])
    scores = module.discriminator(made)
    return scores, real + loss(scores, inputs["zeros"])


_classifier = partial(Peer, loss=classified)
PEERS: dict[str, Peer] = {
    "mobilenet-v2": _classifier(mobilenet_v2, entries=in_order),
    "mobilenet-v3": _classifier(mobilenet_v3, entries=in_order),
    "efficientnet": _classifier(efficient, entries=in_order),
    "regnet": _classifier(regular, entries=in_order),
    "densenet": _classifier(dense, entries=in_order),
    "convnext": _classifier(conv_next, entries=in_order),
    "vit": _classifier(vision, entries=by_name(vision_order)),
    "deit": _classifier(vision, entries=by_name(vision_order)),
    "swin": _classifier(shifted, entries=by_name(shifted_order)),
    "unet": _classifier(unet_peer, entries=in_order),
    "gpt2": Peer(language, language_loss, by_name(language_order)),
    "bert": Peer(encoded, encoded_loss, by_name(encoded_order)),
    "dlrm": Peer(Recommender, recommended, in_order),
    "dcgan": Peer(Adversaries, contested, in_order),
}
"""The beginning of a case's name -> its peer."""
