"""Store what torchvision's nets compute of the weights that ``torchvision_cases`` draws.

    PYTHONPATH=tests .venv-torch/bin/python tests/torch_nets/torchvision_scores.py

Writes tests/golden/torchvision_scores.json: for each net the names and shapes of its weights, and its scores.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torchvision.models as tv
from torch import nn

from torchvision_cases import CASES, CLASSES, HIDDEN, data, drawn

GOLDEN = Path(__file__).parents[1] / "golden" / "torchvision_scores.json"


def module_of(name: str) -> nn.Module:
    options = {"init_weights": False} if name.startswith(("vgg", "inception")) else {}
    module = getattr(tv, name)(num_classes=CLASSES, **options)
    if name in ("alexnet", "vgg11_bn"):  # narrower, and of VGG without the means over 7 x 7 parts
        layers = [each for each in module.classifier.modules() if isinstance(each, nn.Linear)]
        width = layers[0].in_features if name == "alexnet" else 512
        dims = iter([(width, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, CLASSES)])
        module.classifier = nn.Sequential(
            *(nn.Linear(*next(dims)) if isinstance(each, nn.Linear) else each for each in module.classifier)
        )
        module.avgpool = module.avgpool if name == "alexnet" else nn.Identity()
    return module.eval()


def main() -> None:
    torch.set_num_threads(1)
    golden = {}
    for name, case in CASES.items():
        module = module_of(name)
        shapes = {key: list(value.shape) for key, value in module.state_dict().items() if value.is_floating_point()}
        module.load_state_dict({key: torch.from_numpy(value) for key, value in drawn(shapes).items()}, strict=False)
        with torch.no_grad():
            scores = module.double()(torch.from_numpy(data(case.side)).double())
        golden[name] = {"shapes": shapes, "scores": scores.tolist()}
        print(name, scores.abs().max().item())
    GOLDEN.write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
