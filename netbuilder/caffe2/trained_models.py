"""Trained models in folders, as Caffe2 downloads and installs them; nothing is downloaded here."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from netbuilder.proto import NetDef, NetError, files, opened_files

__all__ = ["NETS", "ModelDownloader", "complete", "installed", "is_installed", "model_folder", "validModelName"]

NETS = ("predict_net.pb", "init_net.pb")
VALUE_INFO = "value_info.json"


def validModelName(name: str) -> bool:
    """Whether a model can have this name: letters, digits, "_", "-" and "/"."""
    return name != "__init__" and re.fullmatch(r"[/0-9a-zA-Z_-]+", name) is not None


def complete(folder: Path, model: str, names: Sequence[str]) -> Path:
    """Return the folder if it has the files.

    Raises:
        NetError: it lacks one; the message says where the files must be.
    """
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise NetError(
            f"model {model!r}: netbuilder downloads nothing; its files {', '.join(names)} must be in {str(folder)!r}, "
            f"where there is no {' and no '.join(missing)}; copy them there from a machine that has them"
        )
    return folder


def model_folder(model: str, variable: str = "CAFFE2_MODELS") -> str:
    """Return the folder of an installed model, see ``ModelDownloader``."""
    home = os.path.expanduser(os.environ.get("CAFFE2_HOME", "~/.caffe2"))
    return os.path.join(os.environ.get(variable, os.path.join(home, "models")), model)


class ModelDownloader:
    """Trained models in a folder for each.

    The folders are in the one that an environment variable names, by default CAFFE2_MODELS; without it in
    ``$CAFFE2_HOME/models``, or in ``~/.caffe2/models``.

    Args:
        model_env_name: the environment variable.
    """

    def __init__(self, model_env_name: str = "CAFFE2_MODELS") -> None:
        self.model_env_name = model_env_name

    def _model_dir(self, model: str) -> str:
        return model_folder(model, self.model_env_name)

    def get_c2_model(self, model_name: str) -> tuple[NetDef, NetDef, Any]:
        """Return the init net, the predict net, and what is in value_info.json: for each input its type and shape.

        Raises:
            NetError: a file is missing, and the message says where the files must be, or value_info.json is no JSON.
            ParseError: a file is damaged.
        """
        folder = complete(Path(self._model_dir(model_name)), model_name, (*NETS, VALUE_INFO))
        predict_net, init_net = (files.load(folder / name, NetDef, allow_unknown=True) for name in NETS)
        predict_net.name, init_net.name = model_name, f"{model_name}_init"
        try:
            value_info = json.loads(opened_files.read_text(folder / VALUE_INFO))
        except ValueError as error:
            raise NetError(f"{str(folder / VALUE_INFO)!r}: it is no JSON: {error}") from error
        return init_net, predict_net, value_info

    def get_c2_model_dbg(self, model_name: str) -> tuple[NetDef, NetDef, Any, str]:
        """Return what ``get_c2_model`` does, and a text that names the folder."""
        return (*self.get_c2_model(model_name), f"get_c2_model: {self._model_dir(model_name)}\n")


def is_installed(model: str) -> bool:
    """Whether the nets of a model are where ``ModelDownloader`` looks for them."""
    return validModelName(model) and all(os.path.isfile(os.path.join(model_folder(model), name)) for name in NETS)


def installed(model: str) -> ModuleType:
    """Return an installed model as a module with ``init_net`` and ``predict_net``: ``caffe2.python.models.MODEL``.

    Raises:
        NetError: its files are missing; the message says where they must be.
    """
    folder = complete(Path(model_folder(model)), model, NETS)
    module = ModuleType(f"netbuilder.caffe2.python.models.{model}", f"The model {model!r} in {str(folder)!r}.")
    predict_net, init_net = (files.load(folder / name, NetDef, allow_unknown=True) for name in NETS)
    vars(module).update(predict_net=predict_net, init_net=init_net)
    return module
