"""Show that training gives the same parameters on any number of devices: ``netbuilder-prove``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from netbuilder.proto.whole_file import write_text
from netbuilder.tools.common_options import count
from netbuilder.tools.parser import Parser, did_you_mean
from netbuilder.tools.proof.blocks import trained_apart
from netbuilder.tools.proof.images import IMAGES
from netbuilder.tools.proof.measure import METHODS, block_rule, difference, supports, trained
from netbuilder.tools.proof.models import OPTIMIZERS, SAMPLES, TABLES
from netbuilder.tools.proof.sequences import SEQUENCES

__all__ = ["MODELS", "Entry", "entries", "main"]

MODELS = {**TABLES, **SEQUENCES, **IMAGES}
"""Name -> model to train."""

DEVICES = (1, 2, 3, 4, 8)


class Entry(NamedTuple):
    """An entry of the table: the difference of a model's parameters from the reference, mostly those of one device."""

    model: str
    optimizer: str
    method: str
    devices: int
    difference: float


def entries(
    models: Sequence[str],
    optimizers: Sequence[str],
    devices: Sequence[int],
    steps: int,
    methods: Sequence[str] = ("Parallelize",),
) -> Iterator[Entry]:
    """Train each model with each optimizer on each number of devices; yield the differences from one device.

    The entry of Parallelize for one device is the difference between two runs on it: 0, since runs are reproducible to
    the bit. BMUF gives other parameters than one device; its reference is ``trained_apart``. Methods have no entries
    for models that they do not support; local SGD has none but for plain SGD, of which alone the mean of the replicas'
    steps is a step on the whole batch.
    """
    for model in models:
        for optimizer in optimizers:
            chosen = MODELS[model], OPTIMIZERS[optimizer]
            one = trained(*chosen, 1, steps=steps)
            for method in methods:
                if not supports(method, MODELS[model]) or method == "local SGD" and optimizer != "SGD":
                    continue
                for number in devices:
                    got = trained(*chosen, number, steps=steps, method=method)
                    want = trained_apart(*chosen, number, block_rule(number), steps=steps) if method == "BMUF" else one
                    apart = difference(list(got.values()), list(want.values()))
                    yield Entry(model, optimizer, method, number, apart)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table as the command line says; return 1 if an entry is above the bound."""
    options = _parser().parse_args(arguments)
    print(_line(["model", "optimizer", "method", *(f"{count} devices" for count in options.devices)]))
    found: list[Entry] = []
    for entry in entries(options.models, options.optimizers, options.devices, options.steps, options.methods):
        found.append(entry)
        if len(found) % len(options.devices) == 0:
            row = found[-len(options.devices) :]
            cells = [entry.model, entry.optimizer, entry.method, *(f"{each.difference:.1e}" for each in row)]
            print(_line(cells), flush=True)
    if not found:
        print(
            "netbuilder-prove: these methods support none of the models and optimizers; add Parallelize to --methods",
            file=sys.stderr,
        )
        return 1
    worst = max(found, key=lambda entry: entry.difference)
    print(
        f"worst of {len(found)} entries after {options.steps} steps: {worst.difference:.1e}, {worst.model}, "
        f"{worst.optimizer}, {worst.method}, {worst.devices} devices; the bound is {options.bound:.0e}"
    )
    if options.json:
        write_text(options.json, json.dumps([entry._asdict() for entry in found], indent=1))
    if worst.difference > options.bound:
        print(f"netbuilder-prove: {worst.difference:.1e} is above the bound", file=sys.stderr)
        return 1
    return 0


def _line(cells: Sequence[str]) -> str:
    return "  ".join(
        [cells[0].ljust(20), cells[1].ljust(10), cells[2].ljust(12), *(cell.rjust(9) for cell in cells[3:])]
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="netbuilder-prove",
        description="Train small models on several numbers of devices, and print how much their parameters differ from "
        "those of one device, or with BMUF from those of separate models and the rule in float64: "
        "||a - b|| / max(||b||, 1e-6 sqrt(n)).",
    )
    parser.add_argument(
        "--models",
        type=_some_of(MODELS),
        default=list(MODELS),
        metavar="NAMES",
        help=f"models, separated by commas (default: all): {', '.join(MODELS)}",
    )
    parser.add_argument(
        "--optimizers",
        type=_some_of(OPTIMIZERS),
        default=list(OPTIMIZERS),
        metavar="NAMES",
        help=f"optimizers, separated by commas (default: all): {', '.join(OPTIMIZERS)}",
    )
    parser.add_argument(
        "--methods",
        type=_some_of(METHODS),
        default=list(METHODS),
        metavar="NAMES",
        help=f"how models are distributed over devices, separated by commas (default: all): {', '.join(METHODS)}",
    )
    parser.add_argument(
        "--devices",
        type=_counts,
        default=list(DEVICES),
        metavar="NUMBERS",
        help="numbers of devices of the CPU, separated by commas (default: 1,2,3,4,8)",
    )
    parser.add_argument("--steps", type=count, default=10, metavar="N", help="training steps (default: 10)")
    parser.add_argument(
        "--bound", type=float, default=1e-5, help="exit with status 1 if a difference is larger (default: 1e-5)"
    )
    parser.add_argument("--json", metavar="FILE", help="also write all differences as JSON")
    return parser


def _some_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    def names(text: str) -> list[str]:
        found = [name.strip() for name in text.split(",")]
        if unknown := [name for name in found if name not in known]:
            raise argparse.ArgumentTypeError(
                f"unknown name {unknown[0]!r}{did_you_mean(unknown[0], known)}; the names are {', '.join(known)}"
            )
        return found

    return names


def _counts(text: str) -> list[int]:
    counts = [int(part) for part in text.split(",") if part.strip().isdigit()]
    if not counts or len(counts) < text.count(",") + 1 or any(count < 1 or SAMPLES % count for count in counts):
        raise argparse.ArgumentTypeError(f"must be numbers that divide {SAMPLES}, such as 1,2,3,4,8, got {text!r}")
    return counts


if __name__ == "__main__":
    sys.exit(main())
