"""Files with figures, for the option ``--plot`` of commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from netbuilder.proto import NetError
from netbuilder.proto.extras import how_to_install
from netbuilder.proto.whole_file import whole_file

__all__ = ["check_picture", "figure_classes", "save_picture"]


def figure_classes() -> tuple[Any, Any]:
    """Return ``Figure`` and ``MaxNLocator`` of matplotlib.

    Raises:
        NetError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise NetError(f"--plot needs the package matplotlib; {how_to_install('plot')}") from None
    return Figure, MaxNLocator


def check_picture(path: str) -> None:
    """Check that matplotlib can write a file with this ending.

    Raises:
        NetError: it cannot, or it is not installed.
    """
    kinds = sorted(figure_classes()[0]().canvas.get_supported_filetypes())
    if Path(path).suffix[1:].lower() not in kinds:
        raise NetError(
            f"--plot: {path!r} must end in .png or another ending that matplotlib writes: {', '.join(kinds)}"
        )


def save_picture(figure: Any, path: str | Path) -> None:
    """Write a figure of matplotlib; the file is complete or unchanged."""
    with whole_file(path) as file:
        figure.savefig(file, format=Path(path).suffix.removeprefix(".") or None)
