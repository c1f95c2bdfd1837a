"""Trained models in the folders that Caffe2 downloads them to; nothing is downloaded here.

python -m netbuilder.caffe2 -m caffe2.python.models.download [--install] MODEL ...
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.trained_models import (
    NETS,
    ModelDownloader,
    complete,
    is_installed,
    model_folder,
    validModelName,
)
from netbuilder.proto import NetError

__all__ = ["ModelDownloader", "downloadModel", "main", "validModelName"]

__getattr__ = names_of(__name__)


def downloadModel(model: str, args: Any) -> None:
    """Check that the nets of a model are in the folder with its name; with ``args.install``, install it.

    Models are installed where ``ModelDownloader`` looks for them.

    Args:
        model: its name.
        args: has ``install``, and ``force``: replace an installed model by that in the folder.

    Raises:
        NetError: the nets are missing; the message says where they must be.
    """
    target = Path(model_folder(model))
    if not args.install:
        complete(Path.cwd() / model, model, NETS)
        return
    has = is_installed(model)
    if has and not args.force:
        return
    if not (Path.cwd() / model).is_dir():
        complete(target, model, NETS)
        return
    source = complete(Path.cwd() / model, model, NETS)
    if source.resolve() != target.resolve():
        shutil.copytree(source, target, dirs_exist_ok=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, or 1 with a message for each model that is not there."""
    parser = argparse.ArgumentParser(prog="download", description="Checks and installs trained models; downloads none.")
    parser.add_argument("model", nargs="+", help="name of a model: of a folder with init_net.pb and predict_net.pb")
    parser.add_argument("-i", "--install", action="store_true", help="copy it to where ModelDownloader looks for it")
    parser.add_argument("-f", "--force", action="store_true", help="replace a model that is installed")
    options, status = parser.parse_args(argv), 0
    for model in options.model:
        try:
            if not validModelName(model):
                raise NetError(f"{model!r} is not a valid model name")
            downloadModel(model, options)
        except (NetError, OSError) as error:
            print(f"download: {error}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
