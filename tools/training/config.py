"""Options of the trainer read from a file, also under Caffe2's names, and written to the folder of a run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from netbuilder.proto import NetError, ParseError
from netbuilder.proto.structured_text import read_structured
from netbuilder.proto.whole_file import write_text

__all__ = ["config_arguments", "plain_arguments", "read_config", "write_config"]

_CAFFE2 = {
    "--train-data": "--data", "--gpus": "--devices", "--batch-size": "--batch", "--num-epochs": "--epochs",
    "--base-learning-rate": "--learning-rate", "--num-labels": "--classes", "--image-size": "--crop",
    "--use-cpu": "--cpu", "--save-model-name": "--export",
}  # fmt: skip
"""Options of Caffe2's imagenet_trainer.py -> options with the same meaning."""

_COUNT = "--num-gpus"
_PAIRS = ("--policy-arg", "--optimizer-arg", "--rates")
_SWITCHES = ("--nesterov", "--mirror")  # switched off by --no-NAME


def plain_arguments(given: Iterable[str]) -> list[str]:
    """Return a command line with Caffe2's names of options replaced by netbuilder's.

    >>> plain_arguments(["--batch_size=32", "--num_gpus", "2", "--use_cpu"])
    ['--batch=32', '--devices', '0,1', '--cpu']
    """
    found: list[str] = []
    counts = False
    for text in given:
        if counts:
            found.append(_devices(text))
            counts = False
            continue
        name, equals, value = text.partition("=")
        if not name.startswith("--"):
            found.append(text)
            continue
        name = name.replace("_", "-")
        if name == _COUNT:
            found.append("--devices" + (f"={_devices(value)}" if equals else ""))
            counts = not equals
        else:
            found.append(_CAFFE2.get(name, name) + equals + value)
    return found


def _devices(count: str) -> str:
    return ",".join(map(str, range(int(count)))) if count.isdigit() else count


def read_config(path: Path) -> dict[str, Any]:
    """Return the values in a file in TOML (``.toml``), YAML (``.yaml``, ``.yml``) or JSON (``.json``).

    Raises:
        FileNotFoundError: the file does not exist.
        ParseError: it is damaged, or does not hold a table of options; see ``read_structured``.
        NetError: it is of another kind, or a package to read it is missing.
    """
    try:
        found = read_structured(path)
    except ParseError as error:
        raise ParseError(f"--config: {error}") from None
    except NetError as error:
        raise NetError(f"--config: {error}") from None
    if not isinstance(found, Mapping):
        raise ParseError(f"--config: {str(path)!r} must hold options by name, got {type(found).__name__}")
    return dict(found)


def config_arguments(values: Mapping[str, Any]) -> list[str]:
    """Return the command line for the values in a file; tables in the file only group options.

    >>> config_arguments({"model": "mlp", "cpu": True, "optimization": {"batch": 32, "policy-arg": {"gamma": 0.5}}})
    ['--model=mlp', '--cpu', '--batch=32', '--policy-arg=gamma=0.5']
    """
    found: list[str] = []
    for key, value in values.items():
        name = "--" + str(key).replace("_", "-")
        if name in _PAIRS and isinstance(value, Mapping):
            found += [f"{name}={argument}={of}" for argument, of in value.items()]
        elif isinstance(value, Mapping):
            found += config_arguments(value)
        elif value is False and name in _SWITCHES:
            found.append(f"--no-{name[2:]}")
        elif value is True:
            found.append(name)
        elif isinstance(value, (list, tuple)):
            found += [name, *map(str, value)]
        elif value is not None and value is not False:
            found.append(f"{name}={value}")
    return plain_arguments(found)


def write_config(folder: Path, values: Mapping[str, Any], given: Sequence[str]) -> Path:
    """Write all options of a run, those with default values too, as ``options.json``, which ``--config`` reads.

    Args:
        folder: created if it does not exist.
        values: by name.
        given: the command line, written to ``command.txt``.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "options.json"
    write_text(path, json.dumps(dict(values), indent=2, sort_keys=True) + "\n")
    write_text(folder / "command.txt", f"netbuilder-train {shlex.join(given)}\n")
    return path
