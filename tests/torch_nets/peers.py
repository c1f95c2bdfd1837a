"""The nets of ``zoo_cases`` in PyTorch: those of torchvision, timm and transformers, and three written here."""

from __future__ import annotations

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

from netbuilder.tools.bench.peer_models import (
    Peer,
    Recommender,
    UNet,
    by_name,
    classified,
    encoded_loss,
    encoded_order,
    in_order,
    language_loss,
    language_order,
    recommended,
    shared_order,
)
from netbuilder.zoo import convnext, densenet, dlrm, mobilenet, swin, vit
from zoo_cases import CLASSES

__all__ = ["PEERS"]


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


def shifted(size: Any) -> nn.Module:
    size = swin.SWIN[size] if isinstance(size, str) else size
    patch, window = [size.patch] * 2, [size.window] * 2
    layers, heads = list(size.layers), list(size.heads)
    options = {"stochastic_depth_prob": 0.0, "num_classes": CLASSES}
    return tv.SwinTransformer(patch, size.dim, layers, heads, window, **options)


def unet_peer(size: Any) -> nn.Module:
    return UNet((64, 128, 256, 512, 1024) if size == "usual" else size, CLASSES)


def recommender(size: dlrm.DLRMSize) -> nn.Module:
    return Recommender(size.tables, size.dim, size.bottom, size.top)


def language(size: Any) -> nn.Module:
    of_size = {} if size == "small" else {
        "n_embd": size.dim, "n_layer": size.layers, "n_head": size.heads, "vocab_size": size.tokens,
        "n_positions": size.length,
    }  # fmt: skip
    config = transformers.GPT2Config(
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, **of_size
    )
    return transformers.GPT2LMHeadModel(config)


def encoded(size: Any) -> nn.Module:
    of_size = {} if size == "base" else {
        "hidden_size": size.dim, "num_hidden_layers": size.layers, "num_attention_heads": size.heads,
        "intermediate_size": 4 * size.dim, "vocab_size": size.tokens, "max_position_embeddings": size.length,
    }  # fmt: skip
    config = transformers.BertConfig(
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=None, num_labels=CLASSES, **of_size
    )
    return transformers.BertForSequenceClassification(config)


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


_classifier = partial(Peer, loss=classified, entries=shared_order)
PEERS: dict[str, Peer] = {
    "mobilenet-v2": _classifier(mobilenet_v2),
    "mobilenet-v3": _classifier(mobilenet_v3),
    "efficientnet": _classifier(efficient),
    "regnet": _classifier(regular),
    "densenet": _classifier(dense),
    "convnext": _classifier(conv_next),
    "vit": _classifier(vision),
    "deit": _classifier(vision),
    "swin": _classifier(shifted),
    "unet": Peer(unet_peer, classified, in_order),
    "gpt2": Peer(language, language_loss, by_name(language_order)),
    "bert": Peer(encoded, encoded_loss, by_name(encoded_order)),
    "dlrm": Peer(recommender, recommended, in_order),
    "dcgan": Peer(Adversaries, contested, in_order),
}
"""The beginning of a case's name -> its peer."""
