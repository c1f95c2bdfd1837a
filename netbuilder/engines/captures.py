"""Captured calls: work of a device that one launch adds again, and the error for what cannot be captured."""

from __future__ import annotations

from typing import Protocol

__all__ = ["CaptureError", "CapturedCalls"]


class CaptureError(Exception):
    """A call cannot be captured; the cause is its error.

    Attributes:
        index: of the call; the number of calls if all were made and their graph is not valid; None if the device
            captures nothing.
        broken: whether another thread may have ended the capture: one that waits for the whole device does.
    """

    def __init__(self, index: int | None, error: BaseException, *, broken: bool = False) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.index = index
        self.broken = broken


class CapturedCalls(Protocol):
    """Captured work of one device. The memory that it uses must exist for as long as it is launched."""

    def upload(self) -> None:
        """Begin to copy what the host computes for each run, after what the device computes now."""

    def launch(self) -> None:
        """Add the work to what the device computes."""
