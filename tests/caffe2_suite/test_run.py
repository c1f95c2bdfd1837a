"""Test of what the runner of Caffe2's own tests reports, without those tests."""

import os
import subprocess
import sys

import pytest

from caffe2_suite import run

A, B, C = (run.Test("core_test.py", name) for name in ("T::a", "T::b", "T::c"))


def test_differences_from_the_table_are_counted_and_named(monkeypatch, capsys):
    monkeypatch.setattr(run, "exceptions", lambda: {B: ("deliberate", "refused when the net is built")})
    assert run.compare([A, B], {A: "", B: "NetError: no"}) == 0
    assert run.compare([A, B, C], {A: "ValueError: 3", B: "", C: ""}) == 2
    said = capsys.readouterr().out
    assert "FAILS   core_test.py T::a: ValueError: 3" in said
    assert "PASSES  core_test.py T::b: remove its line" in said
    assert "1 of     2" in said and "2 of     3" in said


def test_a_report_is_read_with_what_each_test_said(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="python.core_test.T" name="a"/>'
        '<testcase classname="T" name="b[1]"><failure message="NetError: no&#10;more"/></testcase>'
        '<testcase classname="T" name="c"><skipped message="no GPU"/></testcase></testsuite></testsuites>'
    )
    assert dict(run._read_report(str(report))) == {"T::a": "", "T::b": "NetError: no", "T::c": "no GPU"}


@pytest.mark.slow
def test_tests_have_no_deadline(tmp_path):
    (tmp_path / "slow_test.py").write_text(
        "import time\n\nimport hypothesis\nimport hypothesis.strategies as st\n\n\n"
        "@hypothesis.given(st.just(1))\n@hypothesis.settings(deadline=10)\n"
        "def test_slow(one):\n    time.sleep(0.1)\n"
    )
    path = os.pathsep.join([str(run.HERE.parent), *filter(None, sys.path)])
    given = {"PYTHONPATH": path, "CAFFE2_TESTS": str(tmp_path), "CAFFE2_HYPOTHESIS_PROFILE": "for this test"}
    command = [sys.executable, "-m", "netbuilder.caffe2", "-m", "pytest", "-q", "-p", "caffe2_suite.plugin"]
    command += ["-p", "no:cacheprovider", "--noconftest", "--rootdir", str(tmp_path), str(tmp_path / "slow_test.py")]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | given, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_a_file_that_ends_without_a_report_says_how(tmp_path):
    (tmp_path / "broken_test.py").write_text("import os\n\nos._exit(3)\n")
    said = run.run_file("broken_test.py", tmp_path, limit=60)
    assert "and no report" in said["(file)"]


def test_a_file_that_cannot_be_collected_says_why_for_each_of_its_tests(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "run_file", lambda file, folder, limit: {"::core_test": "ImportError: no module X"})
    assert run.run_files([A, B], tmp_path, limit=60, jobs=1) == dict.fromkeys([A, B], "ImportError: no module X")


def test_an_unknown_file_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run.py", "--only", "nothing_like_it"])
    monkeypatch.setattr(run, "fetch_tests", lambda folder: folder)
    with pytest.raises(SystemExit, match="2"):
        run.main()
    assert "no test file matches 'nothing_like_it'" in capsys.readouterr().err
