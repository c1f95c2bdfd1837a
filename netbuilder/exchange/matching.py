"""Matching the blobs of a checkpoint to those of a model, by name, with renamed and skipped blobs."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field

from netbuilder.graph.blob import strip_prefix
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.proto import NetError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["LACKING", "LoadReport", "Match", "match_blobs"]

_ANY = "*"

LACKING = "no blob of this name"
"""End of the reason for a blob that only the checkpoint has, or only the model."""


@dataclass(frozen=True)
class LoadReport:
    """What a load did; printed, it is a table.

    Args:
        source: the checkpoint.
        loaded: blobs of the model that have the checkpoint's values now.
        skipped: blobs of the checkpoint that were not loaded -> the reason.
        reinitialized: blobs of the model that keep their values, usually those of the init net -> the reason.
    """

    source: str
    loaded: tuple[str, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)
    reinitialized: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        rows = [f"{self.source}: {len(self.loaded)} blobs loaded, {len(self.skipped)} skipped, "
                f"{len(self.reinitialized)} re-initialized"]  # fmt: skip
        rows += [f"  loaded          {name}" for name in self.loaded]
        rows += [f"  skipped         {name}: {why}" for name, why in self.skipped.items()]
        rows += [f"  re-initialized  {name}: {why}" for name, why in self.reinitialized.items()]
        return "\n".join(rows)


@dataclass(frozen=True)
class Match:
    """Which blobs of a checkpoint are loaded into which blobs of a model.

    Args:
        targets: name in the model -> name in the checkpoint.
        skipped: name in the checkpoint -> why it is not loaded.
        left: name in the model -> why nothing is loaded into it.
        intended: names in ``skipped`` and ``left`` that ``skip`` asks for, or that are copies on other devices.
    """

    targets: dict[str, str]
    skipped: dict[str, str]
    left: dict[str, str]
    intended: frozenset[str]


def match_blobs(
    stored: Mapping[str, TensorSpec],
    wanted: Mapping[str, TensorSpec],
    *,
    rename: Mapping[str, str] | None = None,
    skip: Iterable[str] = (),
    only: Collection[str] | None = None,
) -> Match:
    """Find the blobs of a checkpoint that match those of a model in name, shape and type.

    A name in the checkpoint may have a device prefix, as in Caffe2's; of several devices the first in the file is used.

    Args:
        stored, wanted: the blobs of the checkpoint and of the model.
        rename: name in the checkpoint -> name in the model; if both end in "*", this renames the beginning of names.
        skip: names in the model, or ``fnmatch`` patterns, into which nothing is loaded.
        only: names in the model to load; others are reported only if the checkpoint has them. None: all.

    Raises:
        NetError: an entry of ``rename`` or ``skip`` matches nothing, or two blobs would be loaded into one.
    """
    new_names = _renamed(stored, dict(rename or {}))
    left_out = _left_out(wanted, [skip] if isinstance(skip, str) else list(skip))
    targets: dict[str, str] = {}
    skipped: dict[str, str] = {}
    left = {name: f"left out by skip={pattern!r}" for name, pattern in left_out.items() if only is None or name in only}
    intended = set(left)
    for name in stored:
        new = new_names.get(name, name)
        target = new if new in wanted else strip_prefix(new)
        note = f"renamed to {target!r}, " if name in new_names else ""
        if target not in wanted:
            skipped[name] = f"{note}the model has {LACKING}"
        elif only is not None and target not in only:
            skipped[name] = f"{note}{target!r} is not a parameter"
            intended.add(name)
        elif target in left_out:
            skipped[name] = f"{note}{left[target]}"
            intended.add(name)
        elif target in targets:
            if name in new_names or targets[target] in new_names:
                raise NetError(f"rename: {targets[target]!r} and {name!r} would both be loaded into {target!r}")
            skipped[name] = f"a copy of {targets[target]!r}, on another device"
            intended.add(name)
        elif (problem := _misfit(stored[name], wanted[target])) is not None:
            skipped[name] = left[target] = note + problem
        else:
            targets[target] = name
            left.pop(target, None)
    for name in wanted:
        if name not in targets and (only is None or name in only):
            left.setdefault(name, f"the checkpoint has {LACKING}")
    return Match(targets, skipped, left, frozenset(intended))


def _misfit(stored: TensorSpec, wanted: TensorSpec) -> str | None:
    if stored.shape != wanted.shape:
        return f"shape {stored.shape} in the checkpoint, {wanted.shape} in the model"
    if stored.dtype != wanted.dtype:
        there, here = ("strings" if spec.dtype == STRING else str(spec.dtype) for spec in (stored, wanted))
        return f"elements of type {there} in the checkpoint, {here} in the model"
    return None


def _renamed(stored: Collection[str], rename: dict[str, str]) -> dict[str, str]:
    """Return the renamed blobs: old name -> new name."""
    found: dict[str, str] = {}
    for old, new in rename.items():
        if old.endswith(_ANY) != new.endswith(_ANY):
            raise NetError(f"rename: {old!r} -> {new!r}: either both names must end in {_ANY!r} or neither")
        if old.endswith(_ANY):
            begin = old[: -len(_ANY)]
            fitting = {name: new[: -len(_ANY)] + name[len(begin) :] for name in stored if name.startswith(begin)}
        else:
            fitting = {old: new} if old in stored else {}
        if not fitting:
            raise NetError(f"rename: the checkpoint has no blob {old!r}; it has {_some(stored)}")
        found.update(fitting)
    return found


def _left_out(wanted: Collection[str], patterns: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pattern in patterns:
        fitting = fnmatch.filter(wanted, pattern)
        if not fitting:
            raise NetError(f"skip: the model has no blob {pattern!r}; it has {_some(wanted)}")
        found.update(dict.fromkeys(fitting, pattern))
    return found


def _some(names: Collection[str], most: int = 12) -> str:
    listed = ", ".join(sorted(names)[:most])
    return listed + (f" and {len(names) - most} more" if len(names) > most else "")
