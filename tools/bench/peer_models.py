"""The nets of ``MODELS`` in PyTorch: those of torchvision, timm and transformers, and three written here.

It runs by path in the peer's environment, which has no netbuilder.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision.models as tv
import transformers
from torch import nn
from torch.nn import functional

if __package__:
    from netbuilder.exchange.weight_names import in_zoo_order
    from netbuilder.tools.bench.draw import TABLES, WORDS
    from netbuilder.tools.bench.work import Work
else:  # run by path, see ``worker``
    from draw import TABLES, WORDS  # type: ignore[no-redef]
    from work import Work  # type: ignore[no-redef]

    _above = Path(__file__).parents[2]  # of the package, or in a checkout of the repository
    _folder = next(each for each in (_above / "netbuilder" / "exchange", _above / "exchange") if each.is_dir())
    in_zoo_order = runpy.run_path(str(_folder / "weight_names.py"))["in_zoo_order"]

Inputs = dict[str, torch.Tensor]
Losses = Callable[[nn.Module, Inputs], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Entry:
    """The tensors of a parameter of netbuilder.

    Args:
        tensors: joined along the first axis.
        transposed: whether each is transposed before.
        parts: the order of the quarters of each tensor; None: as they are.
    """

    tensors: list[torch.Tensor]
    transposed: bool = False
    parts: Sequence[int] | None = None

    def join(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """Return values or gradients of the tensors in the form of the parameter."""
        if self.parts is not None:
            tensors = [torch.cat([t.chunk(len(self.parts))[part] for part in self.parts]) for t in tensors]
        return torch.cat([t.T if self.transposed else t for t in tensors])

    def copy(self, value: torch.Tensor) -> None:
        """Store a value of the parameter in the tensors."""
        extents = [t.shape[1 if self.transposed else 0] for t in self.tensors]
        for tensor, part in zip(self.tensors, value.split(extents)):
            with torch.no_grad():
                tensor.copy_(part.T if self.transposed else part)


Entries = Callable[[nn.Module], list[Entry]]


@dataclass(frozen=True)
class Peer:
    """A net of PyTorch.

    Args:
        make: called with the size or the work; returns the module.
        loss: called with the module and the inputs as tensors; returns the scores and the loss.
        entries: called with the module; returns its parameters in the order of netbuilder's.
    """

    make: Callable[[Any], nn.Module]
    loss: Losses
    entries: Entries


def in_order(module: nn.Module) -> list[Entry]:
    """Return the parameters in PyTorch's order."""
    return [Entry([p]) for p in module.parameters()]


def shared_order(module: nn.Module) -> list[Entry]:
    """Return the parameters of a net of torchvision or timm that the zoo has, too."""
    named = dict(module.named_parameters())
    return [Entry([named[name]]) for name in in_zoo_order(named)]


def by_name(order: Callable[[dict[str, torch.Tensor]], Iterator[Any]]) -> Entries:
    """Return the parameters as a generator yields their names, or entries."""

    def entries(module: nn.Module) -> list[Entry]:
        named = dict(module.named_parameters())
        return [made if isinstance(made, Entry) else Entry([named[made]]) for made in order(named)]

    return entries


def classified(module: nn.Module, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores and loss of a classifier, of images or pixels."""
    scores = module(inputs["data"])
    return scores, functional.cross_entropy(scores, inputs["label"].long())


class UNet(nn.Module):
    """As ``create_unet`` says."""

    def __init__(self, channels: Sequence[int], classes: int) -> None:
        super().__init__()

        def conv(a: int, b: int) -> list[nn.Module]:
            return [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]

        def twice(a: int, b: int) -> nn.Module:
            return nn.Sequential(*conv(a, b), *conv(b, b))

        pairs = list(zip([3, *channels], channels))
        self.down = nn.ModuleList(twice(a, b) for a, b in pairs)
        up = [(nn.ConvTranspose2d(b, a, 2, stride=2), twice(2 * a, a)) for a, b in reversed(pairs[1:])]
        self.up = nn.ModuleList(nn.ModuleList(pair) for pair in up)
        self.scores = nn.Conv2d(channels[0], classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores, (N, classes, H, W)."""
        across = []
        for level, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if level else x)
            across.append(x)
        for (grow, block), other in zip(self.up, reversed(across[:-1])):
            x = block(torch.cat([other, grow(x)], 1))
        return self.scores(x)


def language_order(named: dict[str, torch.Tensor]) -> Iterator[Any]:
    """Yield the parameters of GPT-2, whose matrices are transposed."""
    for name, tensor in named.items():
        turned = name.endswith("weight") and tensor.ndim == 2 and name.split(".")[-2] in ("c_attn", "c_proj", "c_fc")
        yield Entry([tensor], transposed=turned)


def language_loss(module: nn.Module, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores and loss of the next words."""
    scores = module(inputs["data"].long()).logits
    return scores, functional.cross_entropy(scores.flatten(0, 1), inputs["label"].long().flatten())


def encoded_order(named: dict[str, torch.Tensor]) -> Iterator[Any]:
    """Yield the parameters of BERT; those of queries, keys and values are joined."""
    for name in named:
        if ".self.query." in name:
            yield Entry([named[name.replace("query", part)] for part in ("query", "key", "value")])
        elif ".self." not in name:
            yield name


def encoded_loss(module: nn.Module, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores and loss of sequences."""
    seen = (inputs["mask"][:, 0, 0] == 0).long()
    scores = module(inputs["data"].long(), attention_mask=seen, token_type_ids=inputs["segments"].long()).logits
    return scores, functional.cross_entropy(scores, inputs["label"].long())


class Recommender(nn.Module):
    """As ``create_dlrm`` says; gradients of tables can be ``sparse``."""

    def __init__(
        self, tables: Sequence[int], dim: int, bottom: Sequence[int], top: Sequence[int], *, sparse: bool = False
    ) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, dim, mode="sum", sparse=sparse) for rows in tables)
        count = len(tables) + 1
        sizes = [*bottom, dim], [dim + count * (count - 1) // 2, *top, 1]
        self.bottom, self.top = (nn.ModuleList(map(nn.Linear, s, s[1:])) for s in sizes)

    def forward(self, inputs: Inputs) -> torch.Tensor:
        """Return the logits, (N, 1)."""
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


def recommended(module: nn.Module, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits and loss of clicks."""
    scores = module(inputs)
    return scores, functional.binary_cross_entropy_with_logits(scores, inputs["label"])


class _Tagger(nn.Module):
    """Embeddings of words, an LSTM in each direction, the scores of each word's classes."""

    def __init__(self, words: int, size: int, classes: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, size)
        self.lstm = nn.LSTM(size, size, bidirectional=True)
        self.scores = nn.Linear(2 * size, classes)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the scores, (length * N, classes)."""
        return self.scores(self.lstm(self.table(words))[0].flatten(0, 1))


def _tagged(module: nn.Module, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    scores = module(inputs["data"])
    return scores, functional.cross_entropy(scores, inputs["label"].flatten())


def _tagger_order(named: dict[str, torch.Tensor]) -> Iterator[Any]:
    """Yield the parameters; netbuilder's gates are i, f, o and g."""
    yield "table.weight"
    for direction in ("", "_reverse"):
        for part in ("weight_ih", "bias_ih", "weight_hh", "bias_hh"):
            yield Entry([named[f"lstm.{part}_l0{direction}"]], parts=(0, 1, 3, 2))
    yield from ("scores.weight", "scores.bias")


def _classifier(make: Callable[..., nn.Module], **options: Any) -> Peer:
    return Peer(lambda work: make(num_classes=work.classes, **options), classified, shared_order)


def _gpt2(work: Work) -> nn.Module:
    options = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=2, **options))


def _bert(work: Work) -> nn.Module:
    options = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "pad_token_id": None}
    config = transformers.BertConfig(num_hidden_layers=2, num_labels=work.classes, **options)
    return transformers.BertForSequenceClassification(config)


def _dlrm(work: Work) -> nn.Module:
    return Recommender((work.classes,) * TABLES, 16, (13, 512, 256, 64), (512, 256), sparse=True)


def _swin(work: Work) -> nn.Module:
    options = {"stochastic_depth_prob": 0.0, "num_classes": work.classes}
    return tv.SwinTransformer([4, 4], 96, [2, 2, 6, 2], [3, 6, 12, 24], [7, 7], **options)


_no_drop: dict[str, Any] = {"dropout": 0.0}
_no_depth: dict[str, Any] = {"stochastic_depth_prob": 0.0}
_NETS: dict[str, Peer] = {
    "mobilenet-v2": _classifier(tv.mobilenet_v2, **_no_drop),
    "mobilenet-v3": _classifier(tv.mobilenet_v3_large, **_no_drop),
    "efficientnet-b0": _classifier(tv.efficientnet_b0, **_no_drop, **_no_depth),
    "regnet-y": _classifier(tv.regnet_y_400mf),
    "densenet-121": _classifier(tv.densenet121),
    "convnext-tiny": _classifier(tv.convnext_tiny, **_no_depth),
    "vit-small": _classifier(partial(timm.create_model, "vit_small_patch16_224")),
    "swin-tiny": Peer(_swin, classified, shared_order),
    "unet": Peer(lambda work: UNet((64, 128, 256, 512, 1024), work.classes), classified, in_order),
    "gpt2": Peer(_gpt2, language_loss, by_name(language_order)),
    "bert": Peer(_bert, encoded_loss, by_name(encoded_order)),
    "dlrm": Peer(_dlrm, recommended, in_order),
    "tagger": Peer(lambda work: _Tagger(WORDS["tagger"], work.size, work.classes), _tagged, by_name(_tagger_order)),
}


def build(work: Work) -> tuple[nn.Module, Callable[..., torch.Tensor], Callable[[], list[torch.Tensor]]]:
    """Return a module in training mode, what computes its loss from it and the inputs, and what returns its parameters.

    Args:
        work: its ``net`` is one of ``MODELS``. Images have their channels last.
    """
    peer = _NETS[work.net]
    module = peer.make(work).train().to(memory_format=torch.channels_last)

    def parameters() -> list[torch.Tensor]:
        return [entry.join([t.detach() for t in entry.tensors]) for entry in peer.entries(module)]

    return module, lambda scores, inputs: peer.loss(scores, inputs)[1], parameters
