"""The benchmark of GPUs where workers fail, hang or come late: time limits, order, page; no GPU is needed."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from house import ROOT
from netbuilder.engines import gpu_info, nccl
from netbuilder.engines.choices import Choices
from netbuilder.engines.cudnn import library, plans
from netbuilder.engines.gpu_packages import cuda_major
from netbuilder.proto import DeviceError
from netbuilder.runtime.profile import roofline
from netbuilder.tools import benchmark
from netbuilder.tools.bench import gpu as gpu_bench
from netbuilder.tools.bench import processes, works
from netbuilder.tools.bench.gpu import GpuRun, gpu_lines, gpu_page, gpu_rows, gpu_table
from netbuilder.tools.bench.pairs import TimeLimits, Worker

BENCH = Path(benchmark.__file__).parent / "bench"
LONG = TimeLimits(60.0, 60.0)
KINDS = [
    {"kind": "all", "calls": 0, "seconds": 0.004, "limit": 0.001},
    {"kind": "FC", "calls": 3, "seconds": 0.002, "limit": 0.001},
]


# Workers: processes that pretend to train.


def worker(tmp_path, body, limits=LONG):
    """Start a process that runs ``body``, which may use what is in worker.py."""
    path = tmp_path / "worker_of_test.py"
    path.write_text(
        f"import sys; sys.path.insert(0, {str(BENCH)!r})\nimport os, subprocess, time\n"
        f"from worker import *\nshow_stacks()\nprint('begins', file=sys.stderr)\n{body}\n"
    )
    return Worker("pretended", [sys.executable, str(path)], dict(os.environ), limits=limits)


def serving(step="pass", others="{}"):
    return f"""
def step():
    {step}
def hang(steps):
    time.sleep(600)
def fail(steps):
    raise ValueError("no such shares")
serve_gpu(step, lambda: None, warmup=2, peak=lambda: 5, loss=lambda: 0.5, info={{"version": "7"}}, others={others})
"""


def test_a_worker_that_never_gets_ready_is_killed(tmp_path):
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="worker 'pretended' was not ready after [123] s and was killed") as raised:
        worker(tmp_path, serving("time.sleep(600)"), TimeLimits(1.5, 60.0))
    assert time.monotonic() - began < 20
    assert "begins" in str(raised.value)
    assert "in step" in str(raised.value)  # the stack


def test_an_answer_has_a_time_limit(tmp_path):
    with worker(tmp_path, serving(others="{'hang': hang}"), TimeLimits(60.0, 0.5)) as one:
        assert one.run(3)[0] >= 0 and (one.loss, one.peak) == (0.5, 5)
        with pytest.raises(RuntimeError, match='not done with {"steps": 1, "way": "hang"} after .* s and was killed'):
            one.ask(steps=1, way="hang")


def test_the_end_of_everything_ends_a_worker(tmp_path):
    with worker(tmp_path, serving(others="{'hang': hang}")) as one:
        one._limits = TimeLimits(60.0, 60.0, time.monotonic() + 0.3)
        with pytest.raises(RuntimeError, match="was killed"):
            one.ask(steps=1, way="hang")


@pytest.mark.skipif(os.name != "posix", reason="groups of processes are those of POSIX")
def test_what_a_worker_has_started_ends_with_it(tmp_path):
    """A process that would go on, and holds its output."""
    child = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    body = f"child = {child}\nprint(child.pid, file=sys.stderr, flush=True)\ntime.sleep(600)"
    with pytest.raises(RuntimeError) as raised:
        worker(tmp_path, body, TimeLimits(2.0, 60.0))
    number = int(str(raised.value).partition("begins\n")[2].split()[0])
    with suppress(ProcessLookupError, FileNotFoundError):
        for _ in range(100):  # a moment later, or only its entry is left
            os.kill(number, 0)
            if Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                break
            time.sleep(0.05)
        else:
            os.kill(number, signal.SIGKILL)
            pytest.fail("the process of the worker goes on")


def test_much_output_does_not_stop_a_worker(tmp_path):
    noise = "print('x' * (1 << 20), file=sys.stderr); print('{not an answer')"
    with worker(tmp_path, "print('early noise'); print(3)\n" + serving(noise)) as one:
        assert one.info["version"] == "7" and one.info["warmup"] > 0
        assert one.run(3)


def test_a_failed_command_does_not_end_the_worker(tmp_path):
    with worker(tmp_path, serving(others="{'fail': fail}")) as one:
        with pytest.raises(RuntimeError, match=r"(?s)failed at .*Traceback.*no such shares"):
            one.ask(steps=1, way="fail")
        assert one.run(2)


def test_a_worker_that_ends_between_commands_says_why(tmp_path):
    with worker(tmp_path, "print('{\"ready\": {}}', flush=True); raise SystemExit('gone')") as one:
        one._process.wait(20)
        with pytest.raises(RuntimeError, match="(?s)worker 'pretended' ended with code 1: .*gone"):
            one.ask(steps=1)


def test_a_command_that_is_not_there(tmp_path):
    with pytest.raises(OSError):
        Worker("none", [str(tmp_path / "none")], {}, limits=LONG)


# The order, and what fails.


class Fake:
    """Our worker, without a process."""

    seconds, loss, peak = 0.004, 1.0, 3 << 20

    def __init__(self, work, warmup):
        self.work = work
        self.info = {"version": "0", "warmup": 1.0}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def run(self, steps):
        return [self.seconds]

    def ask(self, *, steps, way):
        return {"seconds": [0.005]} if way == "fed" else {"kinds": KINDS}


class Torch(Fake):
    """A peer."""

    seconds, peak = 0.008, 6 << 20

    def __init__(self, work, warmup):
        if work.mode == "compile":
            raise RuntimeError("worker 'torch' ended with code 1: Traceback\nout of | memory")
        super().__init__(work, warmup)
        self.info = {"version": "2.13.0", "mode": work.mode, "libraries": "CUDA 13.0, cuDNN 91400"}


@pytest.fixture(autouse=True)
def two_gpus_of_nobody(monkeypatch):
    monkeypatch.setattr(gpu_bench, "gpu_count", lambda: 2)
    monkeypatch.setattr(
        gpu_bench, "describe_gpus", lambda: ["GPU 0: pretended, 80 GiB", "driver 1, CUDA runtime 13000"]
    )
    monkeypatch.setattr(library, "available", lambda: True)
    monkeypatch.setattr(benchmark, "busy_share", lambda: 0.0)


def test_our_rows_come_first_then_the_peers_of_the_first_row():
    started = []

    def noting(kind):
        def start(work, warmup):
            name = f"{work.net} {work.dtype if work.dtype == 'bfloat16' else 'TF32'}"
            started.append((kind.__name__, name, work.mode, work.exhaustive, work.devices))
            return kind(work, warmup)

        return start

    lines = list(gpu_lines(GpuRun(noting(Fake), noting(Torch), ("eager", "graphs"), tiny=True, turns=1)))
    assert all(line.good for line in lines)
    first, second, lstm, mlp = "resnet18 bfloat16", "resnet18 TF32", "lstm TF32", "mlp TF32"
    assert started == [
        *(("Fake", name, "eager", False, 1) for name in (first, second, lstm, mlp)),
        *(("Torch", first, mode, False, 1) for mode in ("eager", "graphs")),
        ("Fake", first, "eager", False, 2),
        *(("Torch", name, mode, False, 1) for name in (second, lstm, mlp) for mode in ("eager", "graphs")),
        ("Fake", first, "eager", True, 1),  # the most time for the least
    ]
    kinds = [line.record["kind"] for line in lines]
    assert kinds[:4] == ["gpu machine", "gpu", "gpu shares", "gpu input"] and kinds.count("gpu shares") == 4


def test_a_failure_is_a_line_and_the_rest_goes_on():
    class Broken(Fake):
        def __init__(self, work, warmup):
            super().__init__(work, warmup)
            if work.net == "lstm" or work.devices == 2:
                raise RuntimeError("worker 'netbuilder' ended with code 1: first\nsecond\nout of memory")

        def ask(self, *, steps, way):
            if way == "shares":
                raise KeyError("kinds")
            return super().ask(steps=steps, way=way)

    lines = list(gpu_lines(GpuRun(Broken, Torch, tiny=True, turns=1)))
    bad = [line for line in lines if not line.good]
    assert [line.record["kind"] for line in bad] == [
        *["gpu failed"] * 2,  # shares of the residual nets
        "gpu failed",  # the LSTM
        "gpu failed",  # shares of the MLP
        "gpu peer",
        "gpu failed",  # two GPUs
        *["gpu peer"] * 2,  # of the LSTM there is no peer: with nothing to compare, it need not run
    ]
    lstm = bad[2]
    assert lstm.text.startswith(
        "lstm, TF32, netbuilder: FAILED: worker 'netbuilder' ended with code 1: first ... out of"
    )
    assert "second" in lstm.text
    page = gpu_page([line.record for line in lines], "2026-11-26")
    assert "FAILED: worker 'torch' ended with code 1: Traceback ... out of \\| memory" in page
    assert "lstm, TF32, netbuilder:\n\n    worker 'netbuilder' ended with code 1: first\n    second\n" in page
    assert "2.00" in page


def test_the_page_has_versions_and_all_ratios():
    lines = list(gpu_lines(GpuRun(Fake, Torch, ("eager",), tiny=True, turns=1)))
    page = gpu_page([line.record for line in lines], "2026-11-26")
    assert page.startswith("# netbuilder on GPUs, 2026-11-26\n\n- GPU 0: pretended, 80 GiB\n- driver 1, ")
    assert f"- netbuilder {gpu_bench.netbuilder.__version__} on " in page
    assert "- PyTorch 2.13.0: CUDA 13.0, cuDNN 91400\n" in page and ", Python 3." in page
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")]
    assert ["resnet18, bfloat16", "2", "torch 2.13.0 eager", "8.000", "250", "6", "2.00", "2.00"] in rows
    assert ["resnet18, bfloat16", "2", "netbuilder, plans measured", "4.000", "500", "3", "1.00", "1.00"] in rows
    assert ["resnet18, bfloat16", "4", "netbuilder, 2 GPUs", "4.000", "1,000", "3", "2.00 x one GPU", ""] in rows
    assert page.count("each timed alone:") == 4 and "cudnn.benchmark" in page
    assert gpu_table([]).startswith("| net | batch | side")


def test_when_the_time_is_over_nothing_more_starts():
    lines = list(gpu_lines(GpuRun(Fake, Torch, tiny=True, limit=0.0)))
    assert [line.record["kind"] for line in lines[:5]] == ["gpu machine", *["gpu failed"] * 4]
    assert lines[5].record["side"] == "2 GPUs" and len(lines) == 6
    assert all(line.text.endswith("not run: 0 s are over") for line in lines[1:])
    assert not any(line.good for line in lines[1:5])


def test_a_peer_that_the_end_interrupts_has_not_failed():
    class Slow(Torch):
        def run(self, steps):
            object.__setattr__(run, "limit", 0.0)
            raise RuntimeError("worker 'torch' was not done and was killed")

    run = GpuRun(Fake, Slow, ("eager",), tiny=True, turns=1)
    lines = list(gpu_lines(run))
    peers = [line for line in lines if line.record["kind"] == "gpu peer"]
    assert peers[0].good and "not finished: 0 s are over" in peers[0].text
    assert all("not run" in peer.text for peer in peers[1:])
    assert lines[-1].good and lines[-1].text.endswith("plans measured: not run: 0 s are over")


def test_without_pytorch_our_side_goes_on():
    def missing():
        raise RuntimeError("pip could not install ['torch==2.13.0']: no network")

    lines = list(gpu_lines(GpuRun(Fake, Torch, tiny=True, turns=1, prepare_peer=missing)))
    assert all(line.good for line in lines) and not any(line.record["kind"] == "gpu peer" for line in lines)
    page = gpu_page([line.record for line in lines], "2026-11-26")
    assert "PyTorch is not compared: pip could not install ['torch==2.13.0']: no network" in page
    assert page.count("netbuilder, 2 GPUs") == 1


def test_a_loss_that_is_not_finite_is_doubtful():
    class Diverged(Fake):
        loss = float("nan")

    first = list(gpu_lines(GpuRun(Diverged, Torch, (), tiny=True, turns=1)))[1]
    assert not first.good and first.text.endswith("DOUBTFUL: its loss is not finite")


# The command.


def test_the_page_is_written_after_each_line(monkeypatch, capsys, tmp_path):
    page, seen = tmp_path / "gpu.md", []

    def start(work, warmup, limits):
        seen.append(page.read_text().count("| netbuilder") if page.exists() else -1)
        assert limits.until < time.monotonic() + 50 and work.gpu
        return Fake(work, warmup)

    monkeypatch.setattr(works, "gpu_worker", start)
    options = ["gpu", "--tiny", "--gpu-peers", "", "--limit", "50"]
    assert benchmark.main([*options, "--report", str(page)]) == 0
    assert seen == [0, 1, 2, 3, 4, 5]  # the first page has only the machine
    assert not [name for name in os.listdir(tmp_path) if name != "gpu.md"]
    capsys.readouterr()
    page.unlink()
    assert benchmark.main(options) == 0
    out = capsys.readouterr().out
    assert out.count("\n| resnet18, bfloat16 |") == 3 and not page.exists()


def test_the_time_begins_before_pytorch_is_installed(monkeypatch, capsys):
    given = []

    def installing(*, seconds):
        given.append(seconds)
        raise RuntimeError("no network")

    monkeypatch.setattr(works, "gpu_worker", lambda work, warmup, limits: Fake(work, warmup))
    monkeypatch.setattr(works, "gpu_peer_python", installing)
    assert benchmark.main(["gpu", "--tiny", "--limit", "50"]) == 0
    assert len(given) == 1 and 0 < given[0] < 50
    assert "PyTorch is not compared: no network" in capsys.readouterr().out


def test_pip_has_a_time_limit(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def slow(command, *, timeout=None, **more):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(processes.subprocess, "run", slow)
    monkeypatch.setattr(processes.venv, "create", lambda folder, **more: None)
    with pytest.raises(RuntimeError, match="could not install.*timed out after 7 seconds"):
        processes.gpu_peer_python(seconds=7)


def test_pytorch_that_cannot_use_the_gpu_is_not_started(monkeypatch):
    script = "raise SystemExit('AssertionError: Torch not compiled with CUDA enabled')"
    run = subprocess.run
    monkeypatch.setattr(
        processes.subprocess, "run", lambda command, **more: run([sys.executable, "-c", script], **more)
    )
    monkeypatch.setattr(processes, "peer_python", lambda peer, *, seconds: "its/python")
    with pytest.raises(DeviceError, match="'its/python' cannot use the GPU: .*not compiled with CUDA.*--peer-python"):
        processes.gpu_peer_python()


@pytest.mark.parametrize("mode", ["compile", "graphs"])
def test_compiled_peers_need_a_compiler(monkeypatch, tmp_path, mode):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    work = dataclasses.replace(gpu_rows(tiny=True)[3].work, mode=mode)
    with pytest.raises(DeviceError, match="needs a C compiler for GPUs, but 'gcc' or 'clang' was not found"):
        processes.torch_worker(work, sys.executable, warmup=1)
    with pytest.raises(DeviceError, match=r"needs a C\+\+ compiler"):
        processes.torch_worker(dataclasses.replace(work, gpu=False), sys.executable, warmup=1)


# Libraries.


def test_libraries_are_asked_and_not_packages(monkeypatch):
    """With packages for CUDA 13, of which the extra knows nothing."""
    monkeypatch.setattr(gpu_info.importlib.util, "find_spec", lambda name: object())
    frontend = type("Frontend", (), {"__version__": "1.18.0", "backend_version": staticmethod(lambda: 91401)})
    monkeypatch.setattr(library, "found_library", lambda: (frontend, ""))
    module = type("Nccl", (), {"available": True, "get_version": staticmethod(lambda: 22705)})
    monkeypatch.setattr(nccl, "nccl_module", lambda: module)
    found = {name: gpu_info.or_why(version) for name, version in gpu_info.VERSIONS.items()}
    assert found["cuDNN"] == "9.14.1 with its frontend 1.18.0" and found["NCCL"] == "2.27.5"
    assert not [text for text in gpu_info.missing_for_gpus() if "cuDNN" in text or "NCCL" in text]
    monkeypatch.setattr(library, "found_library", lambda: (None, "the Python package cudnn cannot be imported"))
    monkeypatch.setattr(nccl, "nccl_module", lambda: None)
    found = {name: gpu_info.or_why(version) for name, version in gpu_info.VERSIONS.items()}
    assert found["cuDNN"] == found["NCCL"] == "missing"
    assert f"nvidia-nccl-cu{cuda_major()}" in "".join(gpu_info.missing_for_gpus())


def test_the_first_ten_plans_that_can_be_built_are_measured(monkeypatch):
    built, measured = [], []

    class Graph:
        def get_execution_plan_count(self):
            return 40

        def get_plan_name_at_index(self, index):
            return f"plan {index}"

        def build_plan_at_index(self, index):
            built.append(index)

    def seconds(builder, index):
        measured.append(index)
        return None if index % 2 else 1.0 / (1 + index)  # each is faster than those before it

    monkeypatch.setattr(plans, "measured", seconds)
    monkeypatch.setattr(plans, "machine", lambda: "pretended")
    monkeypatch.setattr(Choices, "of", lambda machine: type("Known", (dict,), {"put": dict.update})())
    plans.build_fastest(type("Builder", (), {"graph": Graph()}), "recipe", None, False)
    assert measured == list(range(19)) and built == [18]


def test_a_library_that_cannot_be_asked():
    def broken():
        raise AttributeError("undefined symbol")

    assert gpu_info.or_why(broken) == "of unknown version (undefined symbol)"


def test_the_limits_are_measured_with_different_values():
    here = type("Here", (), {"xp": __import__("numpy")})
    values = roofline.normal(here, (3000, 2000), "float16")
    assert values.shape == (3000, 2000) and values.dtype == "float16" and 0.9 < values.astype("float32").std() < 1.1


# The processes of the command, on emulated GPUs.

AT_START = """
import emulated_gpu
if emulated_gpu.active():
    emulated_gpu.install()
    from nccl_double import NcclDouble
    from netbuilder.engines import nccl
    from netbuilder.runtime.profile import roofline
    double = NcclDouble()
    nccl.nccl_module = lambda: double
    roofline.GPU_SIDE, roofline.GPU_COPIED, roofline._COPIED, roofline._SECONDS = 8, 1 << 10, 1 << 10, 0.0
"""


@pytest.mark.emulated
def test_the_command_with_real_processes(monkeypatch, capsys, tmp_path):
    """The way of every run: processes of our_gpu, commands and answers, page and records."""
    (tmp_path / "sitecustomize.py").write_text(AT_START)  # run by each Python
    path = os.pathsep.join([str(tmp_path), str(ROOT / "tests"), str(ROOT)])
    for name, value in (("PYTHONPATH", path), ("EMULATED_GPUS", "2")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(gpu_bench, "gpu_rows", lambda **given: [gpu_rows(tiny=True)[3]])
    page, records = tmp_path / "gpu.md", tmp_path / "gpu.json"
    command = ["gpu", "--tiny", "--gpu-peers", "", "--report", str(page), "--json", str(records)]
    assert benchmark.main(command) == 0, capsys.readouterr()
    _, own, shares, fed, two = json.loads(records.read_text())["results"]
    assert own["kind"] == "gpu" and own["ours"]["peak"] > 0 and len(own["ours"]["times"]) == 3
    assert {"all", "FC", "FCGradient"} <= {kind["kind"] for kind in shares["kinds"]}
    assert fed["fed"] > 0 and two["gain"] > 0
    assert page.read_text().count("| netbuilder") == 2
