"""StepTimes: the measured calls of a training step on one device, and the gradients that each makes or needs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime.profile.call import CallProfile
from netbuilder.runtime.profile.record import Profile

__all__ = ["StepTimes", "TimedWork"]


@dataclass(frozen=True)
class TimedWork:
    """A call of a step.

    Args:
        name: for people.
        seconds: that it takes on one device.
        nbytes: that it reads and writes.
        ready: the gradients that are complete once it has run, and their bytes.
        needs: the gradients whose sums over all devices it reads, such as an update.
    """

    name: str
    seconds: float
    nbytes: float = 0.0
    ready: tuple[tuple[str, int], ...] = ()
    needs: frozenset[str] = frozenset()


@dataclass(frozen=True)
class StepTimes:
    """A training step on one device, call by call in the order in which the plan runs them.

    Args:
        work: the calls.
        samples: per step.
        copy_bandwidth: bytes read and written per second by the threads of this one device; None: not measured.
        statistics_bytes: of running means and variances.
        memory_bytes: that the step needs; 0: not measured.
        shapes: of gradients, as far as known.

    Raises:
        ArgumentError: a time is negative, a gradient becomes ready twice, or is needed before it is ready.
    """

    work: tuple[TimedWork, ...]
    samples: int = 1
    copy_bandwidth: float | None = None
    statistics_bytes: int = 0
    memory_bytes: int = 0
    shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        made: set[str] = set()
        for work in self.work:
            if not (math.isfinite(work.seconds) and work.seconds >= 0):
                raise ArgumentError(f"step times: {work.name!r} must take 0 or more seconds, got {work.seconds}")
            if late := sorted(work.needs - made):
                raise ArgumentError(f"step times: {work.name!r} needs the gradient {late[0]!r} before it is ready")
            for name, nbytes in work.ready:
                if name in made or nbytes < 0:
                    raise ArgumentError(
                        f"step times: gradient {name!r} must become ready once, with 0 or more bytes, got {nbytes} "
                        f"bytes in {work.name!r}"
                    )
                made.add(name)

    @property
    def seconds(self) -> float:
        """Time of the step on one device."""
        return sum(work.seconds for work in self.work)

    @property
    def gradients(self) -> tuple[tuple[str, int], ...]:
        """All gradients with their bytes, in the order in which they become ready."""
        return tuple(entry for work in self.work for entry in work.ready)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients."""
        return sum(nbytes for _, nbytes in self.gradients)

    @classmethod
    def of(
        cls, profile: Profile, gradients: Collection[str], *, samples: int = 1, statistics_bytes: int = 0
    ) -> StepTimes:
        """Return the times of a profiled step.

        The calls are scaled so that they add up to the time of a step without timed calls.

        Args:
            profile: of a net with forward pass, backward pass and updates, on one device.
            gradients: blobs with the (dense) gradients of parameters.
            samples: per step.
            statistics_bytes: of running means and variances.

        Raises:
            ArgumentError: a gradient is written by no call, as that of an unused parameter, or one that is sparse.
        """
        ready = _ready(profile.calls, gradients)
        if missing := sorted(set(gradients) - ready.keys()):
            raise ArgumentError(
                f"net {profile.net!r}: no call writes the gradient {missing[0]!r}; give the dense gradients of "
                "parameters that the net trains"
            )
        shapes = {name: shape for name, (_, _, shape) in ready.items()}
        scale = profile.plain_seconds / (sum(call.seconds for call in profile.calls) or 1.0)
        work, made = [], set[str]()
        for index, call in enumerate(profile.calls):
            here = tuple((name, nbytes) for name, (where, nbytes, _) in ready.items() if where == index)
            read = frozenset(operand.blob for operand in call.inputs)
            work.append(TimedWork(call.name, scale * call.seconds, call.count * call.nbytes, here, read & made))
            made.update(name for name, _ in here)
        limits = profile.limits.get("CPU")
        memory = profile.memory.outside + profile.memory.values
        return cls(tuple(work), samples, limits.copy_bandwidth if limits else None, statistics_bytes, memory, shapes)

    def scaled(self, *, step: float | None = None, backward: float | None = None) -> StepTimes:
        """Return the same step on a faster or slower device.

        Args:
            step: seconds of the whole step; None: as now.
            backward: seconds from the first call after which a gradient is ready to the last such call; None: in
                proportion to ``step``.

        Raises:
            ArgumentError: a time is not positive, or the backward pass takes longer than the step.
        """
        step = self.seconds if step is None else step
        makes = [index for index, work in enumerate(self.work) if work.ready]
        within = range(makes[0], makes[-1] + 1) if makes else range(0)
        before = sum(self.work[index].seconds for index in within)
        after = before * step / self.seconds if backward is None else backward
        if not (step > 0 and 0 <= after <= step):
            raise ArgumentError(
                f"step times: the step must take more than 0 s and its backward pass no longer, got {step} s and "
                f"{after} s"
            )
        inner = after / before if before else 1.0
        outer = (step - after) / ((self.seconds - before) or 1.0)
        work = (
            dataclasses.replace(each, seconds=each.seconds * (inner if index in within else outer))
            for index, each in enumerate(self.work)
        )
        return dataclasses.replace(self, work=tuple(work), copy_bandwidth=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the times as a record for JSON, which ``from_dict`` reads."""
        rows = [{**dataclasses.asdict(work), "needs": sorted(work.needs)} for work in self.work]
        return {
            "samples": self.samples, "copy_bandwidth": self.copy_bandwidth, "statistics_bytes": self.statistics_bytes,
            "memory_bytes": self.memory_bytes, "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "work": rows,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> StepTimes:
        """Return the times of a record.

        Raises:
            ArgumentError: the record is of another form, or its times are wrong.
        """
        try:
            rows = tuple(_work(row) for row in record["work"])
            bandwidth = record.get("copy_bandwidth")
            statistics, memory = (int(record.get(name, 0)) for name in ("statistics_bytes", "memory_bytes"))
            shapes = {str(name): tuple(map(int, shape)) for name, shape in record.get("shapes", {}).items()}
            samples = int(record.get("samples", 1))
            return cls(rows, samples, None if bandwidth is None else float(bandwidth), statistics, memory, shapes)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, ArgumentError):
                raise
            raise ArgumentError(
                f"step times: a record needs 'work', a list of calls with 'name', 'seconds', 'ready' and 'needs': "
                f"{error!r}"
            ) from None


def _work(row: Mapping[str, Any]) -> TimedWork:
    ready = tuple((str(name), int(nbytes)) for name, nbytes in row.get("ready", ()))
    return TimedWork(
        str(row["name"]), float(row["seconds"]), float(row.get("nbytes", 0)), ready, frozenset(row.get("needs", ()))
    )


def _ready(calls: Iterable[CallProfile], gradients: Collection[str]) -> dict[str, tuple[int, int, tuple[int, ...]]]:
    """Return for each gradient the index of the call that completes it, its bytes and its shape.

    That is the last gradient operator that writes it, or the last sum of its shares; the operators of an optimizer
    change it later.
    """
    found: dict[str, tuple[int, int, tuple[int, ...]]] = {}
    for index, call in enumerate(calls):
        if call.category in ("gradient", "recompute") or call.kind.split()[0] == "Sum":
            for operand in call.outputs:
                if operand.blob in gradients:
                    size = math.prod(operand.shape) * _itemsize(operand.dtype)
                    found[operand.blob] = index, size, tuple(operand.shape)
    return found


def _itemsize(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
