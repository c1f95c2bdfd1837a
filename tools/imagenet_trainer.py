"""Train a classifier data-parallel: ``netbuilder-train``."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from netbuilder.distributed import ProcessGroup, Rendezvous
from netbuilder.distributed.elastic import REGROUP
from netbuilder.exchange import CheckpointFolder, LoadReport
from netbuilder.metrics import Classification
from netbuilder.optimizers.learning_rate import rate_at
from netbuilder.proto import NetError
from netbuilder.proto.errors import counted
from netbuilder.proto.os_errors import error_text
from netbuilder.proto.whole_file import write_text
from netbuilder.runtime.profile.process_memory import resident
from netbuilder.tools.profiling.zoo import ZooOptions, image_shape
from netbuilder.tools.reporting import EXPECTED, reporting, text_of
from netbuilder.tools.stored_nets import is_onnx
from netbuilder.tools.terminal import print_report
from netbuilder.tools.training.best_epoch import BestEpoch
from netbuilder.tools.training.budget import run_within_budget
from netbuilder.tools.training.callbacks import callbacks_of
from netbuilder.tools.training.class_report import class_csv, hardest, means_of, results_table
from netbuilder.tools.training.config import write_config
from netbuilder.tools.training.elastic import Elastic, elastic_of
from netbuilder.tools.training.find_rate import RateTest, find_rate
from netbuilder.tools.training.images import load_images
from netbuilder.tools.training.metrics import Metrics
from netbuilder.tools.training.models import policy_of
from netbuilder.tools.training.options import parse
from netbuilder.tools.training.rank_report import RankReport
from netbuilder.tools.training.reports import Printed, Recorded
from netbuilder.tools.training.run import Run, usual_callbacks
from netbuilder.tools.training.saving import Saving, find_checkpoint
from netbuilder.tools.training.settings import Options
from netbuilder.tools.training.step_timeout import StepTimeout
from netbuilder.tools.training.stopping import Stopping
from netbuilder.tools.training.trained_model import Evaluation

__all__ = ["main"]


_EXPECTED: tuple[type[Exception], ...] = (*EXPECTED, FloatingPointError)


@reporting("netbuilder-train", output_optional=True)
def main(arguments: Sequence[str] | None = None) -> int:
    """Train, evaluate and export as the command line says; return the exit status.

    Started in several processes by netbuilder-launch, mpiexec or srun, they train together.
    """
    group, where = ProcessGroup(), ""
    try:
        rendezvous = Rendezvous.from_environment()
        where = f"rank {rendezvous.shard_id}: " if rendezvous.num_shards > 1 else ""
        options = parse(arguments, rendezvous=rendezvous)
        group = options.group()
        with _printing(group):
            return _run(options, group, list(sys.argv[1:] if arguments is None else arguments))
    except _EXPECTED as error:
        print(f"netbuilder-train: {where}{text_of(error)}", file=sys.stderr, flush=True)
        group.report_failure(error)
        return 1


@contextlib.contextmanager
def _printing(group: ProcessGroup) -> Iterator[None]:
    """Let only rank 0 print, except for errors."""
    if group.is_first:
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def _run(options: Options, group: ProcessGroup, given: list[str]) -> int:
    own = callbacks_of(options)
    train, test = load_images(options.data, options.input)
    options = _with_fitting_batch(options, len(train))
    steps = options.epochs * -(-len(train) // options.batch)
    if options.block is not None and options.block.warmup_steps >= steps:
        raise NetError(
            f"--block-warmup-steps must be less than the {steps} steps of the run, got {options.block.warmup_steps}"
        )
    if options.find_rate:
        return _print_rates(find_rate(options, train, test), group)
    if group.is_first:
        _check_folders(options)  # before training, which may take hours
        if options.out:
            write_config(Path(options.out), options.effective, given)
    if options.measure_speed_up:
        _print_speed_up(options, train, test)
    began, start = time.perf_counter(), resident()
    saving, stopping, elastic = Saving(options), Stopping(), elastic_of(options)
    rank = group.rank if group.size > 1 else None
    with _locked(options, group), _metrics(options, group) as metrics:
        callbacks = [
            StepTimeout(options.step_limit, options.first_step_limit, rank=rank),
            RankReport(),  # before what prints it
            Printed(start),
            *usual_callbacks(options),
            Recorded(metrics),
            *own,
            saving,
            stopping,
            *([elastic] if elastic else []),
        ]
        run = (run_within_budget if options.memory_budget is not None else Run)(options, train, test, callbacks)
        if run.options.accumulate_steps > options.accumulate_steps:
            print(f"each batch is split into {run.options.accumulate_steps} micro-batches to keep to the budget")
            options = run.options
        _print_run(options, run, len(train), len(test))
        if run.loaded is not None:
            _print_loaded(run.loaded)
        _resume(options, run, elastic)
        metrics.read_earlier(run.epochs_done)
        found = run.train()
    if elastic is not None and elastic.regroups:
        print(f"others join after {run.epochs_done} epochs", flush=True)
        run.group.wait()
        return REGROUP
    if run.stopped or found is None:
        return _print_how_to_resume(options, stopping, run, saving, given)
    of = "" if options.swa is None else f" of the average of the last {options.swa:g} epochs"
    print(
        f"trained in {time.perf_counter() - began:.1f} s; accuracy{of} on {len(test)} held-out images: {found.top1:.2%}"
    )
    if not group.is_first:
        return 0
    if found.metrics is not None:
        _report(options, found, found.metrics, run.class_names)
    status = _export(options, run)
    return _print_incomplete(saving, metrics) or status


def _with_fitting_batch(options: Options, samples: int) -> Options:
    """Return the options with a batch of all samples, if they are fewer than the default one; print that they are.

    Raises:
        NetError: they are fewer than the batch that was given.
    """
    if samples >= options.batch:
        return options
    if not options.batch_may_shrink:
        raise NetError(
            f"--batch {options.batch} is more than the {samples} samples there are to train on; give --batch {samples} "
            "or less, or leave it out"
        )
    print(f"there are {samples} samples to train on, fewer than the usual batch of {options.batch}; all are one batch")
    return dataclasses.replace(options, batch=samples)


def _print_rates(found: RateTest, group: ProcessGroup) -> int:
    """Print every fifth step of a test of rates, and what it has found; return the exit status."""
    if not group.is_first:
        return 0
    for rate, loss in [*zip(found.rates, found.losses)][4::5]:
        print(f"  learning rate {rate:<10.3g} loss {loss:.4g}")
    if found.rate is None:
        print("the loss does not fall at any rate; look at the data and the net first", flush=True)
        return 1
    print(f"the loss falls most at --learning-rate {found.rate:g}", flush=True)
    return 0


def _locked(options: Options, group: ProcessGroup) -> AbstractContextManager[None]:
    """Return a context in which other runs cannot write checkpoints into the folder of this one."""
    return CheckpointFolder(options.checkpoint).locked() if options.checkpoint and group.is_first else nullcontext()


def _metrics(options: Options, group: ProcessGroup) -> Metrics:
    """Return what writes the metrics: nothing on other ranks than 0."""
    if not group.is_first:
        return Metrics()
    title = f"{options.net_name} on {Path(options.data).name}"
    return Metrics(options.metrics_file, options.tensorboard, options.plot, title)


def _export(options: Options, run: Run) -> int:
    """Write the predictor, and check it, as the options say; return the exit status of the check."""
    if options.export:
        _export_epoch(options, run)
    if options.check_export:
        return subprocess.run(
            [sys.executable, "-m", "netbuilder.tools.evaluate_predictor", str(options.export),
             "--data", options.data, *options.input.arguments()],
            check=False,
        ).returncode  # fmt: skip
    return 0


def _export_epoch(options: Options, run: Run) -> None:
    """Write the predictor of the last epoch, unless that of the best one is to be kept; print which epoch it is of."""
    best = run.callbacks.get(BestEpoch) or BestEpoch(options)
    if options.export_epoch == "best" and best.exported == options.export:
        of_last = f"; reports are of epoch {run.epochs_done}" if best.number != run.epochs_done else ""
        text = f"predictor of epoch {best.number}, the best ({best.accuracy:.2%}), is in {options.export}{of_last}"
        print(text, flush=True)
        return
    run.export(str(options.export))
    of = f"epoch {run.epochs_done}" if options.swa is None else f"the average of the last {options.swa:g} epochs"
    print(f"predictor of {of} written to {options.export}", flush=True)
    if options.swa is not None:
        return
    if best.number not in (0, run.epochs_done) and best.accuracy > best.last:
        why = "--export-epoch best exports that"
        if options.export_epoch == "best":
            why = "which an earlier run, from which this one was resumed, has not exported there"
        print(f"epoch {best.number} was better, with {best.accuracy:.2%} held-out accuracy; {why}", flush=True)


def _print_incomplete(saving: Saving, metrics: Metrics) -> int:
    """Print which files of the run are not complete; return the exit status: 1 if there are any."""
    missing = [*([] if saving.complete else ["the last checkpoint"]), *sorted(metrics.incomplete)]
    for what in missing:
        print(f"netbuilder-train: {what} could not be written; see the message above", file=sys.stderr)
    return 1 if missing else 0


def _check_folders(options: Options) -> None:
    """Make the folders that a run writes to; raise NetError if one cannot be written."""
    for name in ("export", "checkpoint", "out", "tensorboard"):
        if folder := getattr(options, name):
            _make_writable(f"--{name}", str(Path(folder).parent) if is_onnx(folder) else folder)
    for name, file in (("metrics", options.metrics_file), ("plot", options.plot)):
        if file:
            _make_writable(f"--{name}", str(Path(file).parent))


def _make_writable(option: str, name: str) -> None:
    """Make the folder that an option names.

    Raises:
        NetError: it cannot be made, or no file can be written there.
    """
    trial = Path(name) / ".writable"
    try:
        trial.parent.mkdir(parents=True, exist_ok=True)
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise NetError(f"{option}: no file can be written in {name!r}: {error_text(error)}") from error


def _print_run(options: Options, run: Run, train: int, test: int) -> None:
    word = "CPU" if options.cpu else "GPU"
    devices = f"{word} {', '.join(map(str, options.devices))}"
    print(
        f"model {options.net_name}: {run.model.parameter_count:,} parameters; "
        f"data {options.data}: {train} to train, {test} held out; {run.class_text}; {run.image_text}"
    )
    if note := _size_note(options, run):
        print(note)
    if options.recipe:
        print(f"recipe: {' '.join(options.recipe)}")
    if options.rendezvous is not None:
        devices += f" on each of {options.rendezvous.num_shards} processes"
    parts = f" in each of {options.accumulate_steps} micro-batches" if options.accumulate_steps > 1 else ""
    last = train % options.batch
    print(
        f"devices {devices}; batches of {options.batch}, {options.device_batch} on each device{parts}"
        f"{f' (the last batch has {last})' if last else ''}; "
        f"{_exchange_text(options)}; learning rate {_rate_text(options, run.steps)}, "
        f"{_update_text(options)}, weight decay {options.weight_decay:g}; seed {options.seed}",
        flush=True,
    )


def _size_note(options: Options, run: Run) -> str:
    """Return what to say of photos that are fed as they are stored, if the net is usually given others; or ""."""
    if not run.decodes or options.input.transforms or options.model is None:
        return ""
    _, side, _ = image_shape(options.model, ZooOptions())
    _, height, width = run.image_shape
    if all(side / 2 <= extent <= 2 * side for extent in (height, width)):
        return ""
    return (
        f"note: {options.model} is made for images of {side} x {side}, and these are fed as they are stored; --recipe "
        f"resizes photos and chooses batch, rate and epochs, or give --scale {side * 8 // 7} --crop {side}"
    )


def _exchange_text(options: Options) -> str:
    if options.block is None:
        return f"loss scale 1/{options.replicas} (the mean over {counted(options.replicas, 'device')})"
    return f"parameters averaged after each {options.block.steps} steps"


def _print_speed_up(options: Options, train: Any, test: Any) -> None:
    """Time steps of the same batch on all devices and on only the first one, in separate runs."""
    if options.replicas == 1:
        print("speed-up cannot be measured on a single device; give several by --devices", flush=True)
        return
    one = dataclasses.replace(options, devices=options.devices[:1], rendezvous=None)
    several, alone = Run(options, train, test), Run(one, train, test)  # on all ranks, so that nets have the same names
    pairs = []
    for _ in range(3):  # alternately: the machine may be shared
        many = several.step_seconds()
        # other ranks wait in their next step
        pairs.append((many, alone.step_seconds() if several.group.is_first else many))
    many, single = (min(times) for times in zip(*pairs))
    print(
        f"speed-up: a step takes {many * 1e3:.1f} ms on {options.replicas} devices, and {single * 1e3:.1f} ms on one"
        f": {single / many:.2f} times as fast",
        flush=True,
    )


def _update_text(options: Options) -> str:
    if options.optimizer == "sgd":
        kind = "Nesterov's momentum" if options.nesterov else "momentum"
        text = f"{kind} {options.momentum:g}" if options.momentum else "no momentum"
    else:
        text = f"optimizer {options.optimizer}"
    own = ", ".join(f"{name} {value}" for name, value in options.optimizer_args.items())
    averages = f", moving averages with decay {options.average_decay:g}" if options.average_decay is not None else ""
    averages += f", averages of the last {options.swa:g} epochs" if options.swa is not None else ""
    return text + (f" ({own})" if own else "") + averages


def _rate_text(options: Options, steps: int) -> str:
    text = f"{options.scaled_rate:g} ({options.policy}"
    policy, arguments = policy_of(options, steps)
    if policy != "fixed":
        last = rate_at(options.scaled_rate, policy, arguments, options.epochs * steps - 1)
        text += f"; {last:.3g} in the last step"
    if options.base_batch:
        text += f"; {options.learning_rate:g} for a batch of {options.base_batch}"
    if options.warmup_epochs:
        text += f"; warm-up of {options.warmup_epochs:g} epochs from {options.warmup_start * options.scaled_rate:g}"
    return text + ")"


def _report(options: Options, found: Evaluation, metrics: Classification, names: Sequence[str]) -> None:
    """Print the results, write those of each class if they are asked for, and print those of the hardest ones."""
    title = f"results on {found.samples} held-out images"
    print_report([results_table(title, found.top1, found.top5, found.loss, means_of(metrics))])
    if options.class_report is not None:
        write_text(Path(options.class_report), class_csv(metrics, names))
        print(f"results of each class: {options.class_report}", flush=True)
        if (table := hardest(metrics, names)).rows:
            print_report([table])


def _print_loaded(loaded: LoadReport) -> None:
    """Print what of a file of weights was loaded, and what was not and why."""
    print(f"weights of {loaded.source}: {len(loaded.loaded)} blobs loaded", flush=True)
    for name, why in loaded.reinitialized.items():
        print(f"  {name} keeps its initial values: {why}", flush=True)


def _resume(options: Options, run: Run, elastic: Elastic | None) -> None:
    """Resume from a checkpoint, if the options request it or an elastic job goes on, and print which."""
    found = run.group.broadcast(find_checkpoint(options) if run.group.is_first else None)
    found = found if elastic is None else elastic.newest(run.group, found)
    if found is None:
        if options.resume:
            print(f"there is no checkpoint in {options.checkpoint} yet; training starts from the beginning", flush=True)
        return
    changed = run.resume(found[1], found[0])
    print(f"resumed from {found[0]}: {run.epochs_done} epochs and {run.step} of {run.steps} steps are done", flush=True)
    for text in changed:
        print(f"changed since the checkpoint: {text}", flush=True)


def _print_how_to_resume(options: Options, stopping: Stopping, run: Run, saving: Saving, given: Sequence[str]) -> int:
    """Print how to resume a stopped run; return the exit status."""
    by = next((number for number in run.group.gather(stopping.by) if number is not None), None)
    after = f"stopped by {'a callback' if by is None else by.name} after {run.steps_done} steps"
    if options.checkpoint is None:
        print(f"{after}; nothing is saved without --checkpoint FOLDER", flush=True)
    elif saving.last is None:
        print(f"{after}; there is no checkpoint to resume from", flush=True)
    else:
        kept = [
            text
            for before, text in zip(["", *given], given)
            if before != "--resume" and text != "--resume" and not text.startswith("--resume=")
        ]
        launcher = f", in {run.group.size} processes or another number of them" if run.group.size > 1 else ""
        place = f"saved to {saving.last}" if saving.complete else f"the last checkpoint is {saving.last}"
        print(f"{after}, {place}; to resume{launcher}:\nnetbuilder-train {shlex.join(kept)} --resume auto",
              flush=True)  # fmt: skip
    run.group.wait()  # a process that ends with this status ends the others
    return 0 if by is None else 128 + by


if __name__ == "__main__":
    sys.exit(main())
