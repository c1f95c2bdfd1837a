"""What each process of a job over two hosts runs: ``digits_program.py FILE`` trains a small net on scanned digits."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from netbuilder.data import digits
from netbuilder.distributed import Rendezvous
from process_training import Case, train_case
from toy_models import layers

__all__ = ["DIGITS"]


class _Digits(Case):
    def batches(self) -> Iterator[dict[str, Any]]:
        images, labels = digits()
        data = images.reshape(len(images), -1).astype(np.float32) / 16
        for first in range(0, 64 * 8, 64):
            yield {"data": data[first : first + 64], "label": labels[first : first + 64].astype(np.int32)}


DIGITS = _Digits(layers(64, 32, 10), {"data": (64,), "label": 10})


def main() -> None:
    place = Rendezvous.from_environment()
    values = train_case(DIGITS, 1, place)[-1]
    if place.shard_id == 0:
        np.savez(sys.argv[1], **values)
    print(f"rank {place.shard_id} of {place.num_shards} on {socket.gethostname()}")


if __name__ == "__main__":
    main()
