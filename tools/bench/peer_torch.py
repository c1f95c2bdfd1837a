"""PyTorch's side of the benchmarks: the same nets, eager or compiled. Run by path in an environment with torch.

python peer_torch.py mlp eager THREADS
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from torch import nn
from worker import serve


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with a shortcut; the stride sits where Caffe2's ResNet-50 has it, on the 3x3."""

    def __init__(self, inside: int, width: int, outside: int, stride: int) -> None:
        super().__init__()
        self.a = nn.Conv2d(inside, width, 1, bias=False)
        self.an = nn.BatchNorm2d(width)
        self.b = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.c = nn.Conv2d(width, outside, 1, bias=False)
        self.cn = nn.BatchNorm2d(outside)
        self.shortcut: nn.Module = nn.Identity()
        if inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride=stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x):
        y = torch.relu(self.an(self.a(x)))
        y = torch.relu(self.bn(self.b(y)))
        return torch.relu(self.cn(self.c(y)) + self.shortcut(x))


def resnet50(classes: int = 1000) -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    inside = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            layers.append(Bottleneck(inside, width, 4 * width, 2 if block == 0 and stage > 0 else 1))
            inside = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes))


def mlp(width: int = 64, depth: int = 4) -> nn.Module:
    layers: list[nn.Module] = []
    for i in range(depth):
        layers.append(nn.Linear(width, width))
        if i < depth - 1:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def main(task: str, mode: str, threads: int, batch: int) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    if task == "mlp":
        net, x, y = mlp(), torch.randn(batch, 64), torch.randint(0, 64, (batch,))
        warmup = 300
    elif task == "resnet50":
        net, x, y = resnet50(), torch.randn(batch, 3, 224, 224), torch.randint(0, 1000, (batch,))
        net = net.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
        warmup = 2
    else:
        raise SystemExit(f"unknown task {task!r}")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4 if task == "resnet50" else 0)
    loss_of = nn.CrossEntropyLoss()
    forward = torch.compile(net) if mode == "compile" else net

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_of(forward(x), y).backward()
        optimizer.step()

    serve(step, warmup=warmup, info={"torch": torch.__version__, "mode": mode})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
