"""Sequences read from the outputs of nets with a blank class 0: CTCGreedyDecoder, CTCBeamSearchDecoder."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import check_integers
from netbuilder.proto import ArgumentError

__all__ = ["CTCBeamSearchDecoder", "CTCGreedyDecoder"]

_BLANK = 0


@operator_class(frozen=True)
class _Decoder(Operator):
    dynamic = True

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if index == 1 else "here"

    def flops(self, x: TensorSpec, *lengths: TensorSpec) -> int:
        return x.size

    def lengths(self, ctx: RunContext, x: Any, given: Any) -> Any:
        """Return how many steps each sample has, on the host; checks the inputs."""
        require(
            x.ndim == 3 and x.shape[2] > 0 and x.dtype.kind == "f",
            self,
            f"X must have the shape (steps, samples, classes) and hold floating-point numbers, got {tuple(x.shape)} of "
            f"{x.dtype}",
        )
        steps, samples = x.shape[:2]
        if given is None:
            return np.full(samples, steps)
        check_integers(self, "lengths", given)
        lengths = ctx.host(given).astype(np.int64)
        require(lengths.size == samples, self, f"there must be a length for each of {samples} samples, got {lengths}")
        wrong = lengths[(lengths < 0) | (lengths > steps)]
        require(not wrong.size, self, f"lengths must lie in [0, {steps}], the steps of X, got {wrong[:1]}")
        return lengths


@register
@operator_class(frozen=True)
class CTCGreedyDecoder(_Decoder):
    """The best class of each step, without blanks (class 0), and without repetitions unless ``merge_repeated=False``.

    A class that is the best one again after a blank is no repetition. ``output_len`` says how many are left of each
    sample, ``values`` has those of all samples one after another.

    Inputs:
        X (T, N, C): float
        lengths? (N): int32
    Outputs:
        output_len (N): int32
        values (M): int32

    Source: Graves et al., "Connectionist temporal classification", 2006, section 3.2.
    """

    inputs = ("X", "lengths?")
    outputs = ("output_len", "values")
    merge_repeated: bool = True


@kernel(CTCGreedyDecoder)
def ctc_greedy_decoder(op: CTCGreedyDecoder, ctx: RunContext, x: Any, lengths: Any = None) -> tuple[Any, ...]:
    counts = op.lengths(ctx, x, lengths)
    best = ctx.host(x.argmax(axis=2)).T
    kept = (best != _BLANK) & (np.arange(best.shape[1]) < counts[:, None])
    if op.merge_repeated:
        kept[:, 1:] &= best[:, 1:] != best[:, :-1]
    found = kept.sum(axis=1).astype(np.int32), best[kept].astype(np.int32)
    return tuple(ctx.xp.asarray(array) for array in found)


@register
@operator_class(frozen=True)
class CTCBeamSearchDecoder(_Decoder):
    """The most probable sequences of each sample, blanks (class 0) and repetitions taken out, by a beam of prefixes.

    X holds probabilities. Classes below ``prune_threshold`` are left out of a step, and the best ``beam_width``
    prefixes go on to the next; where no class reaches it, all are looked at. ``num_candidates`` of the last step's are
    given: ``output_len`` has their lengths, (samples * num_candidates,), ``values`` their classes one after the
    other, ``output_prob`` their probabilities; where there are fewer, or no steps at all, the others are empty and have
    the probability 0.

    Inputs:
        X (T, N, C): float
        lengths? (N): int32
    Outputs:
        output_len (N * num_candidates): int32
        values (M): int32
        output_prob? (N * num_candidates): as X

    Source: Hannun et al., "First-pass large vocabulary continuous speech recognition using bi-directional recurrent
    DNNs", 2014, arXiv:1408.2873, section 2.2, without the language model.
    """

    inputs = ("X", "lengths?")
    outputs = ("output_len", "values", "output_prob?")
    beam_width: int = 10
    prune_threshold: float = 0.001
    num_candidates: int = 1

    def check(self) -> None:
        if self.beam_width < 1 or self.num_candidates < 0:
            raise ArgumentError(
                "CTCBeamSearchDecoder: beam_width must be at least 1 and num_candidates at least 0, got "
                f"{self.beam_width} and {self.num_candidates}"
            )

    def flops(self, x: TensorSpec, *lengths: TensorSpec) -> int:
        return x.size * self.beam_width


@kernel(CTCBeamSearchDecoder)
def ctc_beam_search_decoder(op: CTCBeamSearchDecoder, ctx: RunContext, x: Any, lengths: Any = None) -> tuple[Any, ...]:
    counts, chances = op.lengths(ctx, x, lengths), ctx.host(x)
    sizes: list[int] = []
    values: list[int] = []
    found: list[float] = []
    for sample, count in enumerate(counts):
        beam = _Beam(op.beam_width)
        for row in chances[:count, sample].astype(np.float64):
            allowed = row >= op.prune_threshold
            beam.step(row, allowed if allowed.any() else np.ones_like(allowed))
        best = beam.best()[: op.num_candidates] if count else []
        best += [((), 0.0)] * (op.num_candidates - len(best))
        for prefix, chance in best:
            sizes.append(len(prefix))
            values.extend(prefix)
            found.append(chance)
    results = np.array(sizes, np.int32), np.array(values, np.int32), np.array(found, chances.dtype)
    return tuple(ctx.xp.asarray(array) for array in results)


class _Stay(NamedTuple):
    """For each prefix: whether it stays as it is, and its chances then."""

    there: Any
    blank: Any
    last: Any


class _Grow(NamedTuple):
    """The same for each prefix with each class after it."""

    there: Any
    blank: Any
    last: Any


class _Beam:
    """Prefixes with their chances: of ending with a blank, and of ending with their last class; the best first."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._prefixes: list[tuple[int, ...]] = [()]
        self._blank, self._last = np.ones(1), np.zeros(1)

    def best(self) -> list[tuple[tuple[int, ...], float]]:
        """Return the prefixes with their chances."""
        return [(prefix, float(chance)) for prefix, chance in zip(self._prefixes, self._blank + self._last)]

    def step(self, chances: Any, allowed: Any) -> None:
        """Let each of the best prefixes stay or grow by a class.

        Args:
            chances: of the classes.
            allowed: which classes are looked at.
        """
        prefixes = self._prefixes[: self._width]
        blank, last = self._blank[: self._width], self._last[: self._width]
        ends = np.array([prefix[-1] if prefix else _BLANK for prefix in prefixes])
        again = allowed[ends] & (ends != _BLANK)
        grown = (blank + last)[:, None] * chances
        grown[np.arange(len(prefixes)), ends] = blank * chances[ends]  # after a blank alone the same class counts
        stay = _Stay(
            allowed[_BLANK] | again,
            (blank + last) * (chances[_BLANK] if allowed[_BLANK] else 0.0),
            last * np.where(again, chances[ends], 0.0),
        )
        grow = _Grow(np.broadcast_to(allowed, grown.shape).copy(), np.zeros_like(grown), grown)
        grow.there[:, _BLANK] = False
        self._merge(chances, stay, grow)
        self._sort(prefixes, stay, grow)

    def _merge(self, chances: Any, stay: _Stay, grow: _Grow) -> None:
        """Add what grows into a prefix that was there before to what that prefix is by itself."""
        position = {prefix: i for i, prefix in enumerate(self._prefixes[: self._width])}
        for i, prefix in enumerate(self._prefixes):
            parent = position.get(prefix[:-1]) if prefix else None
            if parent is None or not grow.there[parent, prefix[-1]]:
                continue
            c = prefix[-1]
            if i < self._width:
                stay.last[i] += grow.last[parent, c]
                grow.there[parent, c], stay.there[i] = False, True
            else:  # it was not among the best, and comes back
                grow.last[parent, c] += self._last[i] * chances[c]
                grow.blank[parent, c] = (self._blank[i] + self._last[i]) * chances[_BLANK]

    def _sort(self, prefixes: list[tuple[int, ...]], stay: _Stay, grow: _Grow) -> None:
        """Keep all prefixes that there are now, in the order of their chances."""
        kept, (parents, classes) = np.flatnonzero(stay.there), np.nonzero(grow.there)
        found = [prefixes[i] for i in kept] + [(*prefixes[i], int(c)) for i, c in zip(parents, classes)]
        blank = np.concatenate([stay.blank[kept], grow.blank[parents, classes]])
        last = np.concatenate([stay.last[kept], grow.last[parents, classes]])
        order = np.argsort(-(blank + last), kind="stable")
        self._prefixes = [found[i] for i in order]
        self._blank, self._last = blank[order], last[order]
