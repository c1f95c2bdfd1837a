"""Blocks of a drawing that can be folded: repeated sequences of operators, and the operators of a name scope."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import groupby
from operator import itemgetter

from netbuilder.graph.drawing.boxes import UPDATES, Blob, Box
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["Fold", "find_folds", "kind_of", "repeats", "scope_folds"]

_LONGEST = 400  # longest block, in operators
_LEAST_HIDDEN = 5  # least number of operators that a fold of repetitions must hide
_LEAST_OF_SCOPE = 3  # and one of a name scope
_IGNORED = ("stream", "seed", "name", "net")  # arguments with these in their names may differ between equal blocks


@dataclass(frozen=True)
class Fold:
    """A block that is repeated, or the operators of a name scope.

    Args:
        first: the operators of the first occurrence; none of a name scope.
        others: those of the other occurrences, or of the name scope, which are hidden while the block is folded.
        times: number of occurrences.
        scope: the name scope; "": it is a block that is repeated.
    """

    first: list[int]
    others: list[int]
    times: int
    scope: str = ""


def find_folds(boxes: Sequence[Box], blobs: Sequence[Blob]) -> list[Fold]:
    """Return the repeated blocks of each part on each device.

    Args:
        boxes, blobs: of the drawing.
    """
    found = []
    for place in sorted({(box.lane, box.part) for box in boxes}):
        own = [index for index, box in enumerate(boxes) if (box.lane, box.part) == place]

        def values_that_enter(start: int, length: int, own: Sequence[int] = own) -> int:
            read = {value for index in own[start : start + length] for value in boxes[index].inputs}
            return sum(0 <= blobs[value].writer < own[start] for value in read)

        kinds = [kind_of(boxes[index], blobs) for index in own]
        for start, length, times in repeats(kinds, values_that_enter):
            end = start + length
            found.append(Fold(own[start:end], own[end : start + length * times], times))
    return found


def scope_folds(boxes: Sequence[Box], scopes: Sequence[str]) -> list[Fold]:
    """Return the folds of name scopes, which may be nested: outer ones come first.

    A fold has consecutive operators of one part on one device, so that what it is joined to comes before or after it.

    Args:
        boxes: of the drawing.
        scopes: the name scope of each box, such as "tower/block1"; "": it has none.
    """
    paths = [scope.split("/") if scope else [] for scope in scopes]
    found: dict[tuple[int, ...], Fold] = {}
    for place in sorted({(box.lane, box.part) for box in boxes}):
        own = [index for index, box in enumerate(boxes) if (box.lane, box.part) == place]
        for depth in range(1, 1 + max(len(paths[index]) for index in own)):
            for path, run in groupby(((paths[index][:depth], index) for index in own), key=itemgetter(0)):
                members = [index for _, index in run]
                if len(path) == depth and len(members) >= _LEAST_OF_SCOPE:
                    # Of scopes with the same operators the innermost is named.
                    found[tuple(members)] = Fold([], members, 1, "/".join(path))
    return sorted(found.values(), key=lambda fold: (boxes[fold.others[0]].part, fold.scope.count("/"), fold.others[0]))


def repeats(
    kinds: Sequence[Hashable], cost: Callable[[int, int], int] = lambda start, length: 0
) -> list[tuple[int, int, int]]:
    """Find blocks that are repeated without a gap: return where each starts, its length, and how often it occurs.

    Of overlapping runs the one that covers most operators is used, and of those the one with the shortest block.

    Args:
        kinds: a value for each operator; blocks with equal values are repetitions.
        cost: function of start and length of a block; a run that could also start some operators later starts where
            the cost is least.

    >>> repeats("xabcabcabcy")
    [(1, 3, 3)]
    """
    numbers: dict[Hashable, int] = {}
    codes = [numbers.setdefault(kind, len(numbers)) for kind in kinds]
    count = len(codes)
    runs = []
    for length in range(1, min(_LONGEST, count // 2) + 1):
        start = 0
        while start + 2 * length <= count:
            same = 0  # number of operators from `start` on that equal those one block later
            while start + same + length < count and codes[start + same] == codes[start + same + length]:
                same += 1
            times, slack = same // length + 1, same % length
            if times > 1 and length * (times - 1) >= _LEAST_HIDDEN:
                runs.append((start, length, times, slack))
            start += same + 1
    taken = [False] * count
    chosen = []
    for start, length, times, slack in sorted(runs, key=lambda run: (-run[1] * run[2], run[1], run[0])):
        free = [s for s in range(start, start + slack + 1) if not any(taken[s : s + length * times])]
        if free:
            best = min(free, key=lambda s: (cost(s, length), s))
            chosen.append((best, length, times))
            taken[best : best + length * times] = [True] * (length * times)
    return sorted(chosen)


def kind_of(box: Box, blobs: Sequence[Blob]) -> Hashable:
    """Return what is equal for operators that compute the same: type, part, arguments and shapes of outputs.

    After the backward pass shapes may differ: what is done for all parameters is one block.
    """
    arguments = tuple(sorted(item for item in box.arguments.items() if not any(part in item[0] for part in _IGNORED)))
    shapes = () if box.part == UPDATES else tuple(blobs[output].shape for output in box.outputs)
    return box.type, box.part, arguments, shapes
