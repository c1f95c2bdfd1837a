"""netbuilder-train that gets a signal in a phase of the run: ``trainer_stops.py PHASE SIGNAL RANK OPTIONS...``."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from netbuilder.distributed import Rendezvous
from netbuilder.exchange import checkpoint_file
from netbuilder.tools import imagenet_trainer
from netbuilder.tools.training import saving, stopping, trained_model

__all__ = ["PHASES", "signal_in"]

STEP = 7
"""The step in which the signal comes, of the phases "step" and "again"."""


def _nth(real: Callable[..., Any], number: int, call: Callable[[], object]) -> Callable[..., Any]:
    """Return ``real``, whose call ``number``, from 1, first calls ``call``."""
    counted = []

    def wrapped(*arguments: Any, **options: Any) -> Any:
        counted.append(1)
        if len(counted) == number:
            call()
        return real(*arguments, **options)

    return wrapped


PHASES: dict[str, tuple[Any, str, int]] = {
    "start": (trained_model, "training_model", 1),
    "step": (saving.Saving, "after_step", STEP),
    "evaluation": (trained_model, "gather_shares", 2),
    "checkpoint": (checkpoint_file, "write_minidb", 1),
    "export": (trained_model, "save_predictor", 1),
}
"""Name -> what is called in this phase, and the number of the call before which the signal comes."""


@contextlib.contextmanager
def signal_in(phase: str, number: int) -> Iterator[None]:
    """Let this process get a signal in a phase; in "again" also a second one, while it writes the last checkpoint."""
    with contextlib.ExitStack() as stack:
        for name in ("step", "checkpoint") if phase == "again" else (phase,):
            owner, function, count = PHASES[name]
            real = getattr(owner, function)
            wrapped = _nth(real, count, lambda: os.kill(os.getpid(), number))
            stack.enter_context(mock.patch.object(owner, function, wrapped))
        if phase == "again":
            stack.enter_context(mock.patch.object(stopping, "SAME", 0.0))
        yield


def main() -> int:
    phase, number, rank = sys.argv[1], signal.Signals[sys.argv[2]], int(sys.argv[3])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what was started in the background
    chosen = Rendezvous.from_environment().shard_id == rank
    with signal_in(phase, number) if chosen else contextlib.nullcontext():
        return imagenet_trainer.main(sys.argv[4:])


if __name__ == "__main__":
    sys.exit(main())
