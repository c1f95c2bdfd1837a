"""The benchmark of GPUs: our side on real or emulated GPUs, and the table with peers that pretend."""

import dataclasses
import re

import numpy as np
import pytest

import emulated_gpu
from netbuilder.engines.arrays import gpu_count
from netbuilder.proto import DeviceError
from netbuilder.runtime.profile import profiling, roofline
from netbuilder.tools import benchmark
from netbuilder.tools.bench import gpu as gpu_bench
from netbuilder.tools.bench import works
from netbuilder.tools.bench.gpu import GpuRun, gpu_lines, gpu_page, gpu_rows, require_gpu
from netbuilder.tools.bench.our_gpu import GpuTraining
from netbuilder.tools.bench.work import Work
from netbuilder.tools.bench.worker import timed_together
from on_gpu import gpus

pytestmark = pytest.mark.filterwarnings("ignore:.*activations on GPUs are stored as float32, not bfloat16")

TINY = gpu_rows(tiny=True)
FIRST = dataclasses.replace(TINY[3], name="mlp, bfloat16", work=dataclasses.replace(TINY[3].work, dtype="bfloat16"))


@pytest.fixture(autouse=True)
def quick_limits(monkeypatch):
    for name, value in (("GPU_SIDE", 8), ("GPU_COPIED", 1 << 10), ("_SECONDS", 0.0)):
        monkeypatch.setattr(roofline, name, value)
    monkeypatch.setattr(profiling, "measure_limits", lambda *given, **more: roofline.Limits(1e9, "", 1e9, 1))


class InProcess:
    """Our worker, without a process of its own."""

    info = {"version": "0"}

    def __init__(self, work, warmup):
        self.work, self.training = work, GpuTraining(work)
        self.loss, self.peak = None, 3 << 20
        timed_together(self.training.step, self.training.finish, warmup)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def run(self, steps):
        self.loss = self.training.loss()
        return [timed_together(self.training.step, self.training.finish, steps)]

    def ask(self, *, steps, way):
        if way == "fed":
            return {"seconds": [self.training.fed_seconds(steps)]}
        return {"kinds": self.training.shares()}


class Pretended:
    """A peer that takes as long as it is told."""

    info, loss, peak = {"version": "2.13.0"}, 1.0, 6 << 20

    def __init__(self, work, warmup):
        if work.mode == "compile":
            raise RuntimeError("worker 'torch' ended with code 1: Traceback\nout of memory")
        self.seconds = 1000.0 if work.mode == "eager" else 2000.0

    __enter__, __exit__ = InProcess.__enter__, InProcess.__exit__

    def run(self, steps):
        return [self.seconds]


def measured(count, **options):
    with gpus(count):
        return list(gpu_lines(GpuRun(InProcess, Pretended, tiny=True, turns=1, **options)))


@pytest.mark.emulated
def test_the_table_and_the_page(monkeypatch):
    monkeypatch.setattr(gpu_bench, "gpu_rows", lambda **given: [FIRST, TINY[3]])
    lines = measured(2)
    machine, first, shares, fed, mlp, mlp_shares, eager, compiled, graphs, two, *_ = lines
    assert machine.text.startswith("GPU 0: emulated GPU, 4 GiB, compute capability 9.0\nGPU 1")
    assert "CuPy 1" in machine.text and "NCCL 2." in machine.text
    assert re.match(r"mlp, bfloat16, batch 4: netbuilder [\d.]+ ms \([\d,]+ samples/s, 3 MiB\)", first.text)
    assert "torch 2.13.0 eager 1000000.000 ms" in eager.text
    assert "torch compile: FAILED: worker 'torch' ended with code 1: Traceback ... out of memory" in compiled.text
    assert not compiled.good and graphs.good
    assert "x as fast, using 0.50 x its memory" in eager.text
    assert eager.record["ratio"] > 1 and eager.record["memory_ratio"] == 2.0
    assert "each batch copied from the host" in fed.text
    assert "FC " in shares.text and "of the limit" in shares.text and "FC " in mlp_shares.text
    assert {"FC", "FCGradient"} <= {kind["kind"] for kind in shares.record["kinds"]}
    assert mlp.text.startswith("mlp, TF32, batch 4")
    assert "2 GPUs with batch 8" in two.text and two.record["gain"] > 0
    page = gpu_page([line.record for line in lines], "2026-11-23")
    assert page.startswith("# netbuilder on GPUs, 2026-11-23\n\n- GPU 0: emulated GPU")
    assert re.search(
        r"\| mlp, bfloat16 +\| 4 +\| torch compile +\|( +\|){3} FAILED: worker 'torch' .*out of memory", page
    )
    assert page.count("| netbuilder ") == 2 and page.count("| netbuilder, 2 GPUs") == 1 and "| FC |" in page


@pytest.mark.emulated
def test_nothing_begins_when_the_time_is_over(monkeypatch):
    monkeypatch.setattr(gpu_bench, "gpu_rows", lambda **given: [TINY[3]])
    _, mlp = measured(1, limit=0.0)
    assert mlp.text == "mlp, TF32, netbuilder: not run: 0 s are over" and not mlp.good


@pytest.mark.emulated
def test_our_failure_is_a_line(monkeypatch):
    monkeypatch.setattr(gpu_bench, "gpu_rows", lambda **given: [TINY[3]])

    def broken(work, warmup):
        raise RuntimeError("worker 'netbuilder' ended with code 1: out of memory")

    with gpus(1):
        _, failed = gpu_lines(GpuRun(broken, Pretended, tiny=True))
    why = "worker 'netbuilder' ended with code 1: out of memory"
    assert not failed.good and failed.text == f"mlp, TF32, netbuilder: FAILED: {why}"


def test_what_is_measured():
    rows = {row.name: row.work for row in gpu_rows()}
    assert list(rows) == ["resnet50, bfloat16", "resnet50, TF32", "lstm, TF32", "mlp, TF32"]
    assert rows["resnet50, bfloat16"].batch == 256 and rows["resnet50, bfloat16"].dtype == "bfloat16"
    assert rows["resnet50, TF32"].tf32 and all(work.gpu for work in rows.values())
    assert gpu_rows(batch=32)[0].work.batch == 32
    text = rows["mlp, TF32"].to_text()
    assert Work.from_text(text) == rows["mlp, TF32"]


def test_without_a_gpu_it_says_what_is_missing(monkeypatch, capsys):
    if gpu_count():
        pytest.skip("there is a GPU")
    with pytest.raises(DeviceError, match="needs an NVIDIA GPU, and none can be used; missing: .*pip install"):
        require_gpu()
    monkeypatch.setattr(benchmark, "busy_share", lambda: 0.0)
    assert benchmark.main(["gpu"]) == 2
    assert "none can be used; missing: " in capsys.readouterr().err


@pytest.mark.emulated
def test_the_command_writes_page_and_records(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(benchmark, "busy_share", lambda: 0.0)
    monkeypatch.setattr(works, "gpu_worker", lambda work, warmup, limits: InProcess(work, warmup))
    monkeypatch.setattr(gpu_bench, "gpu_rows", lambda **given: [TINY[3]])
    page, records = tmp_path / "gpu.md", tmp_path / "gpu.json"
    with gpus(1):
        assert benchmark.main(["gpu", "--tiny", "--gpu-peers", "--report", str(page), "--json", str(records)]) == 0
    assert "mlp, TF32, batch 4: netbuilder" in capsys.readouterr().out
    assert re.search(r"\| mlp, TF32 +\| 4 +\| netbuilder ", page.read_text())
    assert '"gpu shares"' in records.read_text()


MINUTES = pytest.mark.skipif(emulated_gpu.active(), reason="millions of parameters take emulated GPUs minutes")


@pytest.mark.parametrize("row", [pytest.param(TINY[0], marks=MINUTES), *TINY[2:]], ids=lambda row: row.name)
def test_our_side_trains(one_gpu, row):
    training = GpuTraining(row.work)
    losses = []
    for _ in range(3):
        training.step()
        training.finish()
        losses.append(training.loss())
    assert np.isfinite(losses).all() and len({*losses}) == 3  # so small a batch, normalized, need not improve at once
    assert training.fed_seconds(2) > 0


def test_two_gpus_train_as_one(two_gpus):
    found = []
    for devices in (1, 2):
        training = GpuTraining(dataclasses.replace(TINY[3].work, devices=devices))
        for _ in range(3):
            training.step()
            training.finish()
        found.append(training.loss())
    assert found[0] == pytest.approx(found[1], rel=1e-4)
