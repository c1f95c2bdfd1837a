"""Show that training gives the same parameters on any number of devices: ``netbuilder-prove``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from netbuilder.graph.memory_budget import MemoryBudgetError, parse_budget
from netbuilder.proto import NetError
from netbuilder.proto.whole_file import write_text
from netbuilder.tools.common_options import count
from netbuilder.tools.parser import Parser, did_you_mean
from netbuilder.tools.proof.blocks import trained_apart
from netbuilder.tools.proof.images import IMAGES
from netbuilder.tools.proof.measure import METHODS, block_rule, difference, has_options, supports, trained
from netbuilder.tools.proof.models import OPTIMIZERS, SAMPLES, TABLES, ProofModel
from netbuilder.tools.proof.sequences import SEQUENCES

__all__ = ["MODELS", "Entry", "entries", "main"]

MODELS = {**TABLES, **SEQUENCES, **IMAGES}
"""Name -> model to train."""

DEVICES = (1, 2, 3, 4, 8)

_OPTIONS = ("dtype", "memory_budget", "shared_model")

_BOUNDS = {"float32": 1e-5, "bfloat16": 2**-7}  # bfloat16: the distance of its numbers between 1 and 2


class Entry(NamedTuple):
    """An entry of the table: the difference of a model's parameters from the reference, mostly those of one device.

    The difference is None if the memory budget is too small for the model.
    """

    model: str
    optimizer: str
    method: str
    devices: int
    difference: float | None


def entries(
    models: Sequence[str],
    optimizers: Sequence[str],
    devices: Sequence[int],
    steps: int,
    methods: Sequence[str] = ("Parallelize",),
    options: Mapping[str, Any] | None = None,
) -> Iterator[Entry]:
    """Train each model with each optimizer on each number of devices; yield the differences from one device.

    The entry of Parallelize for one device is the difference between two runs on it: 0, since runs are reproducible to
    the bit. BMUF gives other parameters than one device; its reference is ``trained_apart``. Methods have no entries
    for models and options that they do not support; local SGD has none but for plain SGD, of which alone the mean of
    the replicas' steps is a step on the whole batch.

    Args:
        options: of Parallelize, for all models. The reference has the same ``dtype``, and none of the others.
    """
    options = options or {}
    for name in models:
        plain = _with_options(MODELS[name], {key: value for key, value in options.items() if key == "dtype"})
        model = _with_options(MODELS[name], options)
        for optimizer in optimizers:
            update = OPTIMIZERS[optimizer]
            one = trained(plain, update, 1, steps=steps)
            for method in methods:
                if not supports(method, model) or method == "local SGD" and optimizer != "SGD":
                    continue
                for number in devices:
                    try:
                        got = trained(model, update, number, steps=steps, method=method)
                    except MemoryBudgetError:
                        yield Entry(name, optimizer, method, number, None)
                        continue
                    blocks = method == "BMUF"
                    want = trained_apart(plain, update, number, block_rule(number), steps=steps) if blocks else one
                    apart = difference(list(got.values()), list(want.values()))
                    yield Entry(name, optimizer, method, number, apart)


def _with_options(model: ProofModel, options: Mapping[str, Any]) -> ProofModel:
    return replace(model, options={**model.options, **options})


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table as the command line says; return 1 if an entry is above the bound."""
    options = _parser().parse_args(arguments)
    chosen = {name: getattr(options, name) for name in _OPTIONS if getattr(options, name)}
    bound = _BOUNDS[options.dtype or "float32"] if options.bound is None else options.bound
    if without := [method for method in options.methods if not has_options(method, chosen)]:
        print(f"left out, since these methods have no shared_model: {', '.join(without)}")
    print(_line(["model", "optimizer", "method", *(f"{count} devices" for count in options.devices)]))
    found: list[Entry] = []
    for entry in entries(options.models, options.optimizers, options.devices, options.steps, options.methods, chosen):
        found.append(entry)
        if len(found) % len(options.devices) == 0:
            row = found[-len(options.devices) :]
            cells = ["-" if each.difference is None else f"{each.difference:.1e}" for each in row]
            print(_line([entry.model, entry.optimizer, entry.method, *cells]), flush=True)
    if not found:
        print(
            "netbuilder-prove: these methods support none of the models and optimizers; add Parallelize to --methods",
            file=sys.stderr,
        )
        return 1
    if options.json:
        write_text(options.json, json.dumps([entry._asdict() for entry in found], indent=1))
    return _judge(found, bound, f"{options.steps} steps{_listed(chosen)}")


def _listed(chosen: Mapping[str, Any]) -> str:
    return " with " + ", ".join(f"{name}={value}" for name, value in chosen.items()) if chosen else ""


def _judge(found: Sequence[Entry], bound: float, what: str) -> int:
    """Print the worst entry; return the exit status."""
    differences = {entry: entry.difference for entry in found if entry.difference is not None}
    if missing := len(found) - len(differences):
        print(f"{missing} of {len(found)} entries are missing (-): the memory budget is too small for their models")
    if not differences:
        print("netbuilder-prove: the memory budget is too small for all models; give a larger one", file=sys.stderr)
        return 1
    worst = max(differences, key=differences.__getitem__)
    print(
        f"worst of {len(differences)} entries after {what}: {worst.difference:.1e}, {worst.model}, {worst.optimizer}, "
        f"{worst.method}, {worst.devices} devices; the bound is {bound:.0e}"
    )
    if not differences[worst] <= bound:
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
        "--dtype",
        choices=list(_BOUNDS),
        help="type in which activations are stored, also on the one device that is compared with (default: float32)",
    )
    parser.add_argument(
        "--memory-budget",
        type=_budget,
        metavar="SIZE",
        help="memory of a step on several devices, in bytes or as a fraction such as 0.95; compared with one device "
        "without a budget",
    )
    parser.add_argument(
        "--shared-model",
        action="store_true",
        help="one copy of each parameter for all replicas (Parallelize and DataParallel)",
    )
    parser.add_argument(
        "--bound",
        type=float,
        help="exit with status 1 if a difference is larger "
        f"(default: {', '.join(f'{bound:.0e} with {dtype}' for dtype, bound in _BOUNDS.items())})",
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


def _budget(text: str) -> str:
    try:
        parse_budget(text, "--memory-budget")
    except NetError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--memory-budget: ")) from None
    return text


def _counts(text: str) -> list[int]:
    counts = [int(part) for part in text.split(",") if part.strip().isdigit()]
    if not counts or len(counts) < text.count(",") + 1 or any(count < 1 or SAMPLES % count for count in counts):
        raise argparse.ArgumentTypeError(f"must be numbers that divide {SAMPLES}, such as 1,2,3,4,8, got {text!r}")
    return counts


if __name__ == "__main__":
    sys.exit(main())
