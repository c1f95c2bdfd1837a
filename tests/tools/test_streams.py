"""Every command with standard streams that are closed, full, or read no further, by ``| head`` say."""

import errno
import io
import itertools
import json
import os
import resource
import struct
import subprocess
import sys

import pytest

import command_streams
from command_lines import FAILING, VALID
from command_streams import STREAMS
from netbuilder.data import image_libraries
from netbuilder.exchange import CheckpointFolder, read_checkpoint
from netbuilder.tools.imagenet_trainer import main
from netbuilder.tools.reporting import reporting
from netbuilder.tools.streams import standard_streams
from netbuilder.tools.training.metrics import Metrics

QUICK = ("out full", "both closed", "head")
LONG = ("benchmark", "compile_kernels", "prove")  # these measure, or compile, for many seconds
WORKING = ("char_lm", "imagenet_trainer", "launch", "make_db", "fetch_cifar10")
"""Commands that do more than print, and go on."""

PRINTING = ("check", "compare", "evaluate_predictor", "predict", "profile", "seq2seq", "simulate")
"""Those whose result is what they print: where that cannot be written, they fail."""


@pytest.mark.skipif(not image_libraries(), reason="needs a library for images")
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no device that is always full")
@pytest.mark.parametrize("chosen", ["rotating", *(pytest.param(name, marks=pytest.mark.slow) for name in STREAMS)])
def test_commands(chosen, place, tmp_path):
    """With "rotating" each command has other streams than the one before."""
    names = [name for name in sorted(VALID) if name not in LONG]
    kinds = itertools.cycle(QUICK) if chosen == "rotating" else itertools.repeat(chosen)
    lines = [(kind, name, VALID[name]) for kind, name in zip(kinds, names)]
    path = tmp_path / "lines.json"
    path.write_text(json.dumps(lines))
    done = subprocess.run(
        [sys.executable, command_streams.__file__, str(path)], capture_output=True, text=True, check=True, timeout=300
    )
    results = json.loads(done.stdout)
    problems = [(*line, problem) for line, found in zip(lines, results) if (problem := problem_of(*line[:2], *found))]
    assert problems == []
    assert len(results) == len(names)


def problem_of(streams, name, status, errors):
    """Return what is wrong with the end of a command, or None."""
    fails = streams in ("out full", "both full", "head", "head of both")
    allowed = (0, 1) if fails else (0,)
    if name in FAILING or fails and name in PRINTING:
        allowed = (1,)
    elif name in WORKING:
        allowed = (0,)
    if status not in allowed or "Traceback" in errors or "Exception ignored" in errors:
        return f"status {status}: {errors[-2000:]}"
    if streams == "out full" and name in PRINTING and "no space left on device" not in errors:
        return f"does not say why: {errors}"
    if streams in ("out full", "out closed") and name in ("char_lm", "imagenet_trainer"):
        if errors.count("standard output cannot be written: ") != 1:
            return f"does not say once that its output is lost: {errors}"
    return None


def test_a_closed_descriptor_is_not_that_of_a_file(tmp_path):
    """A file that got number 2 would get what libraries print."""
    program = f"""
import os, sys
from netbuilder.tools.imagenet_trainer import main
from netbuilder.tools.reporting import reporting
@reporting("it")
def main(arguments=None):
    with open({str(tmp_path / "file")!r}, "w") as file:
        os.write(1, b"to standard output")
        os.write(2, b"to standard error")
        print("printed", file=sys.stderr)
        print("printed")
        file.write("only this")
    return 0
sys.exit(main())
"""
    done = subprocess.run(["/bin/sh", "-c", 'exec "$0" -c "$1" >&- 2>&-', sys.executable, program], check=False)
    assert done.returncode == 0
    assert (tmp_path / "file").read_text() == "only this"


class Failing(io.StringIO):
    """A stream that fails for some writes."""

    def __init__(self, *numbers):
        super().__init__()
        self.numbers = list(numbers)

    def write(self, text):
        if self.numbers and (error := self.numbers.pop(0)):
            raise OSError(error, os.strerror(error))
        return super().write(text)


def test_output_that_is_lost_is_said_once_and_later_output_is_written(monkeypatch):
    out, err = Failing(0, 0, errno.ENOSPC, errno.ENOSPC, 0), Failing()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with standard_streams("it", output_optional=True):
        for text in ("one\n", "two\n", "three\n", "four\n"):
            sys.stdout.write(text)
        sys.stdout.write("five\n")
    assert out.getvalue() == "one\ntwo\nfive\n"
    said = "it: standard output cannot be written: no space left on device; the command goes on, and what it prints is "
    assert err.getvalue() == f"{said}lost\n"
    assert (sys.stdout, sys.stderr) == (out, err)


def test_names_that_the_encoding_lacks(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    with standard_streams("it", output_optional=True):
        print("class Kätzchen")
    assert raw.getvalue() == b"class K\\xe4tzchen\n"


@pytest.mark.slow
def test_help_into_a_pipe_whose_reader_has_ended():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "netbuilder.tools.draw", "--help"], stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (done.returncode in (0, 1), done.stderr) == (True, b"")  # argparse itself drops it where it is not buffered


@pytest.mark.parametrize("error, message", [
    (MemoryError(), "not enough memory; the memory of the machine, or the limit of a container, may be too low"),
    (MemoryError("Unable to allocate 3 GiB"), "not enough memory: Unable to allocate 3 GiB; the memory of"),
    (RuntimeError("can't start new thread"), "not enough memory: can't start new thread; the memory of"),
])  # fmt: skip
def test_memory_that_is_used_up(capsys, error, message):
    @reporting("it")
    def main(arguments=None):
        raise error

    assert main() == 1
    assert capsys.readouterr().err.startswith(f"it: {message}")


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
@pytest.mark.parametrize("letter, name", [("v", "RLIMIT_AS"), ("d", "RLIMIT_DATA")])
def test_memory_that_a_limit_leaves_too_little_of(capsys, monkeypatch, letter, name):
    real = resource.getrlimit
    monkeypatch.setattr(
        resource, "getrlimit", lambda kind: (3 << 20, 9 << 20) if kind == getattr(resource, name) else real(kind)
    )
    assert reporting("it")(lambda arguments=None: bytearray(1 << 60))() == 1
    assert capsys.readouterr().err == (
        f"it: not enough memory; ulimit -{letter} (3072 KiB), or the limit of a container, may be too low\n"
    )


def test_other_faults_have_their_traceback():
    @reporting("it")
    def main(arguments=None):
        raise RuntimeError("a fault")

    with pytest.raises(RuntimeError, match="a fault"):
        main()


# Metrics.


def steps(path):
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_metrics_are_complete_after_the_disk_was_full(tmp_path, monkeypatch, capsys):
    real, calls = os.write, []

    def write(number, data):
        calls.append(number)
        if len(calls) in (2, 3):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(number, data[:10])

    with Metrics(str(tmp_path / "lines")) as metrics:
        monkeypatch.setattr(os, "write", write)
        for step in range(1, 7):
            metrics.step(step, {"loss": 1.0})
            metrics.epoch(step, step, {})
            assert metrics.incomplete == (set() if len(calls) > 3 else {"--metrics"})
    said = capsys.readouterr().err
    assert said == "netbuilder-train: --metrics cannot be written: no space left on device; training continues\n"
    assert steps(tmp_path / "lines") == [step for step in range(1, 7) for _ in range(2)]


def test_lines_after_one_that_was_cut_are_read(tmp_path):
    (tmp_path / "lines").write_text('{"kind": "step", "step": 1}\n{"kind": "st')
    with Metrics(str(tmp_path / "lines")) as metrics:
        metrics.step(2, {})
    assert (tmp_path / "lines").read_text().splitlines()[2:] == ['{"kind": "step", "step": 2}']


LIMITED = """
import resource, sys
import tensorboardX.summary, matplotlib.figure, matplotlib.backends.backend_agg
from netbuilder.tools.imagenet_trainer import main
from netbuilder.tools.training.run import Run
real = Run.train_epoch
def train_epoch(run, number):
    if number == 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
    if number == 4:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return real(run, number)
Run.train_epoch = train_epoch
sys.exit(main(sys.argv[1:]))
"""
"""From epoch 2 to 3 no file may become larger than 2,000 bytes: as a full disk, which has place again later."""


@pytest.mark.slow
def test_a_disk_that_is_full_for_some_time(tmp_path):
    epochs, batch = 5, 64
    command = [
        sys.executable, "-c", LIMITED, "--cpu", "--model=mlp", f"--epochs={epochs}", f"--batch={batch}",
        *(f"--{name}={tmp_path / name}" for name in ("checkpoint", "metrics", "tensorboard")),
        f"--plot={tmp_path / 'plot.png'}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "accuracy on 359 held-out images" in done.stdout
    lines = done.stderr.splitlines()
    for name in ("--metrics", "--tensorboard", "--plot"):
        assert sum(line.startswith(f"netbuilder-train: {name} cannot be written: ") for line in lines) == 1, lines
    assert sum("a checkpoint could not be written: " in line for line in lines) == 2
    assert len(lines) == 5
    steps_of_epoch = -(-1438 // batch)
    assert read_checkpoint(CheckpointFolder(tmp_path / "checkpoint").paths()[-1]).step == epochs * steps_of_epoch
    found = [json.loads(line) for line in (tmp_path / "metrics").read_text().splitlines()]
    assert [line["step"] for line in found if line["kind"] == "step"] == list(range(1, epochs * steps_of_epoch + 1))
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert sum(1 for _ in event_records(events.read_bytes())) > 3 * epochs * steps_of_epoch
    assert (tmp_path / "plot.png").read_bytes()[:4] == b"\x89PNG"


def event_records(data):
    """Yield the records of an event file, whose lengths are right."""
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        assert at + 16 + length <= len(data)
        yield data[at + 12 : at + 12 + length]
        at += 16 + length


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no device that is always full")
def test_metrics_that_were_never_written_show_in_the_status(tmp_path, capfd):
    given = ["--cpu", "--model=mlp", "--epochs=1", "--batch=256", f"--checkpoint={tmp_path / 'c'}"]
    assert main([*given, "--metrics=/dev/full"]) == 1
    said = capfd.readouterr()
    assert "accuracy on 359 held-out images" in said.out
    assert said.err == (
        "netbuilder-train: --metrics cannot be written: no space left on device; training continues\n"
        "netbuilder-train: --metrics could not be written; see the message above\n"
    )
    assert len(CheckpointFolder(tmp_path / "c").paths()) == 1
