"""Nets of the zoo that torchvision has too, small or on small images, with weights drawn by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from netbuilder.zoo import create_alexnet, create_inception_v3, create_shufflenet_v2, create_squeezenet, create_vgg

__all__ = ["CASES", "CLASSES", "HIDDEN", "Case", "data", "drawn"]

CLASSES, HIDDEN = 7, 16


class Case(NamedTuple):
    """A net of the zoo: what creates it, the extent of images, and further arguments."""

    create: Callable[..., Any]
    side: int
    options: Mapping[str, Any]

    def add(self, model: Any) -> Any:
        """Add the net in test mode; return its scores."""
        fixed = {"is_test": True, "no_loss": True, "image_size": self.side}
        return self.create(model, "data", 3, CLASSES, **fixed, **self.options)


CASES = {
    "alexnet": Case(create_alexnet, 224, {"towers": 1, "hidden": HIDDEN}),
    "vgg11_bn": Case(create_vgg, 32, {"num_layers": 11, "batch_norm": True, "hidden": HIDDEN}),
    "squeezenet1_0": Case(create_squeezenet, 64, {"version": "1.0"}),
    "squeezenet1_1": Case(create_squeezenet, 64, {"version": "1.1"}),
    "shufflenet_v2_x0_5": Case(create_shufflenet_v2, 40, {"width": "0.5x", "batch_norm": True}),
    "inception_v3": Case(create_inception_v3, 75, {}),
}
"""Name in torchvision -> case."""


def drawn(shapes: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """Return arrays by name, which preserve about the size of what goes through a layer."""
    rng, found = np.random.default_rng(0), {}
    for name, shape in sorted(shapes.items()):
        if len(shape) > 1:
            value = rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
        elif name.endswith(("running_var", "weight")):
            value = rng.uniform(0.5, 1.5, shape)
        else:
            value = rng.uniform(-0.2, 0.2, shape)
        found[name] = value.astype(np.float32)
    return found


def data(side: int) -> np.ndarray:
    """Return two images."""
    return np.random.default_rng(1).standard_normal((2, 3, side, side)).astype(np.float32)
