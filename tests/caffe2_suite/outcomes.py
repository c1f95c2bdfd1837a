"""The expected outcome of each of Caffe2's own tests, and the page that lists them."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["GROUPS", "HERE", "KINDS", "Test", "expected", "exceptions", "group_of", "page"]

HERE = Path(__file__).resolve().parent

# Groups of files, by how their path starts; the first that fits counts.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "recurrent nets": ("operator_test/rnn", "operator_test/recurrent", "operator_test/gru", "models/seq2seq", "rnn"),
    "operators": ("operator_test/", "hypothesis_test", "lengths_reducer", "fused_8bit", "sparse_to_dense_mask"),
    "data parallelism": ("data_parallel", "parallelize_bmuf", "muji", "parallel_workers", "data_workers", "allcompare"),
    "memory sharing": ("memonger", "models/"),
    "optimizers": ("optimizer", "regularizer", "modeling/"),
    "tasks, readers, files": (
        "checkpoint", "predictor", "db_", "dataio", "session", "schema", "task", "pipeline", "net_builder", "record",
        "lazy_dyndep",
    ),
    "layer models": ("layers_test", "layer_", "functional", "normalizer"),
    "graphs and workspaces": ("",),
}  # fmt: skip

# Why a test is not expected to pass.
KINDS: Mapping[str, str] = {
    "out of scope": "needs a part of Caffe2 that netbuilder does not have",
    "deliberate": "netbuilder answers otherwise on purpose",
    "age": "the test itself no longer works with today's Python, NumPy, SciPy or hypothesis",
}


@dataclass(frozen=True, order=True)
class Test:
    """One test of Caffe2: its file below ``caffe2/python``, and ``Class::name`` in it."""

    file: str
    name: str


def group_of(file: str) -> str:
    """Return the group, a key of `GROUPS`, that a test file belongs to."""
    return next(group for group, starts in GROUPS.items() if file.startswith(starts))


def expected() -> list[Test]:
    """Return the tests that Caffe2 itself passes on a CPU."""
    return [Test(*row) for row in _rows("expected.tsv")]


def exceptions() -> dict[Test, tuple[str, str]]:
    """Return the tests that are not expected to pass here, with the kind and the reason."""
    return {Test(file, name): (kind, reason) for file, name, kind, reason in _rows("exceptions.tsv")}


def _rows(name: str) -> Iterable[list[str]]:
    with open(HERE / name, newline="", encoding="utf-8") as file:
        yield from csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)


def page() -> str:
    """Return the page of tests: how many tests pass by group, and every test that does not, with the reason."""
    tests, excused = expected(), exceptions()
    total = Counter(group_of(test.file) for test in tests)
    missing = Counter((group_of(test.file), kind) for test, (kind, _) in excused.items())
    lines = [
        "# Caffe2's own tests",
        "",
        f"The tests of Caffe2's last release run in place on netbuilder's compatibility layer. {len(tests):,} of them "
        "pass in Caffe2 itself on a CPU; this page, made by `make caffe2-tests-page`, says which of those are "
        "expected to pass here. `make caffe2-tests` downloads them, runs them all and fails "
        "if one that should pass does not. It runs them with NumPy 2.2 and SciPy 1.13, in an environment of its own: "
        "the tests use what later releases no longer do, such as `float` "
        "of an array of one element.",
        "",
        "| group | tests | pass | " + " | ".join(KINDS) + " |",
        "|---|---:|---:|" + "---:|" * len(KINDS),
    ]
    for group in sorted(total):
        lines.append(_row(group, total[group], [missing[group, kind] for kind in KINDS]))
    kinds = Counter(kind for kind, _ in excused.values())
    lines.append(_row("all", len(tests), [kinds[kind] for kind in KINDS]))
    scope = len(tests) - kinds["out of scope"]
    lines += [
        "",
        f"Of the {scope:,} tests in scope {(len(tests) - len(excused)) / scope:.1%} are expected to pass.",
        "",
    ]
    for kind, meaning in KINDS.items():
        lines += [f"## {kind.capitalize()}: {meaning}", "", "| file | test | reason |", "|---|---|---|"]
        of_kind = {test: reason for test, (which, reason) in sorted(excused.items()) if which == kind}
        lines += _exception_rows(of_kind)
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _row(group: str, tests: int, missing: list[int]) -> str:
    return f"| {group} | {tests} | {tests - sum(missing)} | " + " | ".join(str(n) for n in missing) + " |"


def _exception_rows(reasons: Mapping[Test, str]) -> list[str]:
    """Return a row for each file and reason: many tests of a file have one reason."""
    merged: dict[tuple[str, str], list[str]] = {}
    for test, reason in reasons.items():
        merged.setdefault((test.file, reason), []).append(test.name.rpartition("::")[2])
    return [f"| `{file}` | {_names(names)} | {reason} |" for (file, reason), names in merged.items()]


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) if len(names) <= 8 else f"{len(names)} tests"
