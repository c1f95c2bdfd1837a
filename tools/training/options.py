"""Options of the trainer, from its command line and a file."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from netbuilder.distributed import Rendezvous
from netbuilder.proto import NetError
from netbuilder.proto.os_errors import error_text
from netbuilder.proto.suggestions import did_you_mean
from netbuilder.tools.options import OptionsParser, values_of
from netbuilder.tools.parser import Parser
from netbuilder.tools.training.config import config_arguments, plain_arguments, read_config
from netbuilder.tools.training.option_checks import AUTO, check_machine, problem_of
from netbuilder.tools.training.recipes import recipe_for
from netbuilder.tools.training.settings import Options

__all__ = ["AUTO", "Options", "parse"]

_DEMO = [
    "--model=resnet8-cifar", "--data=digits", "--cpu", "--devices=0,1", "--batch=32", "--epochs=8",
    "--learning-rate=0.1", "--policy=step", "--step-epochs=6", "--gamma=0.1", "--export=out/digits", "--check-export",
]  # fmt: skip


def _parser(prog: str, usage: str | None) -> OptionsParser[Options]:
    parser = OptionsParser(
        Options,
        prog=prog,
        usage=usage,
        description="Train an image classifier on one or several devices, evaluate it on held-out images after each "
        "epoch, and export a predictor.",
    )
    parser.add_argument(
        "--demo", action="store_true", help=f"the same as {' '.join(_DEMO)}; other options override these"
    )
    parser.add_argument(
        "--recipe",
        action="store_true",
        help="options that suit the net: optimizer, rates, epochs, and changes of photos; other options override these",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="read options from a .toml, .yaml or .json file; the command line overrides them",
    )
    return parser


def parse(
    arguments: Sequence[str] | None = None,
    *,
    prog: str = "netbuilder-train",
    usage: str | None = None,
    rendezvous: Rendezvous | None = None,
) -> Options:
    """Parse a command line; an invalid option ends the program with a message.

    Args:
        arguments: the options; None: those of the process.
        prog: the command that the message names.
        usage: how to call it; None: all options.
        rendezvous: the processes that train together; None, or one process: this one alone.

    Raises:
        NetError: a file or GPU that the options name is missing, or cannot be used.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if "--demo" in given:
        given.remove("--demo")
        given = _DEMO + given
    parser = _parser(prog, usage)
    given = _with_config(parser, plain_arguments(given))
    recipe, given = _recipe_of(given)
    options = parser.parse([*recipe, *given])
    if recipe:
        chosen, effective = values_of(parser.parse(recipe)), options.effective
        kept = [name for text in recipe if chosen.get(name := _name_of(text)) == effective.get(name)]
        options = dataclasses.replace(
            options,
            recipe=tuple(text for text in recipe if _name_of(text) in kept),
            batch_may_shrink="batch" in kept,
        )
    if rendezvous is not None and rendezvous.num_shards > 1:
        if not options.cpu and rendezvous.local_size > 1:
            try:
                rendezvous.see_own_gpus(max(options.devices) + 1)
            except NetError as error:
                raise NetError(f"--devices: {error}") from error
        options = dataclasses.replace(options, rendezvous=rendezvous)
    if problem := problem_of(options):
        parser.error(problem)
    check_machine(options)
    return options


def _name_of(text: str) -> str:
    return text.removeprefix("--").partition("=")[0]


def _recipe_of(given: list[str]) -> tuple[list[str], list[str]]:
    """Return the options of the net's recipe, if ``--recipe`` is given, and the command line without it."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    first.add_argument("--recipe", action="store_true")
    for name in ("--model", "--data", "--weights"):
        first.add_argument(name)
    first.add_argument("--epochs", type=int)
    try:
        found, _ = first.parse_known_args(given)
    except argparse.ArgumentError:
        return [], [text for text in given if text != "--recipe"]  # the parser of all options says what is wrong
    if not found.recipe:
        return [], given
    rest = [text for text in given if text != "--recipe"]
    photos = found.data is not None and Path(found.data).is_dir() and not any(Path(found.data).glob("*-idx?-ubyte*"))
    weights = found.weights is not None
    return recipe_for(found.model or "resnet20-cifar", photos=photos, weights=weights, epochs=found.epochs), rest


def _with_config(parser: Parser, given: list[str]) -> list[str]:
    """Return the options of the file that ``--config`` names, and those of the command line after them."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--config")
    first.error = parser.error  # type: ignore[method-assign]
    found, rest = first.parse_known_args(given)
    if found.config is None:
        return rest
    try:
        values = config_arguments(read_config(Path(found.config)))
    except OSError as error:
        raise NetError(f"--config: {error_text(error)}") from error
    known = {flag for action in parser._actions for flag in action.option_strings}
    for text in values:
        name = text.partition("=")[0]
        if text.startswith("--") and name not in known:
            near = did_you_mean(name[2:], [flag[2:] for flag in known])
            parser.error(f"--config: {found.config!r} has the unknown option {name[2:]!r}{near}")
    return [*values, *rest]
