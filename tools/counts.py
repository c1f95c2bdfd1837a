"""Options of the commands that are numbers of things: whole numbers greater than 0, and batches that are split."""

from __future__ import annotations

import argparse

__all__ = ["count", "split_problem"]


def count(text: str) -> int:
    """Return a whole number greater than 0, for ``type=`` of an option.

    Raises:
        argparse.ArgumentTypeError: the text is no such number; argparse adds the name of the option.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number greater than 0, got {text!r}")
    return int(text)


def split_problem(batch: int, devices: int, steps: int = 1) -> str | None:
    """Return why a batch cannot be split over devices and micro-batches into equal parts; None: it can.

    >>> split_problem(10, 3)
    'a batch of 10 cannot be split evenly over 3 devices; give a multiple of 3, such as 9 or 12'
    """
    parts = devices * steps
    if batch < 1:
        return f"a batch must have 1 sample or more, got {batch}"
    if batch % parts == 0:
        return None
    where = f"{devices} device{'s' if devices > 1 else ''}" + (f" in {steps} micro-batches" if steps > 1 else "")
    near = [str(n) for n in (batch // parts * parts, -(-batch // parts) * parts) if n]
    return (
        f"a batch of {batch} cannot be split evenly over {where}; give a multiple of {parts}, such as "
        f"{' or '.join(near)}"
    )
