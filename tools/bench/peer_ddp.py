"""PyTorch's side of the benchmark of processes: DistributedDataParallel over gloo.

It runs by path in an environment with torch: python peer_ddp.py WARMUP WORK PROCESSES; this process is rank 0, reads
the commands, and starts the others.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile

import torch
from peer_torch import Training
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from work import Work
from worker import answer_commands, open_answers, timed

_RANK = "PEER_DDP_RANK"


def prepare(warmup: int, work: Work, rank: int, size: int, folder: str) -> Training:
    """Join the other processes, and train the first steps."""
    torch.set_num_threads(work.threads)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    training = Training(dataclasses.replace(work, batch=work.batch // size))
    training._scores = DistributedDataParallel(training.net)
    timed(training.step, warmup)
    return training


def follow(training: Training) -> None:
    """Run the steps that rank 0 names, until the input ends."""
    for line in sys.stdin:
        timed(training.step, json.loads(line)["steps"])


def main(arguments: list[str]) -> None:
    """Serve training steps as rank 0, or follow it."""
    warmup, work, size = int(arguments[0]), Work.from_text(arguments[1]), int(arguments[2])
    if _RANK in os.environ:
        training = prepare(warmup, work, int(os.environ[_RANK]), size, arguments[3])
        follow(training)
        distributed.destroy_process_group()
        return
    answers = open_answers()
    with tempfile.TemporaryDirectory() as folder:
        others = [
            subprocess.Popen(
                [sys.executable, __file__, *arguments, folder], stdin=subprocess.PIPE, text=True,
                env={**os.environ, _RANK: str(rank)},
            )
            for rank in range(1, size)
        ]  # fmt: skip
        try:
            training = prepare(warmup, work, 0, size, folder)

            def run(command: dict) -> dict:
                for other in others:
                    assert other.stdin is not None
                    other.stdin.write(json.dumps(command) + "\n")
                    other.stdin.flush()
                return {"seconds": timed(training.step, command["steps"]), "loss": training.loss.item()}

            answer_commands(answers, run, {"version": torch.__version__, "mode": work.mode})
            for other in others:
                other.communicate(timeout=20)
            distributed.destroy_process_group()
        finally:
            for other in others:
                other.kill()
                other.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
