"""Compare the nets of the zoo with those of torchvision, timm and transformers, on equal parameters, in float64.

    python -m venv .venv-torch && .venv-torch/bin/pip install -e . -r tests/torch_nets/requirements.txt
    PYTHONPATH=tests .venv-torch/bin/python tests/torch_nets/compare.py [NET ...]

Prints, for each net, the worst relative difference of scores, loss and gradients in training mode, and of scores and
loss in test mode. ``--store`` writes what PyTorch computes for the small nets to golden.json, which the tests read.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers import PEERS

from netbuilder.exchange.weight_names import RUNNING, in_zoo_order
from netbuilder.tools.bench.peer_models import Peer, shared_order
from zoo_cases import SMALL, USUAL, Case, Result, digest, run

GOLDEN = Path(__file__).with_name("golden.json")


def peer_of(name: str) -> Peer:
    return next(peer for prefix, peer in PEERS.items() if name.startswith(prefix))


def run_peer(case: Case, peer: Peer, ours: Result, *, is_test: bool) -> Result:
    """Run the net of PyTorch on the parameters of ``ours``; gradients have netbuilder's names and layouts."""
    module = peer.make(case.size).double().train(not is_test)
    entries = peer.entries(module)
    trained = [blob for blob in ours.parameters if blob in ours.trained]
    assert len(entries) == len(trained), (len(entries), len(trained))
    for blob, entry in zip(trained, entries):
        value = torch.from_numpy(ours.parameters[blob])
        entry.copy(value.reshape(entry.join(entry.tensors).shape))
    buffers = dict(module.named_buffers())
    order = in_zoo_order(buffers) if peer.entries is shared_order else [*buffers]
    running = [buffers[name] for name in order if name.endswith(RUNNING)]
    computed = [blob for blob in ours.parameters if blob.endswith(("_rm", "_riv"))]
    assert len(running) == len(computed)
    for blob, tensor in zip(computed, running):
        tensor.copy_(torch.from_numpy(ours.parameters[blob]))
    inputs = {k: torch.from_numpy(v) for k, v in case.draw(np.random.default_rng(0), case.batch).items()}
    scores, loss = peer.loss(module, inputs)
    found = Result(scores.detach().numpy(), float(loss.detach()))
    if not is_test:
        loss.backward()
        for blob, entry in zip(trained, entries):
            gradient = entry.join([t.grad for t in entry.tensors])
            found.gradients[blob] = gradient.numpy().reshape(ours.parameters[blob].shape)
    return found


def apart(ours: np.ndarray, theirs: np.ndarray, scale: float = 0.0) -> float:
    return float(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), scale, 1e-300))


def compare(name: str, case: Case) -> tuple[list[float], dict[str, Any]]:
    """Return the differences, and what PyTorch computed of the small nets."""
    found, stored = [], {}
    for is_test in (False, True):
        ours = run(case, is_test=is_test)
        theirs = run_peer(case, peer_of(name), ours, is_test=is_test)
        found += [apart(ours.scores.reshape(theirs.scores.shape), theirs.scores), abs(ours.loss / theirs.loss - 1)]
        if not is_test:
            least = 1e-6 * max(np.abs(g).max() for g in theirs.gradients.values())
            assert ours.gradients.keys() == theirs.gradients.keys()
            found.append(max(apart(ours.gradients[p], g, least) for p, g in theirs.gradients.items()))
        stored["test" if is_test else "train"] = digest(theirs)
    return found, stored


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("nets", nargs="*", help="names of nets of usual size; all, if there is none")
    parser.add_argument("--small", action="store_true", help="the small nets of the tests")
    parser.add_argument("--store", action="store_true", help="write golden.json (with --small)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = SMALL if options.small or options.store else USUAL
    golden, worst = {}, 0.0
    print(f"| {'net':22} | scores | loss | gradients | scores, test | loss, test |\n|---|---|---|---|---|---|")
    for name in options.nets or cases:
        found, golden[name] = compare(name, cases[name])
        worst = max(worst, *found)
        print(f"| {name:22} | " + " | ".join(f"{x:.1e}" for x in found) + " |", flush=True)
    if options.store:
        GOLDEN.write_text(json.dumps(golden) + "\n")
    return int(not worst < 1e-5)


if __name__ == "__main__":
    sys.exit(main())
