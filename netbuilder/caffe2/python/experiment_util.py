"""Logs of training runs: files of comma-separated values."""

from __future__ import annotations

import abc
import datetime
import logging
import socket
import time
from collections.abc import Iterable, Mapping
from typing import Any

from netbuilder.caffe2.missing import names_of

__all__ = ["ExternalLogger", "ModelTrainerLog"]

__getattr__ = names_of(__name__)

_log = logging.getLogger("ModelTrainerLog")


class ExternalLogger(abc.ABC):
    """Base of loggers that receive the values of a run in addition to the log file."""

    @abc.abstractmethod
    def set_runtime_args(self, runtime_args: Mapping[str, Any]) -> None:
        """Receive the options of the run."""

    @abc.abstractmethod
    def log(self, log_dict: Mapping[str, Any]) -> None:
        """Receive the values of one line of the log, by column."""


class ModelTrainerLog:
    """A log in the current directory, ``<expname>_<date>.log``; the lines go to Python's logging, too.

    Args:
        expname: name of the experiment.
        runtime_args: the options of the run; written to the first line of the file.
        external_loggers: receive the same values; first the options, the experiment id and the host name.

    Attributes:
        experiment_id: name and date.
        filename: of the log file.
        headers: names of the columns; None before the first values.
        start_time, last_time: seconds since 1970.
        last_input_count: ``input_count`` of the last line.
    """

    def __init__(
        self, expname: str, runtime_args: Any, external_loggers: Iterable[ExternalLogger] | None = None
    ) -> None:
        now = datetime.datetime.fromtimestamp(time.time())
        self.experiment_id = f"{expname}_{now:%Y%m%d_%H%M%S}"
        self.filename = f"{self.experiment_id}.log"
        self.headers: list[str] | None = None
        self.start_time = self.last_time = time.time()
        self.last_input_count = 0
        self.external_loggers = list(external_loggers or [])
        self.logstr(f"# {runtime_args}")
        given = vars(runtime_args) if hasattr(runtime_args, "__dict__") else dict(runtime_args or {})
        for logger in self.external_loggers:
            logger.set_runtime_args({**given, "experiment_id": self.experiment_id, "hostname": socket.gethostname()})

    def logstr(self, str: str) -> None:
        """Append a line."""
        with open(self.filename, "a", encoding="utf-8") as file:
            file.write(str + "\n")
        _log.info(str)

    def log(self, input_count: int, batch_count: int, additional_values: Mapping[str, Any]) -> None:
        """Append a line of values; the first call also writes a header.

        Args:
            input_count: samples so far.
            batch_count: batches so far.
            additional_values: further columns, the same in each call.
        """
        now = time.time()
        seconds, inputs = now - self.last_time, input_count - self.last_input_count
        self.last_time, self.last_input_count = now, input_count
        values: dict[str, Any] = {
            "time_spent": seconds,
            "cumulative_time_spent": now - self.start_time,
            "input_count": inputs,
            "cumulative_input_count": input_count,
            "cumulative_batch_count": batch_count,
            "inputs_per_sec": inputs / seconds if seconds > 0 else 0.0,
            **dict(sorted(additional_values.items())),
        }
        for logger in self.external_loggers:
            logger.log(values)
        if self.headers is None:
            self.headers = list(values)
            self.logstr(",".join(self.headers))
        self.logstr(",".join(map(_shown, values.values())))


def _shown(value: Any) -> str:
    return str(value.item() if hasattr(value, "item") and getattr(value, "size", 0) == 1 else value)
