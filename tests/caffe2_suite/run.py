"""Runs Caffe2's own tests in place on the compatibility layer and compares their outcomes with the expected ones.

    cd tests
    python -m caffe2_suite.run                  all files: some ten minutes on two cores
    python -m caffe2_suite.run --quick          a part, as continuous integration does
    python -m caffe2_suite.run --only memonger  files whose path has this in it (a regular expression)
    python -m caffe2_suite.run --page           only write build/docs/caffe2_tests.md

The tests are downloaded once to ``--folder``. It ends with 0 if each test passes, or fails as exceptions.tsv says.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from caffe2_suite.fetch import fetch_tests
from caffe2_suite.outcomes import HERE, Test, exceptions, expected, group_of, page

ROOT = HERE.parent.parent
PAGE = ROOT / "build" / "docs" / "caffe2_tests.md"

# A part that touches every group and takes a minute or two.
QUICK = (
    r"(core|core_gradients|workspace|schema|net_builder|python_op|brew|control|net_printer|task|regularizer)_test|"
    r"modeling/|operator_test/(shape_inference|hsm|recurrent_network|load_save|utility_ops)_test|"
    r"data_parallel_model_test|optimizer_test"
)


def run_file(file: str, folder: Path, limit: float) -> dict[str, str]:
    """Run one test file in a process of its own.

    Returns:
        for each test (``Class::name``) an empty text if it passed, or the first line of why it did not. One entry
        ``(file)`` if the file could not be run at all.
    """
    with tempfile.TemporaryDirectory() as scratch:
        report = os.path.join(scratch, "report.xml")
        env = dict(
            os.environ,
            OMP_NUM_THREADS="1",
            PYTHONDONTWRITEBYTECODE="",
            PYTHONPYCACHEPREFIX=str(folder / "compiled"),
            PYTHONPATH=os.pathsep.join([str(HERE.parent), str(ROOT)]),
            HYPOTHESIS_STORAGE_DIRECTORY=scratch,
            CAFFE2_HYPOTHESIS_PROFILE="no deadline",
            CAFFE2_TESTS=str(folder),
        )
        command = [
            sys.executable,
            "-m",
            "netbuilder.caffe2",
            "-m",
            "pytest",
            "-q",
            "-p",
            "caffe2_suite.plugin",
            "-W",
            "ignore",
        ]
        command += ["--import-mode=importlib", "-p", "no:cacheprovider", "--noconftest", "--rootdir", str(folder)]
        command += ["--timeout", str(limit / 3), "--hypothesis-seed=0", f"--junitxml={report}", str(folder / file)]
        try:
            done = subprocess.run(
                command, cwd=scratch, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit
            )
            printed = (done.stdout + done.stderr).decode(errors="replace")
            said = f"ended with status {done.returncode} and no report: {' '.join(printed.split())[-300:]}"
        except subprocess.TimeoutExpired:
            said = f"not done after {limit:g} s"
        try:
            return dict(_read_report(report))
        except (OSError, ElementTree.ParseError):
            return {"(file)": said}


def _read_report(path: str) -> Iterable[tuple[str, str]]:
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{(case.get('classname') or '').rpartition('.')[2]}::{(case.get('name') or '').partition('[')[0]}"
        said = [child.get("message") or child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        yield name, said[0].partition("\n")[0][:200] if said else ""


def main() -> int:
    """Run the files that the options select; print unexpected outcomes, and counts by group."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only a part of the files")
    parser.add_argument("--only", default="", help="regular expression on files, as operator_test/hsm")
    parser.add_argument("--folder", type=Path, default=ROOT / ".caffe2-tests", help="where the tests are kept")
    parser.add_argument("--limit", type=float, default=900, help="seconds for one file, a third of it for one test")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="files at the same time")
    parser.add_argument("--page", action="store_true", help="write build/docs/caffe2_tests.md and run nothing")
    options = parser.parse_args()
    if options.page:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    folder = fetch_tests(options.folder)
    pattern = re.compile(QUICK if options.quick else options.only)
    tests = [test for test in expected() if pattern.search(test.file)]
    if not tests:
        parser.error(f"no test file matches {options.only!r}")
    return 1 if compare(tests, run_files(tests, folder, options.limit, options.jobs)) else 0


def run_files(tests: Iterable[Test], folder: Path, limit: float, jobs: int) -> dict[Test, str]:
    """Run the files of ``tests``, ``jobs`` at a time, and return what each test said (see `run_file`)."""
    files = sorted({test.file for test in tests})
    with ThreadPoolExecutor(jobs) as pool:
        reports = dict(zip(files, pool.map(lambda file: run_file(file, folder, limit), files)))
    return {test: reports[test.file].get(test.name, _why_missing(reports[test.file])) for test in tests}


def _why_missing(report: dict[str, str]) -> str:
    """Return why a test is not in the report of its file: the file could not be run or collected."""
    return next((why for name, why in report.items() if name == "(file)" or name.startswith("::")), "it was not found")


def compare(tests: Iterable[Test], said: dict[Test, str]) -> int:
    """Print unexpected outcomes and counts by group; return the number of unexpected ones."""
    excused = exceptions()
    total, passed, wrong = Counter[str](), Counter[str](), 0
    for test in tests:
        total[group_of(test.file)] += 1
        passed[group_of(test.file)] += not said[test]
        if said[test] and test not in excused:
            print(f"FAILS   {test.file} {test.name}: {said[test]}")
            wrong += 1
        elif not said[test] and test in excused:
            print(f"PASSES  {test.file} {test.name}: remove its line from exceptions.tsv ({excused[test][1]})")
            wrong += 1
    for group in sorted(total):
        print(f"{group:24}{passed[group]:5d} of {total[group]:5d}")
    print(f"{passed.total()} passed, {total.total() - passed.total()} not, {wrong} not as expected")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
