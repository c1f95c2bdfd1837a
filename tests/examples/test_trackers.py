"""The callbacks for trackers send each step and epoch to their package, of which the test has a double."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import pytest

from house import ROOT
from netbuilder.tools.training.callbacks import Callbacks
from small_training import run_of


def example():
    spec = importlib.util.spec_from_file_location("trackers", ROOT / "examples" / "trackers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def double(name, sent):
    """Return a module that notes in ``sent`` what it is given: (metrics, step), and "end"."""
    module, close = ModuleType(name), lambda: sent.append("end")
    if name == "wandb":
        log = SimpleNamespace(log=lambda values, step: sent.append((values, step)), finish=close)
        module.init = lambda config: log
    elif name == "mlflow":
        module.start_run, module.log_params, module.end_run = (lambda: None), (lambda values: None), close
        module.log_metrics = lambda values, step: sent.append((values, step))
    else:
        writer = SimpleNamespace(add_scalar=lambda name, value, step: sent.append(({name: value}, step)), close=close)
        module.SummaryWriter = lambda: writer
    return module


@pytest.mark.parametrize(
    ("kind", "package"), [("WandB", "wandb"), ("MLflow", "mlflow"), ("TensorBoard", "tensorboardX")]
)
def test_what_is_sent(kind, package, monkeypatch):
    sent = []
    monkeypatch.setitem(sys.modules, package, double(package, sent))
    run = run_of()
    run.callbacks = Callbacks([getattr(example(), kind)(run.options)])
    found = run.train()
    assert sent.pop() == "end"
    steps = [step for values, step in sent if "train/loss" in values]
    assert steps == list(range(1, 9))  # two epochs of 41 images in batches of 12
    assert [values["held_out/accuracy"] for values, _ in sent if "held_out/accuracy" in values][-1] == found.top1
