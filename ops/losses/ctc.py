"""Decoders for connectionist temporal classification (CTC): CTCGreedyDecoder and CTCBeamSearchDecoder."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.given_numbers import check_extents
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.segment_groups import check_integers
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["CTCBeamSearchDecoder", "CTCGreedyDecoder"]

_CANDIDATE_BYTES = 200  # of a candidate, while they are collected in lists
_BLANK = 0


@dataclass(frozen=True)
class _Decoder(Operator):
    dynamic = True
    inputs_on_host = (1,)
    flops_per_element = 1

    def lengths(self, ctx: RunContext, x: Any, given: Any) -> Any:
        """Check the inputs and return the number of steps of each sample, on the host."""
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
        require(
            lengths.size == samples, self, f"lengths must have one number per sample, {samples} in all, got {lengths}"
        )
        wrong = lengths[(lengths < 0) | (lengths > steps)]
        require(not wrong.size, self, f"lengths must lie in [0, {steps}], the steps of X, got {wrong[:1]}")
        return lengths


@register
@dataclass(frozen=True)
class CTCGreedyDecoder(_Decoder):
    """The best class of each step without blanks (class 0) and, unless ``merge_repeated=False``, without repeats.

    A class that comes again after a blank is not a repeat. ``output_len`` is the number of classes that are left of
    each sample; ``values`` holds those of all samples, concatenated.

    Source: Graves et al., "Connectionist temporal classification", 2006, section 3.2.
    """

    signature = "X (T, N, C): float, lengths? (N): int32 -> output_len (N): int32, values (M): int32"
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
@dataclass(frozen=True)
class CTCBeamSearchDecoder(_Decoder):
    """The most probable sequences of each sample, without blanks (class 0) and repeats, by prefix beam search.

    X holds probabilities. A step considers the classes with a probability of at least ``prune_threshold`` (all of them
    if there is none), and the best ``beam_width`` prefixes continue to the next step. The best ``num_candidates``
    prefixes after the last step are returned: ``output_len`` has their lengths, ``values`` their classes, concatenated,
    and ``output_prob`` their probabilities. If there are fewer, or no steps at all, the missing ones are empty and have
    probability 0.

    Source: Hannun et al., "First-pass large vocabulary continuous speech recognition using bi-directional recurrent
    DNNs", 2014, arXiv:1408.2873, section 2.2, without the language model.
    """

    signature = """
        X (T, N, C): float
        lengths? (N): int32
        -> output_len (N * num_candidates): int32
        -> values (M): int32
        -> output_prob? (N * num_candidates): as X
    """
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
    counts, probs = op.lengths(ctx, x, lengths), ctx.host(x)
    check_extents("CTCBeamSearchDecoder: OUTPUT_LEN", (counts.size, op.num_candidates, _CANDIDATE_BYTES), np.uint8)
    check_extents("CTCBeamSearchDecoder: the beam", (op.beam_width, x.shape[-1], 8), np.uint8)
    sizes: list[int] = []
    values: list[int] = []
    found: list[float] = []
    for sample, count in enumerate(counts):
        beam = _Beam(op.beam_width)
        for row in probs[:count, sample].astype(np.float64):
            allowed = row >= op.prune_threshold
            beam.step(row, allowed if allowed.any() else np.ones_like(allowed))
        best = beam.best()[: op.num_candidates] if count else []
        best += [((), 0.0)] * (op.num_candidates - len(best))
        for prefix, probability in best:
            sizes.append(len(prefix))
            values.extend(prefix)
            found.append(probability)
    results = np.array(sizes, np.int32), np.array(values, np.int32), np.array(found, probs.dtype)
    return tuple(ctx.xp.asarray(array) for array in results)


class _Candidates(NamedTuple):
    """Candidates for the next beam: prefixes as they are, (prefixes,), or extended by a class, (prefixes, classes)."""

    valid: Any  # whether this is a candidate
    blank: Any  # probability of this prefix, ending with a blank
    last: Any  # probability of this prefix, ending with its last class


class _Beam:
    """Prefixes, the best first, with their probabilities of ending with a blank and of ending with their last class."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._prefixes: list[tuple[int, ...]] = [()]
        self._blank, self._last = np.ones(1), np.zeros(1)

    def best(self) -> list[tuple[tuple[int, ...], float]]:
        """Return the prefixes with their probabilities."""
        return [(prefix, float(probability)) for prefix, probability in zip(self._prefixes, self._blank + self._last)]

    def step(self, probs: Any, allowed: Any) -> None:
        """Advance by one step: each of the best prefixes stays as it is or is extended by a class.

        Args:
            probs: the probability of each class in this step.
            allowed: which classes are considered.
        """
        prefixes = self._prefixes[: self._width]
        blank, last = self._blank[: self._width], self._last[: self._width]
        ends = np.array([prefix[-1] if prefix else _BLANK for prefix in prefixes])
        again = allowed[ends] & (ends != _BLANK)
        extended = (blank + last)[:, None] * probs
        extended[np.arange(len(prefixes)), ends] = blank * probs[ends]  # the last class again: only after a blank
        stay = _Candidates(
            allowed[_BLANK] | again,
            (blank + last) * (probs[_BLANK] if allowed[_BLANK] else 0.0),
            last * np.where(again, probs[ends], 0.0),
        )
        grow = _Candidates(np.broadcast_to(allowed, extended.shape).copy(), np.zeros_like(extended), extended)
        grow.valid[:, _BLANK] = False
        self._merge(probs, stay, grow)
        self._sort(prefixes, stay, grow)

    def _merge(self, probs: Any, stay: _Candidates, grow: _Candidates) -> None:
        """Merge each extended prefix that is already known with the known one, so that no prefix occurs twice."""
        position = {prefix: i for i, prefix in enumerate(self._prefixes[: self._width])}
        for i, prefix in enumerate(self._prefixes):
            parent = position.get(prefix[:-1]) if prefix else None
            if parent is None or not grow.valid[parent, prefix[-1]]:
                continue
            c = prefix[-1]
            if i < self._width:
                stay.last[i] += grow.last[parent, c]
                grow.valid[parent, c], stay.valid[i] = False, True
            else:  # it was below the beam's width and is reached again
                grow.last[parent, c] += self._last[i] * probs[c]
                grow.blank[parent, c] = (self._blank[i] + self._last[i]) * probs[_BLANK]

    def _sort(self, prefixes: list[tuple[int, ...]], stay: _Candidates, grow: _Candidates) -> None:
        """Store all candidates as the new prefixes, the most probable first."""
        kept, (parents, classes) = np.flatnonzero(stay.valid), np.nonzero(grow.valid)
        found = [prefixes[i] for i in kept] + [(*prefixes[i], int(c)) for i, c in zip(parents, classes)]
        blank = np.concatenate([stay.blank[kept], grow.blank[parents, classes]])
        last = np.concatenate([stay.last[kept], grow.last[parents, classes]])
        order = np.argsort(-(blank + last), kind="stable")
        self._prefixes = [found[i] for i in order]
        self._blank, self._last = blank[order], last[order]
