"""Pairs of sentences: read from two files, sorted by length, and converted to the arrays of a batch."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from netbuilder.model.seq2seq.vocabulary import EOS_ID, GO_ID, PAD_ID, get_numberized_sentence
from netbuilder.proto import ArgumentError
from netbuilder.proto.opened_files import open_lines

__all__ = ["Batch", "gen_batches", "prepare_batch"]

Array = np.ndarray[Any, Any]
Numbers = list[int]
Pair = tuple[Numbers, Numbers]


class Batch(NamedTuple):
    """The arrays of a batch: token ids are (steps, samples) int32, lengths (samples,) int32."""

    encoder_inputs: Array  #: in reverse order, padded at the end
    encoder_lengths: Array
    decoder_inputs: Array  #: starting with the go token
    decoder_lengths: Array
    targets: Array  #: the expected outputs of the decoder, ending with the end token
    target_weights: Array  #: 1 for targets, 0 for padding; float32


def prepare_batch(batch: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Batch:
    """Return the arrays of pairs of sentences, which are given as token ids.

    Raises:
        ArgumentError: there are no pairs.

    >>> prepare_batch([([4, 5], [6])]).encoder_inputs.tolist()
    [[5], [4]]
    """
    if not batch:
        raise ArgumentError("prepare_batch: the batch must have at least one pair of sentences, got none")
    sources = [[*source][::-1] for source, _ in batch]
    given = [[GO_ID, *target] for _, target in batch]
    expected = [[*target, EOS_ID] for _, target in batch]
    lengths = _lengths(given)
    weights = (np.arange(int(lengths.max()))[:, None] < lengths).astype(np.float32)
    return Batch(_padded(sources), _lengths(sources), _padded(given), lengths, _padded(expected), weights)


def _lengths(rows: Sequence[Sequence[int]]) -> Array:
    return np.array([len(row) for row in rows], np.int32)


def _padded(rows: Sequence[Sequence[int]]) -> Array:
    made = np.full((max(map(len, rows)), len(rows)), PAD_ID, np.int32)
    for i, row in enumerate(rows):
        made[: len(row), i] = row
    return made


def gen_batches(
    source_corpus: str | os.PathLike[str],
    target_corpus: str | os.PathLike[str],
    source_vocab: Mapping[str, int],
    target_vocab: Mapping[str, int],
    batch_size: int,
    max_length: int | None,
) -> list[list[Pair]]:
    """Return the pairs of lines of two files in batches of similar lengths, in random order of the batches.

    Pairs with an empty sentence are dropped. The last batch is padded by repeating its last pair.

    Args:
        source_corpus, target_corpus: files with one sentence per line.
        source_vocab, target_vocab: word -> token id.
        batch_size: number of pairs of a batch.
        max_length: drop pairs with a sentence of more words; None: no limit.

    Raises:
        ArgumentError: ``batch_size`` is not positive, or the files have different numbers of lines.
    """
    if batch_size < 1:
        raise ArgumentError(f"gen_batches: batch_size must be positive, got {batch_size!r}")
    pairs = [
        pair
        for pair in _pairs(source_corpus, target_corpus, source_vocab, target_vocab)
        if all(pair) and (max_length is None or max(map(len, pair)) <= max_length)
    ]
    pairs.sort(key=lambda pair: len(pair[0]))
    batches = [pairs[first : first + batch_size] for first in range(0, len(pairs), batch_size)]
    if batches:
        batches[-1] += batches[-1][-1:] * (batch_size - len(batches[-1]))
    random.shuffle(batches)
    return batches


def _pairs(
    source_corpus: str | os.PathLike[str],
    target_corpus: str | os.PathLike[str],
    source_vocab: Mapping[str, int],
    target_vocab: Mapping[str, int],
) -> Iterator[Pair]:
    with open_lines(source_corpus) as sources, open_lines(target_corpus) as targets:
        for source, target in zip_longest(sources, targets):
            if source is None or target is None:
                raise ArgumentError(
                    f"{source_corpus} and {target_corpus} must have the same number of lines, but one has more"
                )
            yield get_numberized_sentence(source, source_vocab), get_numberized_sentence(target, target_vocab)
