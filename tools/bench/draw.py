"""The inputs of a benchmark's training step, the same on all sides.

The peers' environments, which have no netbuilder, import it too, so it must not import netbuilder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from netbuilder.tools.bench.work import Work

__all__ = ["TABLES", "WORDS", "draw"]

TABLES = 26
"""Tables of the recommendation model, as many as the Criteo data have categorical features."""

WORDS = {"gpt2": 50257, "bert": 30522, "tagger": 10_000}
"""Net -> number of words."""

Arrays = dict[str, np.ndarray[Any, Any]]


def draw(work: Work) -> Arrays:
    """Return the batch by the names of the net's inputs: floats are float32, indices int32."""
    rng = np.random.default_rng(0)
    if work.net in _DRAWN:
        return _DRAWN[work.net](rng, work)
    if work.reads_words:
        data: Any = rng.integers(0, work.classes, work.shape).astype(np.int32)
    else:
        data = rng.standard_normal(work.shape, np.float32)
    return {"data": data, "label": rng.integers(0, work.classes, work.labels).astype(np.int32)}


def _pixels(rng: np.random.Generator, work: Work) -> Arrays:
    label = rng.integers(0, work.classes, (work.batch, work.size, work.size)).astype(np.int32)
    return {"data": rng.standard_normal(work.shape, np.float32), "label": label}


def _words(rng: np.random.Generator, work: Work) -> Arrays:
    shape = (work.batch, work.length)
    data = rng.integers(0, WORDS[work.net], shape).astype(np.int32)
    return {"data": data, "label": rng.integers(0, work.classes, shape).astype(np.int32)}


def _sentences(rng: np.random.Generator, work: Work) -> Arrays:
    """Return two segments in each sample, and the mask of what comes after its end."""
    steps, ends = np.arange(work.length), rng.integers(work.length // 2, work.length + 1, (work.batch, 1))
    return {
        **_words(rng, work),
        "label": rng.integers(0, work.classes, work.batch).astype(np.int32),
        "segments": (steps >= ends // 2).astype(np.int32),
        "mask": np.where(steps < ends, 0.0, -1e30).astype(np.float32)[:, None, None],
    }


def _sequences(rng: np.random.Generator, work: Work) -> Arrays:
    """Return words and their classes, (length, batch), and the samples' lengths."""
    found = {name: np.ascontiguousarray(array.T) for name, array in _words(rng, work).items()}
    return {**found, "lengths": np.full(work.batch, work.length, np.int32)}


def _features(rng: np.random.Generator, work: Work) -> Arrays:
    found: Arrays = {"data": rng.standard_normal((work.batch, 13), np.float32)}
    for i in range(TABLES):
        lengths = rng.integers(1, work.length + 1, work.batch).astype(np.int32)
        found[f"lengths{i}"] = lengths
        found[f"indices{i}"] = rng.integers(0, work.classes, lengths.sum()).astype(np.int32)
    return {**found, "label": rng.integers(0, 2, (work.batch, 1)).astype(np.float32)}


_DRAWN = {"unet": _pixels, "gpt2": _words, "bert": _sentences, "dlrm": _features, "tagger": _sequences}
