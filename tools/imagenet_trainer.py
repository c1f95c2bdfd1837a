"""Train a classifier data-parallel: ``netbuilder-train``."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from netbuilder.proto import DeviceError, NetError
from netbuilder.tools.training.images import load_images
from netbuilder.tools.training.options import Options, parse
from netbuilder.tools.training.run import Run

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, evaluate and export as the command line says; returns the exit status."""
    options = parse(arguments)
    try:
        train, test = load_images(options.data)
        if len(train) < options.batch:
            raise NetError(f"--batch: {options.batch} samples a step, and the data has {len(train)}; give fewer")
        if options.export:
            _make_writable(Path(options.export))  # before the hours of training, not behind them
        began = time.perf_counter()
        run = Run(options, train, test)
        _say_what_runs(options, run, len(train), len(test))
        accuracy = _train(options, run)
        print(
            f"trained in {time.perf_counter() - began:.1f} s; accuracy on {len(test)} held-out images: {accuracy:.2%}"
        )
        if options.export:
            run.export(options.export)
            print(f"predictor written to {options.export}", flush=True)
        if options.check_export:
            return subprocess.run(
                [sys.executable, "-m", "netbuilder.tools.evaluate_predictor", str(options.export),
                 "--data", options.data],
                check=False,
            ).returncode  # fmt: skip
    except (NetError, DeviceError, OSError, FloatingPointError) as error:
        print(f"netbuilder-train: {error}", file=sys.stderr)
        return 1
    return 0


def _make_writable(folder: Path) -> None:
    """Make the folder for the predictor, and raise OSError if no file can be written there."""
    folder.mkdir(parents=True, exist_ok=True)
    trial = folder / ".writable"
    trial.touch()
    trial.unlink()


def _say_what_runs(options: Options, run: Run, train: int, test: int) -> None:
    word = "CPU" if options.cpu else "GPU"
    devices = f"{word} {', '.join(map(str, options.devices))}"
    print(
        f"model {options.model}: {run.parameter_count:,} parameters; "
        f"data {options.data}: {train} to train, {test} held out"
    )
    print(
        f"devices {devices}; batch {options.batch} in all, {options.device_batch} a device; "
        f"loss scale 1/{len(options.devices)}; learning rate {options.learning_rate:g} ({options.policy}), "
        f"momentum {options.momentum:g}, weight decay {options.weight_decay:g}; seed {options.seed}",
        flush=True,
    )


def _train(options: Options, run: Run) -> float:
    accuracy = 0.0
    for number in range(1, options.epochs + 1):
        epoch = run.train_epoch(number)
        accuracy = run.evaluate()
        print(
            f"epoch {number}/{options.epochs}: loss {epoch.loss:.4f}, training accuracy {epoch.accuracy:.2%}, "
            f"held-out accuracy {accuracy:.2%}, {epoch.rate:.0f} images/s",
            flush=True,
        )
    return accuracy


if __name__ == "__main__":
    sys.exit(main())
