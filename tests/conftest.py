"""Settings of all tests: GPU marks skip by themselves, hypothesis is repeatable, examples know ``np``."""

import gc
import os
import signal
import sys
import tempfile
from collections import Counter

import hypothesis
import numpy as np
import pytest
from hypothesis.internal.conjecture import providers

import emulated_gpu
from house import ROOT
from netbuilder.engines.arrays import gpu_count
from netbuilder.engines.nccl import nccl_available
from netbuilder.passes.net_pass import NetPass
from pass_check import checked_call
from skips import not_allowed, reasons_of, report_lines

hypothesis.settings.register_profile(
    "netbuilder",
    deadline=None,
    derandomize=True,
    max_examples=int(os.environ.get("EXAMPLES", "4")),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],  # a machine with other work may be
)
hypothesis.settings.load_profile("netbuilder")

# Hypothesis draws constants that it reads from the sources of all loaded modules of the project: that takes each
# process seconds, and examples would depend on which tests it has run before.
if hasattr(providers, "_get_local_constants"):  # it came with version 6.131
    providers._get_local_constants = lambda: providers._local_constants


# Measurements made while tests run are of no use later, and results would depend on them: only tests of
# measured choices let it happen.
os.environ["NETBUILDER_MEASURE"] = "0"
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])  # of processes
os.environ.setdefault("NETBUILDER_CACHE", os.path.join(tempfile.gettempdir(), f"netbuilder-tests-{os.getuid()}"))


def pytest_addoption(parser):
    parser.addoption(
        "--complete",
        action="store_true",
        help="fail if a test is skipped for a reason that a machine with all tools and extras does not give",
    )


def _skipped(config):
    reporter = config.pluginmanager.get_plugin("terminalreporter")  # the processes of pytest-xdist have none
    return reasons_of(reporter.stats.get("skipped", ())) if reporter else Counter()


def pytest_sessionfinish(session):
    if session.config.getoption("complete") and not_allowed(_skipped(session.config)):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    reasons = _skipped(config)
    if not reasons:
        return
    terminalreporter.section("skipped, by reason")
    for line in report_lines(reasons):
        terminalreporter.write_line(line)
    if config.getoption("complete") and (wrong := not_allowed(reasons)):
        text = "\n  ".join(["not allowed with --complete (tests/skips.py has what is):", *wrong])
        terminalreporter.write_line(text, red=True)


def pytest_configure(config):
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background of a shell without job control
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if emulated_gpu.active():
        emulated_gpu.install()
        emulated_gpu.machine.separate_arrays()
        _emulate_nccl()


def _emulate_nccl():
    """Let the double of NCCL exchange values between emulated GPUs."""
    from nccl_double import NcclDouble
    from netbuilder.engines import nccl

    double = NcclDouble()
    nccl.nccl_module = lambda: double


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Disable garbage collection during collection, then exempt the collected objects from it.

    Rewriting assertions makes millions of objects, and the tests are tens of thousands: walking over them again and
    again takes a quarter of the time of collection, and would slow down the tests themselves.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


GPUS = {"one_gpu": ("gpu", 1), "two_gpus": ("multi_gpu", 2), "four_gpus": ("multi_gpu", 4)}
"""Fixtures: the mark of tests that take one, and how many GPUs there must be."""


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items):
    _leave_out(items)
    for item in items:
        if item.get_closest_marker("emulated"):
            item.add_marker("gpu")
            if not emulated_gpu.active():
                item.add_marker(pytest.mark.skip(reason="needs emulated GPUs (make test-emulated)"))
        for fixture in GPUS.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(GPUS[fixture][0])
        for mark, least in (("gpu", 1), ("multi_gpu", 2)):
            if item.get_closest_marker(mark) and gpu_count() < least:
                item.add_marker(pytest.mark.skip(reason=_too_few(least)))


def _leave_out(items):
    """Mark as slow what ``one_in(n)`` leaves out of short runs: of a test's cases all but the first of each n."""
    counted = Counter()
    for item in items:
        if mark := item.get_closest_marker("one_in"):
            test = item.parent.nodeid, item.originalname
            if counted[test] % mark.args[0]:
                item.add_marker("slow")
            counted[test] += 1


def _too_few(least):
    return f"needs CuPy and NVIDIA GPUs, {least} or more; found {gpu_count()}"


def _needing(least):
    @pytest.fixture
    def some_gpus(request):
        if gpu_count() < least:
            pytest.skip(_too_few(least))
        if "nccl" in request.node.name and not nccl_available():
            pytest.skip("needs NCCL")

    return some_gpus


one_gpu, two_gpus, four_gpus = (_needing(least) for _, least in GPUS.values())


_failed = []


def pytest_runtest_logreport(report):
    if report.failed:
        _failed.append(report.nodeid)


def pytest_runtest_logfinish(nodeid):
    """End a process whose GPU can no longer be used, so that another one goes on.

    After an invalid access to memory, every later call of the process is an error. The test counts as crashed, too.
    """
    if nodeid in _failed and "PYTEST_XDIST_WORKER" in os.environ and (why := _why_lost()):
        os.write(2, f"\n{nodeid}: the GPU can no longer be used: {why}; this process ends\n".encode())
        os._exit(3)


def _why_lost():
    """Return the error that each call gives from now on; "" if there is none."""
    if emulated_gpu.active() or not gpu_count():
        return ""
    runtime = sys.modules["cupy"].cuda.runtime
    for _ in range(2):  # the first call may give an error that is only of this test
        try:
            runtime.deviceSynchronize()
            return ""
        except Exception as error:
            why = str(error)
    return why


def pytest_runtest_teardown():
    """End the threads of tests whose ranks are threads."""
    if "thread_ranks" in sys.modules:
        sys.modules["thread_ranks"].end_lanes()


@pytest.fixture(autouse=True)
def _gpus_find_no_fault():
    """A test fails if the emulated GPUs have found a wrong access to memory."""
    count = gpu_count()
    yield
    if emulated_gpu.active():
        gc.collect(0)
        assert gpu_count() == count, "netbuilder sees as many GPUs as before"
        emulated_gpu.machine.finish_all()
        if found := emulated_gpu.machine.faults():
            pytest.fail("\n".join(["the emulated GPUs found:", *found]), pytrace=False)


@pytest.fixture(scope="module", autouse=True)
def _survivors_are_not_walked_again():
    """Exempt what earlier modules left alive from garbage collection, too: tests that collect would walk over it."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _passes_are_checked():
    """Every pass that a test runs has its result checked."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(NetPass, "__call__", checked_call)
        yield


@pytest.fixture
def own_operators():
    """The registry of operators; what the test adds to it is removed when the test ends."""
    from netbuilder.ops.core import registry

    operators, *kernels = registry._operators, registry._plain, registry._prepared
    before = set(operators)
    yield registry
    added = {
        name
        for name in operators.keys() - before
        if not operators[name].__module__.startswith("netbuilder.")  # families are imported on demand
    }
    for name in added:
        del operators[name]
    for table in kernels:
        for key in [key for key in table if key[0] in added]:
            del table[key]
    for given in registry._given.values():
        given -= added


@pytest.fixture
def updates_as_in_caffe2(monkeypatch):
    """Optimizers make what Caffe2's made, as they do on the compatibility layer."""
    from netbuilder.graph import Net

    monkeypatch.setattr(Net, "updates_as_in_caffe2", True)


@pytest.fixture(autouse=True)
def _numpy_in_examples(doctest_namespace):
    doctest_namespace["np"] = np
