"""netbuilder-simulate: a measured step, steps in files, published figures, what it refuses."""

import json
import os
import subprocess
import sys

import pytest

from netbuilder.distributed import HalfPrecision
from netbuilder.distributed.launch.installed_mpi import installed_mpi
from netbuilder.distributed.worlds.session import HEADER_BYTES
from netbuilder.parallel.simulation.allreduce import Cluster
from netbuilder.parallel.simulation.links import Link
from netbuilder.parallel.simulation.simulate import Exchange, simulate
from netbuilder.parallel.simulation.step_times import StepTimes, TimedWork
from netbuilder.runtime.profile import profiling
from netbuilder.runtime.profile.roofline import Limits
from netbuilder.tools import simulate as tool
from netbuilder.tools.profiling.zoo import ZooOptions
from netbuilder.tools.simulating.step import measure_step

STEP = StepTimes(
    (
        TimedWork("forward", 0.02),
        *(TimedWork(f"backward {i}", 0.01, ready=((f"g{i}", 5_000_000),)) for i in range(4)),
        TimedWork("update", 0.01, needs=frozenset(f"g{i}" for i in range(4))),
    ),
    samples=16,
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(
        profiling, "measure_limits", lambda threads, bfloat16=False: Limits(1e12, "a guess", 1e11, threads)
    )


@pytest.fixture
def stored(tmp_path):
    path = tmp_path / "step.json"
    path.write_text(json.dumps(STEP.to_dict()))
    return str(path)


def run(*arguments):
    return tool.main([str(each) for each in arguments])


def test_a_net_is_measured_and_stored(tmp_path, capsys):
    path, found = tmp_path / "step.json", tmp_path / "found.json"
    assert run("resnet8-cifar", "--batch", 4, "--runs", 2, "--save", path, "--devices", 1, 2, "--json", found) == 0
    said = capsys.readouterr().out
    assert "resnet8-cifar, batch 4 a device" in said and "efficiency" in said and f"written: {path}" in said
    times = StepTimes.from_dict(json.loads(path.read_text()))
    record = json.loads(found.read_text())
    assert record["gradient_bytes"] == times.gradient_bytes
    one, two = record["predictions"]
    assert one["step"] == pytest.approx(times.seconds) and one["exchange"] == 0
    assert two["size"] == 2 and two["exchange"] > 0 and two["buckets"][0]["ended"] <= two["step"]


def test_the_gradients_of_a_net_become_ready_in_the_order_of_the_backward_pass():
    times = measure_step("lenet", ZooOptions(batch=4, classes=10), threads=1, runs=1, warmup=1)
    sizes = dict(times.gradients)
    # Two convolutions and two FC layers, each with a bias; 28 x 28 images.
    assert list(sizes.values()) == [4 * n for n in (10 * 500, 10, 500 * 800, 500, 50 * 20 * 25, 50, 20 * 25, 20)]
    updates = [work for work in times.work if work.needs]
    assert frozenset().union(*(work.needs for work in updates)) == sizes.keys()
    last = max(i for i, work in enumerate(times.work) if work.ready)
    assert all(times.work.index(work) > last for work in updates)
    assert times.samples == 4 and times.copy_bandwidth == 1e11


def test_options_reach_the_simulation(stored, tmp_path, capsys):
    found = tmp_path / "found.json"
    options = [
        "--devices", 2, "--hosts", 1, "--link", "30us:10Gbit/s", "--local-link", "2us:5GB/s", "--algorithm", "tree",
        "--reduce-bandwidth", "4GB/s", "--cores", 3, "--threads", 1, "--memory-bandwidth", "90GB/s", "--bucket", "10MB",
        "--no-overlap", "--strategy", "half:bfloat16", "--jitter", 0.02, "--host-speeds", 1,
    ]  # fmt: skip
    assert run(stored, *options, "--json", found) == 0
    said = capsys.readouterr().out
    assert "no overlap; tree, 2 us, 5 GB/s inside a host, 30 us, 1.25 GB/s between hosts" in said
    exchange = Exchange(
        10_000_000,
        overlap=False,
        strategy=HalfPrecision("bfloat16"),
        jitter=0.02,
        header_bytes=HEADER_BYTES,
        barriers=1,
    )
    (record,) = json.loads(found.read_text())["predictions"]
    cluster = Cluster(2, 1, Link(2e-6, 5e9), Link(30e-6, 1.25e9), "tree", 4e9, 3, 1, 90e9, (1.0,))
    assert record == json.loads(json.dumps(simulate(STEP, cluster, exchange).to_dict()))


def test_plans(stored, capsys):
    options = ["--search", "--failures", "720h", "--epoch-samples", 1_000_000, "--price", 3]
    assert run(stored, "--devices", 2, "--hosts", 1, 12, *options) == 0
    said = capsys.readouterr().out
    one, many = [line for line in said.splitlines() if " on each of " in line]
    assert "2 devices on each of 12 hosts: shortest step " in many and " ms with " in many
    assert "a checkpoint every 84.9 min, 0.20% of the time lost, an epoch in " in one and ", for " in one


def test_hosts_of_different_speed(stored, capsys):
    assert run(stored, "--devices", 1, "--hosts", 3, "--host-speeds", 1, 1, 0.5) == 0
    assert "ms a step with shares by speed" in capsys.readouterr().out


def test_a_total_batch_is_measured_share_by_share(capsys):
    assert run("lenet", "--total-batch", 8, "--devices", 1, 2, "--classes", 10, "--runs", 1) == 0
    said = capsys.readouterr().out
    assert "with 8 samples, " in said and "MiB with 4 samples" in said


def test_a_run_is_compared_with_by_its_log(stored, tmp_path, capsys):
    log = tmp_path / "metrics.jsonl"
    epoch = {"kind": "epoch", "devices": 2, "batch": 32, "seconds": 5.0, "input_seconds": 1.0, "steps": 40}
    log.write_text("\n".join(["{}", json.dumps({**epoch, "exchange_share": 0.2}), '{"kind": "epo']))
    assert run(stored, "--devices", 2, "--log", log) == 0
    said = capsys.readouterr().out
    assert "batch 16 a device, 80.00 ms on one" in said  # four fifths of 4 s / 40
    assert "the run: 2 devices, 32 samples, 100.00 ms a step, of which exchange 20%; predicted 8" in said
    log.write_text("{}")
    assert run(stored, "--log", log) == 1
    assert "has no epoch; give a file that netbuilder-train --metrics has written" in capsys.readouterr().err


def test_another_device(stored, capsys):
    assert run(stored, "--devices", 1, "--step-time", "35ms", "--backward-time", "30ms") == 0
    said = capsys.readouterr().out
    assert "step, batch 16 a device, 35.00 ms on one; 20.0 MB of gradients, buckets of 12 MiB" in said


def test_published_figures(stored, tmp_path, capsys):
    found = tmp_path / "found.json"
    assert run(stored, "--published", "goyal2017", "--json", found) == 0
    said = capsys.readouterr().out
    assert "arXiv:1706.02677" in said and "    256           290       89.7%" in said
    record = json.loads(found.read_text())
    assert [(each["devices"], each["hosts"]) for each in record["predictions"]] == [(8, 1), (8, 32)]
    assert record["seconds"] == pytest.approx(0.26)


@pytest.mark.slow
def test_a_figure(stored, tmp_path):
    pytest.importorskip("matplotlib")
    assert run(stored, "--hosts", 1, 2, "--plot", tmp_path / "growth.png") == 0
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "options, said",
    [
        ([], "give the name of a net of the zoo, or a file that --save wrote"),
        (["lenet", "--devices", "0"], "argument --devices: must be a positive whole number, got '0'"),
        (["lenet", "--link", "3us"], "argument --link: a link must be LATENCY:BANDWIDTH, such as 20us:50Gbit/s"),
        (["lenet", "--bucket", "0.5"], "argument --bucket: must be a number of bytes, such as 25MiB, got '0.5'"),
        (["lenet", "--jitter", "2"], "argument --jitter: must be a fraction from 0 to 1, such as 0.02, got '2'"),
        (["lenet", "--algorithm", "rign"], "did you mean 'ring'?"),
        (["lenet", "--reduce-bandwidth", "5"], "argument --reduce-bandwidth: a bandwidth must be a number of bit/s"),
        (["lenet", "--step-time", "5"], "argument --step-time: a time must be a number of s, ms, us or ns"),
        (["lenet", "--failures", "5d"], "argument --failures: a time must be a number of s, ms, us or ns"),
        (["lenet", "--price", "-1"], "argument --price: must be a number of more than 0, got '-1'"),
        (["step.json", "--total-batch", "8"], "--total-batch needs the name of a net"),
        (["lenet", "--total-batch", "8", "--devices", "3"], "8 samples cannot be shared evenly by 3 devices"),
        (["lenet", "--measure"], "--measure measures the link between processes and nothing else"),
        (["--published", "goyal2017", "--hosts", "2"], "--hosts is part of what --published says; leave it out"),
    ],
)
def test_options_that_are_refused(options, said, capsys):
    with pytest.raises(SystemExit) as error:
        run(*options)
    assert error.value.code == 2 and said in capsys.readouterr().err


def test_a_link_in_a_missing_file(capsys):
    assert run("lenet", "--local-link", "none.json") == 1
    assert "netbuilder-simulate: 'none.json': no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options, said",
    [
        (
            ["resnet8-cifra"],
            "'resnet8-cifra' is not a file, a folder or a net of the zoo; did you mean 'resnet8-cifar'",
        ),
        (["no.json"], "'no.json': no such file"),
        (["lenet", "--save", "nowhere/step.json"], "--save: 'nowhere/step.json': the folder "),
        (["lenet", "--plot", "growth.docx"], "--plot"),  # it must end in .png, or matplotlib is missing
    ],
)
def test_what_is_refused_before_anything_is_measured(options, said, capsys):
    assert run(*options) == 1
    assert f"netbuilder-simulate: {said}" in capsys.readouterr().err


def test_files_with_something_else(tmp_path, capsys):
    for text, said in (
        ("{", "step.json', which should have the times of a step: line 1, column 2: Expecting property name"),
        ("[" * 20_000, "the times of a step: line 1, column 65: lists and tables are nested more than 64 deep"),
        ("{}", "a record needs 'work'"),
    ):
        path = tmp_path / "step.json"
        path.write_text(text)
        assert run(path) == 1
        assert said in capsys.readouterr().err


def test_a_link_in_a_file(stored, tmp_path, capsys):
    path = tmp_path / "link.json"
    path.write_text(json.dumps(Link(1e-6, 1e9, ((1e6, 2e9), (1e8, 1e9))).to_dict()))
    assert run(stored, "--local-link", path, "--devices", 2) == 0
    assert "1 us, 1 to 2 GB/s by size inside a host" in capsys.readouterr().out


def test_a_link_is_measured_by_two_processes(tmp_path):
    pytest.importorskip("mpi4py")
    path = tmp_path / "link.json"
    program = (
        "import sys; from netbuilder.tools import simulate; "
        "simulate.sweep_allreduce.__defaults__ = ((1024, 1 << 20),); sys.exit(simulate.main(sys.argv[1:]))"
    )
    mpi = installed_mpi()
    command = [*mpi.command(2), sys.executable, "-c", program, "--measure", "--json", str(path)]
    env = {**os.environ, **mpi.environment()}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("allreduce over 2 processes: ") == 1  # rank 0 alone prints
    link = Link.from_dict(json.loads(path.read_text()))
    assert [size for size, _ in link.curve] == [1 << 20] and 0 < link.latency < 1


def test_one_process_has_no_link_to_measure(capsys):
    assert run("--measure") == 1
    assert "a link is measured between two processes or more; run it by mpiexec -n 2" in capsys.readouterr().err
