"""The nets of the benchmarks in PyTorch, with the layers of netbuilder's zoo and parameters in the same order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from work import Work

PROJECTION_EPSILON = 1e-3  # epsilon of normalization in the shortcuts of blocks without bottleneck


class Block(nn.Module):
    """Convolutions with normalization and Relu, and a shortcut; the 3x3 convolution of a bottleneck has the stride."""

    def __init__(self, layers: Sequence[nn.Module], inside: int, outside: int, stride: int, epsilon: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.shortcut: nn.Module = nn.Identity()
        if inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride=stride, bias=False), nn.BatchNorm2d(outside, eps=epsilon)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layers(x) + self.shortcut(x))


def simple_block(inside: int, outside: int, stride: int) -> Block:
    """Two 3x3 convolutions."""
    layers = [
        nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
        nn.Conv2d(outside, outside, 3, padding=1, bias=False),
        nn.BatchNorm2d(outside),
    ]
    return Block(layers, inside, outside, stride, PROJECTION_EPSILON)


def bottleneck(inside: int, width: int, outside: int, stride: int) -> Block:
    """A 1x1, a 3x3 and a 1x1 convolution."""
    layers = [
        nn.Conv2d(inside, width, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, outside, 1, bias=False),
        nn.BatchNorm2d(outside),
    ]
    return Block(layers, inside, outside, stride, 1e-5)


STAGES = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def resnet(work: Work) -> nn.Module:
    """The residual net of ``work.layers`` layers."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    inside = 64
    for stage, blocks in enumerate(STAGES[work.layers]):
        width = 64 << stage
        for block in range(blocks):
            stride = 2 if block == 0 and stage > 0 else 1
            if work.layers < 50:
                layers.append(simple_block(inside, width, stride))
                inside = width
            else:
                layers.append(bottleneck(inside, width, 4 * width, stride))
                inside = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, work.classes))


def mlp(work: Work) -> nn.Module:
    """Four fully connected layers of one width."""
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(work.size, work.size), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(work.size, work.classes))


def dense(inside: int, work: Work) -> list[nn.Module]:
    """The fully connected layers of AlexNet and VGG."""
    layers: list[nn.Module] = [nn.Flatten()]
    for dim in (inside, 4096):
        layers += [nn.Linear(dim, 4096), nn.ReLU(inplace=True)]
        if work.dropout:
            layers.append(nn.Dropout(0.5))
    return [*layers, nn.Linear(4096, work.classes)]


def alexnet(work: Work) -> nn.Module:
    """AlexNet: two towers with normalization over channels, or one without."""
    towers = 1 if work.net == "alexnet_one_tower" else 2
    filters = (64, 192, 384, 256, 256) if towers == 1 else (96, 256, 384, 384, 256)
    layers: list[nn.Module] = []
    inside, side = 3, work.size
    for number, outside in enumerate(filters, 1):
        kernel, stride, padding = {1: (11, 4, 2), 2: (5, 1, 2)}.get(number, (3, 1, 1))
        groups = towers if number in (2, 4, 5) else 1
        layers.append(nn.Conv2d(inside, outside, kernel, stride=stride, padding=padding, groups=groups))
        layers.append(nn.ReLU(inplace=True))
        side = (side + 2 * padding - kernel) // stride + 1
        if towers == 2 and number <= 2:
            layers.append(nn.LocalResponseNorm(5, alpha=5e-4, beta=0.75, k=2.0))
        if number in (1, 2, 5):
            layers.append(nn.MaxPool2d(3, stride=2))
            side = (side - 3) // 2 + 1
        inside = outside
    return nn.Sequential(*layers, *dense(inside * side * side, work))


def vgg16(work: Work) -> nn.Module:
    """VGG of 16 layers."""
    layers: list[nn.Module] = []
    inside = 3
    for count, outside in zip((2, 2, 3, 3, 3), (64, 128, 256, 512, 512)):
        for _ in range(count):
            layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.ReLU(inplace=True)]
            inside = outside
        layers.append(nn.MaxPool2d(2, stride=2))
    return nn.Sequential(*layers, *dense(inside * (work.size // 32) ** 2, work))


def conv_relu(inside: int, outside: int, kernel: int, stride: int = 1) -> nn.Module:
    """A convolution that keeps the size (over ``stride``), and Relu."""
    return nn.Sequential(nn.Conv2d(inside, outside, kernel, stride=stride, padding=kernel // 2), nn.ReLU(inplace=True))


class InceptionModule(nn.Module):
    """Four branches, concatenated."""

    def __init__(self, inside: int, one: int, three: tuple[int, int], five: tuple[int, int], pool: int) -> None:
        super().__init__()
        self.one = conv_relu(inside, one, 1)
        self.three = nn.Sequential(conv_relu(inside, three[0], 1), conv_relu(three[0], three[1], 3))
        self.five = nn.Sequential(conv_relu(inside, five[0], 1), conv_relu(five[0], five[1], 5))
        self.pool = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), conv_relu(inside, pool, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], dim=1)


def inception_v1(work: Work) -> nn.Module:
    """GoogLeNet with normalization over channels, without auxiliary classifiers."""
    norm = [nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0) for _ in range(2)]
    pool = [nn.MaxPool2d(3, stride=2, padding=1) for _ in range(4)]
    layers = [
        *(conv_relu(3, 64, 7, 2), pool[0], norm[0]),
        *(conv_relu(64, 64, 1), conv_relu(64, 192, 3), norm[1], pool[1]),
        InceptionModule(192, 64, (96, 128), (16, 32), 32),
        InceptionModule(256, 128, (128, 192), (32, 96), 64),
        pool[2],
        InceptionModule(480, 192, (96, 208), (16, 48), 64),
        InceptionModule(512, 160, (112, 224), (24, 64), 64),
        InceptionModule(512, 128, (128, 256), (24, 64), 64),
        InceptionModule(512, 112, (144, 288), (32, 64), 64),
        InceptionModule(528, 256, (160, 320), (32, 128), 128),
        pool[3],
        InceptionModule(832, 256, (160, 320), (32, 128), 128),
        InceptionModule(832, 384, (192, 384), (48, 128), 128),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    ]
    if work.dropout:
        layers.append(nn.Dropout(0.4))
    return nn.Sequential(*layers, nn.Linear(1024, work.classes))


class Attention(nn.Module):
    """A decoder with attention over the embeddings of all words: an LSTM cell and attention written out."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        size = work.size
        self.table = nn.Embedding(work.classes, size)
        nn.init.uniform_(self.table.weight, -0.1, 0.1)
        self.keys = nn.Linear(size, size)
        self.from_input = nn.Linear(size, 4 * size)
        self.from_state = nn.Linear(2 * size, 4 * size)
        self.query = nn.Linear(size, size)
        self.logits = nn.Linear(size, 1, bias=False)
        self.scores = nn.Linear(2 * size, work.classes)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        rows = self.table(words)
        keys, given, read = self.keys(rows), self.from_input(rows), rows.permute(1, 2, 0)
        hidden = cell = seen = torch.zeros_like(rows[0])
        outputs = []
        for x in given:
            i, f, o, g = (x + self.from_state(torch.cat([hidden, seen], 1))).chunk(4, 1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(cell)
            weights = torch.softmax(self.logits(torch.tanh(keys + self.query(hidden))), 0)
            seen = torch.bmm(read, weights.transpose(0, 1))[..., 0]
            outputs.append(torch.cat([hidden, seen], 1))
        return self.scores(torch.cat(outputs))


class LanguageModel(nn.Module):
    """Embeddings of words, an LSTM over them, scores of the next word."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.table = nn.Embedding(work.classes, work.size)
        nn.init.uniform_(self.table.weight, -0.1, 0.1)
        self.lstm = nn.LSTM(work.size, work.size)
        self.scores = nn.Linear(work.size, work.classes)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.scores(self.lstm(self.table(words))[0].flatten(0, 1))

    def in_order(self) -> list[torch.Tensor]:
        """Return the parameters in netbuilder's order, with its order of gates: i, f, o and g."""
        lstm = self.lstm
        gates = [lstm.weight_ih_l0, lstm.bias_ih_l0, lstm.weight_hh_l0, lstm.bias_hh_l0]
        ours = [torch.cat([torch.chunk(p.detach(), 4)[k] for k in (0, 1, 3, 2)]) for p in gates]
        return [self.table.weight, *ours, self.scores.weight, self.scores.bias]


def build(work: Work) -> nn.Module:
    """Return the net that ``work`` names, in channels-last format if its input is images."""
    if work.net == "attention":
        return Attention(work)
    if work.net == "lstm":
        return LanguageModel(work)
    if work.net == "mlp":
        return mlp(work)
    others = {
        "alexnet": alexnet,
        "alexnet_one_tower": alexnet,
        "inception_v1": inception_v1,
        "vgg16": vgg16,
    }
    make = resnet if work.layers in STAGES else others[work.net]
    return make(work).to(memory_format=torch.channels_last)
