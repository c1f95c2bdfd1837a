"""Vocabularies: words and their token ids."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping

from netbuilder.proto import ArgumentError
from netbuilder.proto.opened_files import open_lines

__all__ = ["EOS", "EOS_ID", "GO", "GO_ID", "PAD", "PAD_ID", "UNK", "UNK_ID", "gen_vocab", "get_numberized_sentence"]

PAD_ID, PAD = 0, "<PAD>"
GO_ID, GO = 1, "<GO>"
EOS_ID, EOS = 2, "<EOS>"
UNK_ID, UNK = 3, "<UNK>"


def gen_vocab(corpus: str | os.PathLike[str] | Iterable[str], unk_threshold: int) -> dict[str, int]:
    """Return the token id of each word of a text; the first four are ``<PAD>``, ``<GO>``, ``<EOS>`` and ``<UNK>``.

    Args:
        corpus: a file with one sentence per line, or its lines; words are separated by whitespace.
        unk_threshold: words that occur at most this often are excluded.

    Raises:
        ArgumentError: the threshold is negative.

    >>> gen_vocab(["a b a", "c a b"], 1)
    {'<PAD>': 0, '<GO>': 1, '<EOS>': 2, '<UNK>': 3, 'a': 4, 'b': 5}
    """
    if unk_threshold < 0:
        raise ArgumentError(f"gen_vocab: unk_threshold must not be negative, got {unk_threshold!r}")
    if isinstance(corpus, (str, os.PathLike)):
        with open_lines(corpus) as file:
            counts = Counter(word for line in file for word in line.split())
    else:
        counts = Counter(word for line in corpus for word in line.split())
    vocabulary = {PAD: PAD_ID, GO: GO_ID, EOS: EOS_ID, UNK: UNK_ID}
    for word, count in counts.items():
        if count > unk_threshold and word not in vocabulary:
            vocabulary[word] = len(vocabulary)
    return vocabulary


def get_numberized_sentence(sentence: str, vocab: Mapping[str, int]) -> list[int]:
    """Return the token ids of a sentence's words; words that are not in ``vocab`` get that of ``<UNK>``.

    >>> get_numberized_sentence("a d", {"<UNK>": 3, "a": 4})
    [4, 3]
    """
    unknown = vocab.get(UNK, UNK_ID)
    return [vocab.get(word, unknown) for word in sentence.split()]
