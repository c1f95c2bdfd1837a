"""Models built by one call; trained models, if they are installed."""

from typing import Any

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.trained_models import installed, is_installed

__all__: list[str] = []

_refuse = names_of(__name__)


def __getattr__(name: str) -> Any:
    return installed(name) if is_installed(name) else _refuse(name)
