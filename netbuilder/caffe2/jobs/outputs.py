"""Results of tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from netbuilder.caffe2.records import Field, from_blob_list
from netbuilder.proto import NetError

__all__ = ["TaskOutput", "TaskOutputList"]

Fetch = Callable[[Any], Any]


class TaskOutput:
    """A result of a task: a blob, several blobs, or a record; after a run ``fetch`` returns the value.

    Args:
        names: blob, list of blobs, or record.
    """

    def __init__(self, names: Any) -> None:
        self._schema: Field | None = names if isinstance(names, Field) else None
        self._is_scalar = False
        if isinstance(names, Field):
            names = names.field_blobs()
        elif not isinstance(names, (list, tuple)):
            self._is_scalar, names = True, [names]
        self.names = list(names)
        self._values: Sequence[Any] | None = None
        self._fetch_func: Fetch | None = None

    def set(self, values: Sequence[Any], _fetch_func: Fetch | None = None) -> None:
        """Set the values, or the arguments from which ``_fetch_func`` gets the values."""
        if len(values) != len(self.names):
            raise NetError(f"TaskOutput: {len(self.names)} blobs, got {len(values)} values")
        self._values, self._fetch_func = values, _fetch_func

    def get(self) -> Any:
        """Return what was set: a value, a list, or a record.

        Raises:
            NetError: the task has not run.
        """
        return self._shaped(self._set_values())

    def fetch(self) -> Any:
        """Return the value of the blobs after the run: a value, a list, or a record.

        Raises:
            NetError: the task has not run.
        """
        values = self._set_values()
        return self._shaped([self._fetch_func(value) if self._fetch_func else value for value in values])

    def _set_values(self) -> Sequence[Any]:
        if self._values is None:
            raise NetError(f"TaskOutput {list(map(str, self.names))} has no values yet; run the task in a session")
        return self._values

    def _shaped(self, values: Sequence[Any]) -> Any:
        if self._is_scalar:
            return values[0]
        return from_blob_list(self._schema, list(values)) if self._schema is not None else list(values)

    def __repr__(self) -> str:
        return f"TaskOutput(names={self.names}, values={self._values})"


class TaskOutputList:
    """Results of several tasks.

    Args:
        outputs: the results.
    """

    def __init__(self, outputs: Sequence[TaskOutput] | None = None) -> None:
        self.outputs = list(outputs or [])

    def names(self) -> list[Any]:
        """Return the blobs of all."""
        return [name for output in self.outputs for name in output.names]

    def set_values(self, values: Sequence[Any], _fetch_func: Fetch | None = None) -> None:
        """Set the values of all, one for each blob."""
        if len(values) != len(self.names()):
            raise NetError(f"TaskOutputList: {len(self.names())} blobs, got {len(values)} values")
        begin = 0
        for output in self.outputs:
            end = begin + len(output.names)
            output.set(values[begin:end], _fetch_func)
            begin = end

    def __repr__(self) -> str:
        return f"TaskOutputList(outputs={self.outputs})"
