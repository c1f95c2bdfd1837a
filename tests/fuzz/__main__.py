"""``make fuzz``: damaged files and random nets for the requested time; prints the findings.

``python -m fuzz --only lmdb --seed 0 --number 123`` runs one input again, in this process, and shows its error.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

from fuzz.campaign import campaign
from fuzz.kinds import KINDS
from fuzz.worker import judge, limit_memory

_SHOWN = 60  # places


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="fuzz", description="Damaged files and wild nets, in processes that may die.")
    parser.add_argument("--seconds", type=float, default=3600, help="how long (3600)")
    parser.add_argument("--seed", default="0", help="of the inputs (0); new: another one each time")
    parser.add_argument("--only", nargs="+", choices=sorted(KINDS), metavar="KIND", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--hang", type=float, default=60, help="seconds after which an input counts as hanging (60)")
    parser.add_argument("--first", type=int, default=0, help="number of the first input of each kind (0)")
    parser.add_argument("--number", type=int, help="run this one input here, with its traceback")
    options = parser.parse_args(arguments)
    seed = str(time.time_ns()) if options.seed == "new" else options.seed
    names = options.only or list(KINDS)
    if options.number is not None:
        return _again(names[0], seed, options.number)
    began = time.time()
    outcome = campaign(names, seconds=options.seconds, seed=seed, hang=options.hang, first=options.first)
    for name, count in outcome.counts.items():
        print(f"{count:10,d}  {name}")
    print(
        f"{sum(outcome.counts.values()):10,d}  inputs in {time.time() - began:.0f} s, {len(outcome.findings)} findings"
    )
    places = sorted(outcome.places().items(), key=lambda item: -len(item[1]))
    for (kind, where), found in places[:_SHOWN]:
        first = found[0]
        print(f"\n{len(found)} x {kind}, {where}\n  {first.what}")
        print(f"  again: python -m fuzz --only {kind!r} --seed {seed} --number {first.number}")
    if len(places) > _SHOWN:
        print(f"\nand {len(places) - _SHOWN} more places")
    return 1 if outcome.findings else 0


def _again(name: str, seed: str, number: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        sandbox = Path(folder) / "sandbox"
        sandbox.mkdir()
        os.chdir(sandbox)
        trial = KINDS[name](Path(folder))
        limit_memory()
        try:
            trial(random.Random(f"{seed}/{name}/{number}"))
        except BaseException:
            traceback.print_exc()
        finding = judge(name, trial, seed, number, sandbox)
    print(f"finding: {finding.what} ({finding.where})" if finding else "nothing is wrong with the answer")
    return 1 if finding else 0


if __name__ == "__main__":
    sys.exit(main())
