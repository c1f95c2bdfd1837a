"""Fuzzing: a campaign detects crashes, hangs, foreign errors, large memory and written files, and finds none."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.campaign import campaign
from fuzz.judge import fault
from fuzz.kinds import KINDS
from fuzz.mutations import damaged_bytes, damaged_message, damaged_text
from netbuilder.proto import NetDef, NetError, OperatorError
from netbuilder.proto.arguments import make_op
from waiting import HANG

TESTS = Path(__file__).parent.parent


# Seconds of damaged files and random nets, including the start of the workers.
@pytest.mark.parametrize("seconds", [8, pytest.param(30, marks=pytest.mark.slow)])
def test_no_input_kills_hangs_or_gets_a_bare_error(seconds):
    outcome = campaign(list(KINDS), seconds=seconds, hang=HANG)
    assert all(outcome.counts.values()), f"no input of {[name for name, n in outcome.counts.items() if not n]}"
    shown = [f"{each.what} (python -m fuzz --only {each.kind!r} --number {each.number})" for each in outcome.findings]
    assert not shown, "\n".join(shown)


@pytest.mark.slow
def test_one_change_at_a_time():
    command = [sys.executable, "-m", "fuzz.sweep", "BatchSparseToDense", "GatherRanges", "RoIPool", "TopK"]
    paths = os.pathsep.join(map(str, (TESTS, TESTS.parent)))
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    assert done.returncode == 0 and " inputs, 0 findings" in done.stdout, done.stdout + done.stderr


EXPECTED = {
    "dies": "death by SIGABRT",
    "hangs": "hang: more than 8 s",
    "bare": "bare IndexError: list index out of range",
    "grows": "took 3",
    "too much": "MemoryError",
    "writes": "wrote the files ['stolen']",
}


@pytest.mark.slow
def test_a_campaign_survives_its_workers_and_names_the_input():
    names = ["ours", *EXPECTED]
    outcome = campaign(names, seconds=10 * HANG, hang=8.0, most=6, table="fuzz.broken_kinds")
    assert outcome.counts == dict.fromkeys(names, 6)
    found = {each.kind: each for each in outcome.findings}
    assert found.keys() == EXPECTED.keys() and "ours" not in found
    for name, text in EXPECTED.items():
        assert found[name].what.startswith(text), found[name]
    assert {each.number for each in outcome.findings} == {2} and "Abort" in found["dies"].what


def test_what_counts_as_ours():
    assert fault(NetError("'x.pb' is damaged"), "x.pb") is None
    assert "does not name the file" in fault(NetError("is damaged"), "x.pb")[0]
    assert "bare ValueError" in fault(ValueError("shapes"))[0]
    caused = OperatorError("net 'n', operator 0: Tile: ValueError: shapes")
    caused.__cause__ = ValueError("shapes")
    assert "bare ValueError: shapes" in fault(caused)[0]
    worded = OperatorError("net 'n', operator 0: Gather ['x'] -> ['y']: IndexError: Gather: indices must lie in [0, 3)")
    worded.__cause__ = IndexError("Gather: indices must lie in [0, 3)")
    assert fault(worded) is None
    short = OperatorError("net 'n', operator 0: MemoryError")
    short.__cause__ = MemoryError()
    assert fault(short) is not None and fault(short, may_lack_memory=True) is None


def test_inputs_follow_from_their_numbers():
    net = NetDef(name="n", op=[make_op("Relu", ["x"], ["y"], order="NCHW")])

    def made(number):
        rng, copy = random.Random(number), NetDef()
        copy.CopyFrom(net)
        damaged_message(rng, copy)
        return (
            damaged_bytes(rng, b"some bytes" * 9), damaged_text(rng, b"a,1\n"), copy.SerializePartialToString()
        )  # fmt: skip

    assert [made(n) for n in range(50)] == [made(n) for n in range(50)]
    assert len({made(n) for n in range(50)}) > 45
