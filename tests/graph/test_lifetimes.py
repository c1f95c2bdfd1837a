"""Lifetimes of values, and packers: values that are needed together never share memory, and little is lost."""

import numpy as np
import pytest

from netbuilder.graph.lifetimes import Lifetime, lifetimes, pack_into_arena, pack_into_slots


def test_lifetimes_reach_from_the_first_step_to_the_last():
    steps = [("cpu", ["x", "a"]), ("cpu", ["a", "b"]), ("gpu", ["c"]), ("gpu", ["b", "c"])]
    assert lifetimes(steps) == {
        "x": Lifetime("x", 0, 0, "cpu"),
        "a": Lifetime("a", 0, 1, "cpu"),
        "b": Lifetime("b", 1, 3, None),  # of two places
        "c": Lifetime("c", 2, 3, "gpu"),
    }
    assert lifetimes([("cpu", "a"), ("gpu", "a"), ("cpu", "a")])["a"].place is None
    assert lifetimes([]) == {}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (Lifetime("a", 0, 1, "cpu"), Lifetime("b", 2, 3, "cpu"), True),
        (Lifetime("a", 0, 2, "cpu"), Lifetime("b", 2, 3, "cpu"), False),  # the step reads one and writes the other
        (Lifetime("a", 0, 1, "cpu"), Lifetime("b", 2, 3, "gpu"), False),
        (Lifetime("a", 0, 1), Lifetime("b", 2, 3), False),  # steps of several places, in no fixed order
    ],
)
def test_what_precedes(first, second, expected):
    assert first.precedes(second) is expected
    assert not second.precedes(first)


def test_slots_by_cost():
    def nearest(slot, life):
        return abs(max(other.nbytes for other in slot) - life.nbytes)

    a, b = Lifetime("a", 0, 1, 0, 10), Lifetime("b", 1, 2, 0, 100)
    c, d, e = Lifetime("c", 3, 4, 0, 90), Lifetime("d", 4, 5, 0, 90), Lifetime("e", 6, 6, 0, 55)
    given = [[a]]
    assert pack_into_slots([b, c, d, e], nearest, given) == [[a, d, e], [b, c]]
    assert given == [[a]]
    assert pack_into_slots([b, c, d, e], lambda slot, life: -len(slot), given) == [[a, c, e], [b, d]]
    assert pack_into_slots([], nearest) == []


def test_offsets_by_hand():
    """The large ones first; the smallest gap that is large enough."""
    values = [
        Lifetime("a", 0, 9, 0, 64),
        Lifetime("b", 0, 1, 0, 640),
        Lifetime("c", 2, 3, 0, 300),
        Lifetime("d", 2, 9, 0, 320),
    ]
    assert pack_into_arena(values) == ([640, 0, 320, 0], 704)
    assert pack_into_arena(values, alignment=1) == ([640, 0, 320, 0], 704)
    between = [
        Lifetime("x", 0, 2, 0, 500),
        Lifetime("y", 0, 1, 0, 400),
        Lifetime("z", 1, 2, 0, 300),
        Lifetime("w", 2, 2, 0, 100),
    ]
    assert pack_into_arena(between, alignment=100) == ([0, 500, 900, 500], 1200)
    assert pack_into_arena([]) == ([], 0)
    assert pack_into_arena([Lifetime("empty", 0, 1, 0, 0)]) == ([0], 0)


def needed_at_once(values):
    """The most bytes that are needed at one time: no packer can do with less."""
    return max(sum(v.nbytes for v in values if v.start <= step <= v.end) for step in range(40))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(20))
def test_values_that_are_needed_together_do_not_overlap(seed):
    rng = np.random.default_rng(seed)
    values = []
    for number in range(60):
        start = int(rng.integers(0, 30))
        values.append(Lifetime(number, start, start + int(rng.integers(0, 10)), 0, 64 * int(rng.integers(0, 50))))
    offsets, nbytes = pack_into_arena(values)
    assert all(offset % 64 == 0 and offset + v.nbytes <= nbytes for v, offset in zip(values, offsets))
    for v, at in zip(values, offsets):
        for w, other in zip(values, offsets):
            together = v is not w and v.start <= w.end and w.start <= v.end
            assert not together or at + v.nbytes <= other or other + w.nbytes <= at
    assert needed_at_once(values) <= nbytes <= 1.3 * needed_at_once(values)


def test_values_that_are_packed_again_get_their_offsets_anew():
    """The same extents are packed once; what a caller does to its offsets does not reach the next."""
    rng = np.random.default_rng(0)
    lives = [Lifetime(i, int(a), int(a + n), nbytes=int(b)) for i, (a, n, b) in enumerate(rng.integers(1, 50, (30, 3)))]
    offsets, nbytes = pack_into_arena(lives, alignment=8)
    kept = list(offsets)
    offsets.clear()
    assert pack_into_arena([*lives], alignment=8) == (kept, nbytes)
    other = pack_into_arena(lives, alignment=64)
    assert other != (kept, nbytes) and all(offset % 64 == 0 for offset in other[0])
