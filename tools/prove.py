"""Show that training gives the same parameters on any number of devices: ``netbuilder-prove``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

from netbuilder.engines.arrays import gpu_count
from netbuilder.graph.memory_budget import MemoryBudgetError
from netbuilder.parallel import GradientScaling
from netbuilder.proto import DeviceError
from netbuilder.proto.errors import counted
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.tools.common_options import budget, check_outputs, count
from netbuilder.tools.options import OptionsParser, option, switch
from netbuilder.tools.parser import real_number
from netbuilder.tools.proof.measure import METHODS, Values, difference, has_options
from netbuilder.tools.proof.models import OPTIMIZERS, SAMPLES
from netbuilder.tools.proof.processes import trained_in_processes
from netbuilder.tools.proof.table import MODELS, References, Run, runs_of
from netbuilder.tools.reporting import reporting
from netbuilder.tools.results import write_json
from netbuilder.tools.terminal import FIGURE, HEAD, WRONG, print_cells

__all__ = ["BOUNDS", "SCALE", "Entry", "entries", "main", "places_of"]

DEVICES = (1, 2, 3, 4, 8)

_OPTIONS = ("dtype", "memory_budget", "shared_model")

# Of bfloat16: the distance of its numbers between 1 and 2. Of float16: twice that, since gradients of filters have it.
BOUNDS = {"float32": 1e-5, "bfloat16": 2**-7, "float16": 2**-9}

SCALE = GradientScaling(initial=2.0**10)  # with which no step of these models overflows: all trainings skip none


class Entry(NamedTuple):
    """An entry of the table: the difference of a model's parameters from the reference, mostly those of one device.

    The devices are those of all processes. With several processes the difference is the largest of them; it is None if
    the memory budget is too small for the model.
    """

    model: str
    optimizer: str
    method: str
    devices: int
    processes: int
    difference: float | None

    @property
    def place(self) -> tuple[int, int]:
        """The numbers of processes and of devices of all processes."""
        return self.processes, self.devices


def entries(
    models: Sequence[str],
    optimizers: Sequence[str],
    devices: Sequence[int],
    steps: int,
    methods: Sequence[str] = ("Parallelize",),
    options: Mapping[str, Any] | None = None,
    processes: Sequence[int] = (1,),
) -> Iterator[Entry]:
    """Train each model with each optimizer on each number of devices; yield the differences from the references.

    The entry of Parallelize for one device is the difference between two runs on it: 0, since runs are reproducible to
    the bit. See ``runs_of`` for what has no entry, and ``References`` for what runs are compared with.

    Args:
        devices: numbers of devices of all processes.
        options: of Parallelize, for all models. The reference has the same ``dtype``, scale of gradients and kind of
            devices (``cpu_device``), and none of the others.
        processes: numbers of processes; each has as many devices. More than one are started, and train all that they
            have to before the first entry is yielded; it must be in the main thread then.

    Raises:
        DeviceError: several processes, and mpi4py or MPI is missing.
        DistributedError: one of several processes has failed.
    """
    options = options or {}
    runs = list(runs_of(models, optimizers, methods, places_of(devices, processes), options))
    together: dict[Run, list[Values]] = {}
    for number in processes:
        own = [run for run in runs if run.processes == number > 1]
        together.update(zip(own, trained_in_processes(number, own, steps, options) if own else ()))
    references = References(steps, options)
    for run in runs:
        want = references.of(run)
        got = together[run] if run in together else _alone(run, steps, options)
        if run.ends_within_block(steps):  # then the replicas differ, and the reference is the first one
            got = got[:1]
        apart = [difference([values[name] for name in want], list(want.values())) for values in got]
        yield Entry(*run, max(apart, default=None))


def _alone(run: Run, steps: int, options: Mapping[str, Any]) -> list[Values]:
    try:
        return [run.trained(steps, options)]
    except MemoryBudgetError:
        return []


def places_of(devices: Sequence[int], processes: Sequence[int]) -> list[tuple[int, int]]:
    """Return the numbers of processes and of devices of the columns of a table; all processes have as many devices."""
    return [(number, total) for number in processes for total in devices if total % number == 0]


@reporting("netbuilder-prove")
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table as the command line says; return 1 if an entry is above the bound."""
    options, chosen, places = _parse(arguments)
    bound = BOUNDS[options.dtype or "float32"] if options.bound is None else options.bound
    for name in chosen:
        if without := [method for method in options.methods if not has_options(method, [name])]:
            print(f"left out, since these methods have no {name}: {', '.join(without)}")
    if max(options.processes) > 1 and (
        without := [method for method in options.methods if not has_options(method, ["rendezvous"])]
    ):
        print(f"left out with several processes, which these methods do not have: {', '.join(without)}")
    titles = _padded(["model", "optimizer", "method", *_titles(places)])
    print_cells(titles, [HEAD] * len(titles))
    found = _print_rows(
        places,
        entries(
            options.models,
            options.optimizers,
            options.devices,
            options.steps,
            options.methods,
            chosen,
            options.processes,
        ),
        bound,
    )
    if not found:
        print(
            "netbuilder-prove: these methods support none of the models and optimizers; add Parallelize to --methods",
            file=sys.stderr,
        )
        return 1
    write_json(options.json, [entry._asdict() for entry in found])
    return _judge(found, bound, f"{options.steps} steps{_listed(chosen)}")


def _parse(arguments: Sequence[str] | None) -> tuple[_Options, dict[str, Any], list[tuple[int, int]]]:
    """Return the command line, the options of Parallelize, and the columns of the table."""
    parser = OptionsParser(_Options, prog="netbuilder-prove")
    options = parser.parse(arguments)
    check_outputs(options, "json")
    if on_gpus := options.gpus or options.dtype == "float16":
        options = replace(options, devices=_gpus(parser, options))
    options = replace(options, devices=options.devices or DEVICES)
    for number in options.processes:
        if not places_of(options.devices, [number]):
            parser.error(
                f"--processes: {number} processes cannot have as many devices each: none of --devices "
                f"{','.join(map(str, options.devices))} is a multiple of {number}"
            )
    places = places_of(options.devices, options.processes)
    if options.shared_model:
        places = [(number, devices) for number, devices in places if number in (1, devices)]
        if absent := sorted(set(options.processes).difference(number for number, _ in places)):
            parser.error(
                "--shared-model: processes that share no memory have one device each; add "
                f"{','.join(map(str, absent))} to --devices, or omit it from --processes"
            )
    chosen = {name: getattr(options, name) for name in _OPTIONS if getattr(options, name)}
    if on_gpus:
        chosen["cpu_device"] = False
    if options.dtype == "float16":
        chosen["gradient_scaling"] = SCALE
    return options, chosen, places


def _gpus(parser: OptionsParser[_Options], options: _Options) -> tuple[int, ...]:
    """Return the numbers of GPUs, those that there are by default; options that GPUs do not have end the program.

    Raises:
        DeviceError: a GPU is missing.
    """
    what, present = "--gpus" if options.gpus else f"--dtype {options.dtype}", gpu_count()
    if not present:
        why = "" if options.gpus else "activations are stored as float16 on GPUs only; "
        raise DeviceError(f"{what}: {why}this machine has no NVIDIA GPU that CuPy can use; run it where there is one")
    devices = options.devices or tuple(number for number in DEVICES if number <= present)
    if absent := [number for number in devices if number > present]:
        raise DeviceError(f"--devices: this machine has {counted(present, 'GPU')}, not {', '.join(map(str, absent))}")
    for name, given in (("--processes", max(options.processes) > 1), ("--shared-model", options.shared_model)):
        if given:
            parser.error(f"{name}: with GPUs there is one process, whose replicas do not share parameters; omit it")
    return devices


def _titles(places: Sequence[tuple[int, int]]) -> list[str]:
    if all(processes == 1 for processes, _ in places):
        return [f"{devices} devices" for _, devices in places]
    return [f"{processes} x {devices // processes}" for processes, devices in places]


def _print_rows(places: Sequence[tuple[int, int]], found: Iterable[Entry], bound: float) -> list[Entry]:
    """Print the rows of the table as soon as their entries are there; return all entries."""
    result: list[Entry] = []
    for labels, row in groupby(found, lambda entry: (entry.model, entry.optimizer, entry.method)):
        cells, styles = dict.fromkeys(places, ""), dict.fromkeys(places, "")
        for entry in row:
            cells[entry.place] = "-" if entry.difference is None else f"{entry.difference:.1e}"
            if entry.difference is not None:
                styles[entry.place] = FIGURE if entry.difference <= bound else WRONG
            result.append(entry)
        print_cells(_padded([*labels, *cells.values()]), ["", "", "", *styles.values()])
    return result


def _listed(chosen: Mapping[str, Any]) -> str:
    found = [f"{name}={chosen[name]}" for name in _OPTIONS if name in chosen]
    return (" on GPUs" if "cpu_device" in chosen else "") + (f" with {', '.join(found)}" if found else "")


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
        f"{worst.method}, {worst.devices} devices"
        f"{f' of {worst.processes} processes' if worst.processes > 1 else ''}; the bound is {bound:.0e}"
    )
    if not differences[worst] <= bound:
        print(f"netbuilder-prove: {worst.difference:.1e} is above the bound", file=sys.stderr)
        return 1
    return 0


def _padded(cells: Sequence[str]) -> list[str]:
    return [cells[0].ljust(20), cells[1].ljust(10), cells[2].ljust(12), *(cell.rjust(9) for cell in cells[3:])]


def _divisor(text: str) -> int:
    """Return a number of devices which can share the samples evenly."""
    if SAMPLES % (number := count(text)):
        raise argparse.ArgumentTypeError(f"must be numbers that divide {SAMPLES}, such as 1,2,3,4,8, got {text!r}")
    return number


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Train small models on several numbers of devices, and print how much their parameters differ from those of one
    device, or with BMUF from those of separate models and the rule in float64: ||a - b|| / max(||b||, 1e-6
    sqrt(n)). With --processes the devices are divided among processes, which are started over MPI.
    """

    models: tuple[str, ...] = option(
        f"models (default: all): {', '.join(MODELS)}", default=tuple(MODELS), choices=MODELS, metavar="NAME,NAME"
    )
    optimizers: tuple[str, ...] = option(
        f"optimizers (default: all): {', '.join(OPTIMIZERS)}",
        default=tuple(OPTIMIZERS),
        choices=OPTIMIZERS,
        metavar="NAME,NAME",
    )
    methods: tuple[str, ...] = option(
        f"how models are distributed over devices (default: all): {', '.join(METHODS)}",
        default=tuple(METHODS),
        choices=METHODS,
        metavar="NAME,NAME",
    )
    devices: tuple[int, ...] = option(
        f"numbers of devices, of all processes together (default: {','.join(map(str, DEVICES))}; of GPUs those "
        "that this machine has)",
        type=_divisor,
        default=(),
    )
    gpus: bool = switch("train on GPUs, also what is compared with")
    processes: tuple[int, ...] = option(
        "numbers of processes, among which the devices are divided: --devices 4 --processes 1,2,4 has the columns "
        "1 x 4, 2 x 2 and 4 x 1 (default: 1)",
        type=count,
        default=(1,),
        metavar="P,P",
    )
    steps: int = option("training steps", type=count, default=10)
    dtype: str | None = option(
        "type in which activations are stored, also on the one device that is compared with (default: float32); "
        "float16 is for GPUs (--gpus), and for models whose gradients are dense, since it scales them",
        choices=list(BOUNDS),
    )
    memory_budget: str | None = option(
        "memory of a step on several devices, in bytes or as a fraction such as 0.95; compared with one device "
        "without a budget",
        type=budget,
        metavar="SIZE",
    )
    shared_model: bool = switch(
        "one copy of each parameter for all replicas (Parallelize and DataParallel); several processes have one "
        "device each"
    )
    bound: float | None = option(
        "exit with status 1 if a difference is larger "
        f"(default: {', '.join(f'{bound:.0e} with {dtype}' for dtype, bound in BOUNDS.items())})",
        type=real_number(0),
    )
    json: str | None = option("also write all differences as JSON", metavar="FILE")


if __name__ == "__main__":
    sys.exit(main())
