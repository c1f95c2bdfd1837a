"""The command line: ``python -m netbuilder`` lists the commands, ``python -m netbuilder train ...`` runs one."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "train": ("imagenet_trainer", "train a classifier data-parallel, evaluate it, export a predictor"),
    "predict": ("predict", "run a predictor on image files and print the likeliest classes"),
    "make-db": ("make_db", "write a database of images, or describe an existing one"),
    "extract": ("extract_predictor_net", "extract the part of a net that computes some outputs, as a predictor"),
    "draw": ("draw", "draw a net as a page of HTML"),
    "profile": ("profile", "measure the time of each operator of a net"),
    "simulate": ("simulate", "predict the speed of training on many devices and hosts"),
    "benchmark": ("benchmark", "compare the speed of netbuilder with that of other libraries"),
    "char-lm": ("char_lm", "train a language model of characters, and generate text"),
    "seq2seq": ("seq2seq", "train a model that reverses and adds sequences"),
    "prove": ("prove", "show that data, batch and seed give the same parameters on any number of devices"),
    "check": ("check", "check a net in a file without running it"),
    "launch": ("launch", "start a program in several processes that train together"),
    "doctor": ("doctor", "say what is found on this machine, what is missing, and how to install it"),
    "preflight": ("preflight", "check that the processes of a job find one another and agree"),
    "compare": ("compare", "name the first value that differs between one device and several, or two settings"),
}
"""Name of a command -> its module in ``netbuilder.tools``, and its purpose; installed as ``netbuilder-NAME``."""

_OTHERS = {
    "netbuilder.tools.evaluate_predictor": "evaluate an exported predictor on test images",
    "netbuilder.tools.fetch_cifar10": "fetch CIFAR-10 and write it as JPEG files in class folders",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command given by the first argument, or list all commands; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(_listing())
        return 0
    if given[0] == "--version":
        from netbuilder import __version__

        print(__version__)
        return 0
    name = given[0].removeprefix("netbuilder-")
    if name not in COMMANDS:
        from netbuilder.proto.suggestions import near_or_known

        print(f"netbuilder: unknown command {given[0]!r}{near_or_known(name, COMMANDS, 'commands')}", file=sys.stderr)
        return 2
    status: int = importlib.import_module(f"netbuilder.tools.{COMMANDS[name][0]}").main(given[1:])
    return status


def _listing() -> str:
    lines = ["usage: python -m netbuilder COMMAND ..., or netbuilder-COMMAND ... if netbuilder is installed", ""]
    lines += [f"  {name:10} {text}" for name, (_, text) in COMMANDS.items()]
    lines += [
        "",
        "Each command has --help. Other programs:",
        *(f"  python -m {name}: {text}" for name, text in _OTHERS.items()),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
