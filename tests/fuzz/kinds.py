"""All kinds of input, by name."""

from __future__ import annotations

from fuzz.file_kinds import FILE_KINDS
from fuzz.operator_kind import operator_trial

__all__ = ["KINDS"]

KINDS = {**FILE_KINDS, "operators": operator_trial}
"""Kind -> a function that prepares it in a folder and returns a trial."""
