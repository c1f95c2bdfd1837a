"""Every command over bad values of each of its options and arguments: one line that names what is wrong, no traceback.

The options are those that the parsers have, so that new ones are tested too.
"""

import contextlib
import importlib
import io
import itertools
import os
import re
import shutil
import struct
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from command_lines import FAILING, VALID
from command_parsers import parser_of
from house import ROOT
from netbuilder.data import image_libraries
from netbuilder.proto import DeviceError
from netbuilder.runtime.profile import profiling
from netbuilder.runtime.profile.roofline import Limits
from netbuilder.tools import benchmark, compile_kernels, doctor, launch, preflight, profile, simulate
from netbuilder.tools.bench import works
from netbuilder.tools.bench.build import BuildTime
from netbuilder.tools.reporting import reporting

LONG_RUNS = ("char_lm", "imagenet_trainer", "launch")  # they have many options, or train, or start processes
OTHERS = {("launch", "program"), ("launch", "arguments")}  # Python says what is wrong with these
INSTEAD = {("make_db", "labels"): ["pixels", "made.minidb", "--replace"]}
"""For an option that needs another line: that line."""
FILES = re.compile("FILE|FOLDER|PATH|IMAGE|LATENCY")  # names of values that are files, or may be
NUMBERS = ("0", "-1", "1.5", "nan", "abc", "")
HUGE = ("crop", "device_workers", "pad", "port", "quality", "resize", "scale", "size")  # else it is much to do
LONG = "x" * 300


def damaged(suffix):
    """Return files that no command can read or write, made anew, and names that no file has."""
    for folder in ("bad", "none"):
        shutil.rmtree(folder, ignore_errors=True)
    bad = Path("bad")
    (bad / f"folder{suffix}").mkdir(parents=True)
    (bad / f"empty{suffix}").touch()
    (bad / f"binary{suffix}").write_bytes(bytes(range(256)) * 8)
    (bad / f"text{suffix}").write_text("prose, not data\n" * 3)
    (bad / f"idx{suffix}").write_bytes(struct.pack(">BBBB3I", 0, 0, 8, 3, 40, 8, 8))  # without its data
    os.symlink(f"loop{suffix}", bad / f"loop{suffix}")
    names = ("folder", "empty", "binary", "text", "idx", "loop", "missing")
    return [*(f"bad/{name}{suffix}" for name in names), f"none/at/all{suffix}", f"book.txt/x{suffix}", LONG + suffix]


def is_file(action):
    names = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    return bool(FILES.search(names)) or (not action.option_strings and action.choices is None)


def values_of(action, valid):
    """Yield bad values of an option or argument."""
    if is_file(action):
        suffixes = {"", *re.findall(r"\.(?:pb|npz|json|minidb|onnx|csv|png|npy|toml|yaml|lmdb)\b", str(action.help))}
        suffixes |= {Path(text.partition("=")[2] or text).suffix for text in valid}
        for suffix in sorted(suffixes):
            yield from damaged(suffix)
    elif action.choices is not None:
        yield from ("zzz", "")
    elif action.nargs != 0:
        yield from (*NUMBERS, *(["9" * 30] if action.dest in HUGE else []))


def line_of(action, value, valid, name, parser):
    """Return the command line with a bad value."""
    if not action.option_strings:
        at = [each for each in parser._actions if not each.option_strings].index(action)
        return [*valid[:at], value, *valid[at + 1 :]]
    given = [f"{action.option_strings[-1]}={value}"] if not isinstance(action.nargs, int) else [
        action.option_strings[-1], *[value] * action.nargs
    ]  # fmt: skip
    return [*given, *valid] if name == "launch" else [*valid, *given]


def run(command, line):
    """Return the exit status and standard error; an error that the command does not report is raised."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", UserWarning)
        try:
            status = command.main(line)
        except SystemExit as ended:
            status = ended.code
    return status, err.getvalue()


def problem_of(prog, said, names):
    """Return what is wrong with the message of a failed command, or None."""
    lines = [text for text in said.splitlines() if text.strip()]
    first = next((k for k, text in enumerate(lines) if text.startswith(f"{prog}: ")), None)
    if first is None:
        return f"no line begins with {prog}: {said[-300:]}"
    message, *more = lines[first:]
    if any(not text.startswith("  - ") for text in more):
        return f"more than a line: {said[-300:]}"
    if "Errno" in message or "Traceback" in said:
        return message
    return None if any(name in message for name in names) else f"does not name the value or the option: {message}"


def no_compiler():
    raise DeviceError("no compiler")


def in_parts(names):
    """Yield each command with the number of values of which one is tried: all, but of some only if there is time."""
    for name in sorted(names):
        if name in LONG_RUNS:
            yield pytest.param(name, 4, id=f"{name}, each fourth")
        yield pytest.param(name, 1, id=name, marks=pytest.mark.slow if name in LONG_RUNS else ())


@pytest.mark.one_in(24)
@pytest.mark.skipif(not image_libraries(), reason="needs a library for images")
@pytest.mark.parametrize("name, every", list(in_parts(VALID)))
def test_a_bad_value_is_named_in_one_line(name, every, place, monkeypatch):
    """Of some commands each fourth value, another one for each option: the values are the same for most options."""
    for command in (benchmark, doctor, profile):  # these take seconds
        monkeypatch.setattr(command, "busy_share", lambda seconds=1.0: 0.0)
        monkeypatch.setattr(command, "describe_machine", lambda: "this machine")
    monkeypatch.setattr(profiling, "measure_limits", lambda threads, **others: Limits(1e9, "", 1e9, threads))
    monkeypatch.setattr(compile_kernels, "Nvrtc", no_compiler)
    monkeypatch.setattr(works, "build_time", lambda devices: BuildTime(devices, 1, 1.0))
    command = importlib.import_module(f"netbuilder.tools.{name}")
    valid, parser = VALID[name], parser_of(command)
    status, missing = run(command, valid)
    assert status == (1 if name in FAILING else 0)
    prog, problems, refused = parser.prog, [], 0
    for number, action in enumerate(parser._actions):
        given = INSTEAD.get((name, action.dest), valid)
        values = values_of(action, given) if (name, action.dest) not in OTHERS else ()
        for value in itertools.islice(values, number % every, None, every):
            line = line_of(action, value, given, name, parser)
            try:
                status, said = run(command, line)
            except Exception as error:
                problems.append(f"{line}: {type(error).__name__}: {error}")
                continue
            if status == 0 or said == missing:
                continue
            refused += 1
            option = (action.option_strings or [action.dest])[-1].strip("-")
            wrong = problem_of(prog, said, [option, value or repr(value), "is a folder" if not value else option])
            missing_file = is_file(action) and "no such file" in said
            if status not in ((1,) if missing_file and name != "benchmark" else (1, 2)) or wrong:
                problems.append(f"{line}: {status}: {wrong}")
    assert problems == []
    assert refused > (1 if name == "doctor" else 5)  # which has one option
    assert not list(place.rglob("*.draft-*"))


def test_a_missing_program_is_not_started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    status, said = run(launch, ["-n2", "trian.py", "--epochs=3"])
    assert (status, said) == (
        1, "netbuilder-launch: 'trian.py': no such file; near it is train.py; give a Python file, or -m and a module\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    "line, message",
    [
        (["-n1000000", "program.py"], "processes must be at most"),
        (["--threads=99999999999999999999", "program.py"], "threads must be at most 4096, got 99999999999999999999"),
        (["--gpus=1000000000000", "program.py"], "gpus must be at most 1024, got 1000000000000"),
        (["--port=65536", "program.py"], "port must be from 1 to 65535, got 65536"),
        (["--node-rank=1", "program.py"], "node_rank must lie in [0, 1), got 1"),
        (["--hosts=a,a", "program.py"], "each host may be given once"),
        (["--hosts=a,b", "program.py"], "2 hosts need a secret"),
        (["--pin", "-n100", "program.py"], "at most|cores of their own"),
        (["pipe"], "'pipe' is a pipe, which one process could read at most; give a Python file"),
        (["empty"], "'empty' is a folder without __main__.py; give a Python file"),
        ([""], "'' is no name of a file; give a Python file"),
        (["-m", ""], "-m needs the name of a module, got ''"),
    ],
)
def test_a_job_that_could_not_run_is_not_started(line, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("NETBUILDER_STORE_SECRET", "NETBUILDER_STORE_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(launch, "launch", lambda job: pytest.fail("has been started"))
    (tmp_path / "program.py").touch()
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    status, said = run(launch, line)
    assert status in (1, 2) and any(text in said for text in message.split("|"))
    assert problem_of("netbuilder-launch", said, message.split("|")) is None


@pytest.mark.parametrize(
    "command, line, variables, message",
    [
        (simulate, ["pipe.json"], {}, "'pipe.json' is a pipe, not a file"),
        (simulate, ["list.json"], {}, "'list.json': step times: a record needs 'work'"),
        (simulate, ["lenet", "--image-size=999999999", "--batch=99999999"], {}, "is larger than any memory"),
        (simulate, ["lenet", "--published=resnet"], {}, "--published"),
        (preflight, [], {"NETBUILDER_WORLD_SIZE": "x"}, "NETBUILDER_WORLD_SIZE in the environment must be a whole"),
        (preflight, [], {"NETBUILDER_RANK": "2"}, "NETBUILDER_RANK=2 in the environment"),
        (preflight, ["--store=zzz"], {}, "store 'zzz' must be file:FOLDER"),
        (preflight, ["--store=tcp://x:99999999"], {}, "store 'tcp://x:99999999'"),
        (preflight, ["--timeout=0"], {}, "--timeout"),
    ],
)
def test_wrong_files_and_variables(command, line, variables, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if command is preflight:
        for name, value in {"NETBUILDER_RANK": "0", "NETBUILDER_WORLD_SIZE": "2", **variables}.items():
            monkeypatch.setenv(name, value)
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "list.json").write_text("[1]")
    status, said = run(command, line)
    assert status in (1, 2)
    assert problem_of(parser_of(command).prog, said, [message]) is None


def test_every_command_is_tested():
    commands = {path.stem for path in (ROOT / "tools").glob("*.py") if "\ndef main(" in path.read_text()}
    assert commands == set(VALID), "add a right line of the command to VALID in tests/command_lines.py"
    for name in commands:  # one place turns errors into messages
        assert "@reporting(" in (ROOT / "tools" / f"{name}.py").read_text()


def test_ctrl_c_ends_a_command_without_a_traceback(capsys):
    @reporting("it")
    def main(arguments=None):
        raise KeyboardInterrupt

    assert main() == 130
    assert capsys.readouterr().err == "it: interrupted\n"


def test_a_pipe_whose_reader_has_ended_is_no_error():
    program = """
import sys
from netbuilder.tools.reporting import reporting
@reporting("it")
def main(arguments=None):
    sys.stdin.read()
    print("a line\\n" * 100_000)
    return 0
sys.exit(main())
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 1
