"""Loader threads under Caffe2's names: batches, order, scopes, errors, ends; and worker threads of any kind."""

import logging
import threading
import time

import numpy as np
import pytest

from netbuilder.caffe2.python import core, data_workers, model_helper, parallel_workers, workspace
from netbuilder.proto import NetError
from waiting import HANG, join_all, wait_until

F32 = np.float32


@pytest.fixture(autouse=True)
def nothing_is_left():
    workspace.ResetWorkspace()
    yield
    for coordinator in (data_workers.global_coordinator, parallel_workers.global_coordinator):
        coordinator.stop()
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if "worker" in name or "fetcher" in name or "Enqueuer" in name]
    workspace.ResetWorkspace()


def loaders(fetch, batch_size=4, names=("data", "label"), start=True, **options):
    model = model_helper.ModelHelper("loaded")
    coordinator = data_workers.init_data_input_workers(model, list(names), fetch, batch_size, **options)
    workspace.RunNetOnce(model.param_init_net)
    workspace.CreateNet(model.net)
    if start:
        coordinator.start()
    return model, coordinator


def rising(step=3, stop=10**6):
    """A fetch function whose chunks have ``step`` samples, numbered from 0 on."""
    state = {"next": 0, "lock": threading.Lock()}

    def fetch(worker_id, batch_size):
        with state["lock"]:
            first = state["next"]
            if first >= stop:
                time.sleep(0.01)
                return None
            state["next"] += step
        numbers = np.arange(first, first + step)
        return [np.repeat(numbers[:, None], 2, 1).astype(F32), numbers.astype(np.int32)]

    return fetch


def test_batches_of_equal_size_in_the_order_in_which_the_samples_came():
    """In Caffe2 the rest of a chunk comes after chunks fetched later; here the order of arrival is kept."""
    model, coordinator = loaders(rising(), 4, num_worker_threads=1)
    for k in range(9):
        workspace.RunNet(model.net.Name())
        assert workspace.FetchBlob("label").tolist() == [4 * k, 4 * k + 1, 4 * k + 2, 4 * k + 3]
        assert workspace.FetchBlob("data")[:, 0].tolist() == workspace.FetchBlob("label").tolist()
        assert workspace.FetchBlob("data").dtype == F32
    assert coordinator is data_workers.global_coordinator
    assert coordinator.stop() is True


def test_many_fetchers_lose_nothing():
    model, _ = loaders(rising(5, 400), 8, num_worker_threads=6, max_buffered_batches=3)
    seen = []
    for _ in range(50):
        workspace.RunNet(model.net.Name())
        seen += workspace.FetchBlob("label").tolist()
    assert sorted(seen) == list(range(400))


def test_chunks_as_they_come_and_other_axes():
    model, coordinator = loaders(rising(5), 4, dont_rebatch=True)
    workspace.RunNet(model.net.Name())
    assert workspace.FetchBlob("data").shape == (5, 2)
    coordinator.stop()
    workspace.ResetWorkspace()

    def fetch(worker_id, batch_size):
        return [np.zeros((3, 2), F32), np.zeros((4, 3), F32)]

    model, _ = loaders(fetch, 5, batch_columns=[0, 1], input_source_name="columns")
    workspace.RunNet(model.net.Name())
    assert workspace.FetchBlob("data").shape == (5, 2)
    assert workspace.FetchBlob("label").shape == (4, 5)


def test_the_net_has_caffe2s_operators_in_the_scope():
    """As Caffe2 built them: one operator a blob, the queue an external input named after blob and source."""
    model = model_helper.ModelHelper("loaded")
    with core.NameScope("gpu_0"), core.DeviceScope(core.DeviceOption(0)):
        data_workers.init_data_input_workers(model, ["data", "label"], rising(), 4, input_source_name="unit")
    ops = model.net.Proto().op
    assert [(op.type, list(op.input), list(op.output)) for op in ops] == [
        ("DequeueBlobs", ["gpu_0/data_c2queue_unit"], ["gpu_0/data"]),
        ("DequeueBlobs", ["gpu_0/label_c2queue_unit"], ["gpu_0/label"]),
    ]
    assert [(a.name, a.f) for a in ops[0].arg] == [("timeout_secs", 600.0)]
    assert list(model.net.Proto().external_input) == ["gpu_0/data_c2queue_unit", "gpu_0/label_c2queue_unit"]


def test_devices_share_what_the_fetchers_of_a_source_bring():
    model = model_helper.ModelHelper("loaded")
    fetch = rising(2)
    for k in range(2):
        with core.NameScope(f"cpu_{k}"):
            coordinator = data_workers.init_data_input_workers(model, ["data", "label"], fetch, 4, 2)
    assert len(set(coordinator.get_worker_ids())) == 4
    workspace.CreateNet(model.net)
    coordinator.start()
    seen = []
    for _ in range(20):
        workspace.RunNet(model.net.Name())
        seen += [*workspace.FetchBlob("cpu_0/label"), *workspace.FetchBlob("cpu_1/label")]
    assert len(set(seen)) == 160


def bad(worker_id, batch_size):
    raise OSError("the disk is gone")


def leaving(worker_id, batch_size):
    raise SystemExit("enough")


@pytest.mark.parametrize(
    ("fetch", "message"),
    [
        (bad, "OSError: the disk is gone"),
        (leaving, "SystemExit: enough"),
        (lambda w, n: [np.zeros((3, 2))], r"an array for each of \['data', 'label'\], got \['ndarray'\]"),
        (lambda w, n: ["a", "b"], r"got \['str', 'str'\]"),
        (lambda w, n: [np.zeros((3, 2)), np.zeros(4)], r"the same number of samples, got \[3, 4\]"),
        (lambda w, n: [np.zeros((3, 2)), np.array(4)], r"shapes \[\(3, 2\), \(\)\] lack the axes"),
    ],
)
def test_loaders_that_die_end_the_net_with_their_error(fetch, message):
    model, _ = loaders(fetch)
    began = time.perf_counter()
    with pytest.raises(NetError, match=f"DequeueBlobs.*data_c2queue_train' is closed.*{message}") as raised:
        workspace.RunNet(model.net.Name())
    assert time.perf_counter() - began < HANG
    causes, error = [], raised.value
    while error is not None:
        causes.append(type(error))
        error = error.__cause__
    assert fetch is not bad or OSError in causes


def test_fetchers_that_the_net_waits_for_are_warned_of_once(monkeypatch, caplog):
    monkeypatch.setattr(data_workers, "_SLOW_SECONDS", 0.02)
    monkeypatch.setattr(data_workers, "_SLOW_SHARE", 0.0)  # the first run takes long, and batches wait meanwhile
    fetch = rising(4)

    def slow(worker_id, batch_size):
        time.sleep(0.02)
        return fetch(worker_id, batch_size)

    model, coordinator = loaders(slow, 4, num_worker_threads=1)
    for _ in range(500):
        workspace.RunNet(model.net.Name())
        if caplog.records:
            break
    for _ in range(3):
        workspace.RunNet(model.net.Name())
    coordinator.stop()
    told = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1 and "the net has waited for the input of source 'train'" in told[0]
    assert "more num_worker_threads, or a faster fetch function" in told[0]


def test_stopping_ends_a_net_that_waits():
    model, coordinator = loaders(lambda w, n: time.sleep(0.01))
    failures = []

    def run():
        try:
            workspace.RunNet(model.net.Name())
        except NetError as error:
            failures.append(str(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    time.sleep(0.1)
    assert coordinator.stop()
    join_all(thread)
    assert "is closed, and nothing is left in it to read" in failures[0]


def test_a_time_limit_and_a_fetcher_that_returns_none(caplog):
    with caplog.at_level(logging.WARNING, "netbuilder.input"):
        model, _ = loaders(lambda w, n: time.sleep(0.01), timeout=0.1, input_source_name="empty")
        with pytest.raises(NetError, match="stayed empty for 0.1 seconds"):
            workspace.RunNet(model.net.Name())
        said = "the fetch function of source 'empty' returned None"
        wait_until(lambda: any(said in record.message for record in caplog.records))


def test_another_batch_size():
    model, coordinator = loaders(rising(), 4, start=False)
    other = model_helper.ModelHelper("other")
    coordinator.reset_data_input("", "train", other.net, 6)
    workspace.CreateNet(other.net)
    coordinator.start()
    workspace.RunNet(other.net.Name())
    assert workspace.FetchBlob("label").shape == (6,)


def test_init_fun_and_loggers():
    class Logger:
        rows = []

        def log(self, metrics):
            self.rows.append(dict(metrics))

    calls = []
    init = lambda coordinator, everything: calls.append((coordinator.get_worker_ids(), everything))  # noqa: E731
    model, coordinator = loaders(rising(), init_fun=init, external_loggers=[Logger()])
    workspace.RunNet(model.net.Name())
    coordinator.start()  # again changes nothing
    assert coordinator.stop()
    ((ids, everything),) = calls
    assert len(ids) == 2 and everything is data_workers.global_coordinator
    assert {"fetcher_time", "fetcher_time_count", "enqueue_time", "inputs_per_sec", "queue_size"} <= set(Logger.rows[0])
    assert "queue_size_count" not in Logger.rows[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_worker_threads": 0}, "num_worker_threads must be a whole number, 1 or greater, got 0"),
        ({"batch_size": 0}, "batch_size must be a whole number, 1 or greater, got 0"),
        ({"batch_columns": [0]}, "batch_columns must have one axis for each of the blobs .'data', 'label'., got .0."),
        ({"max_buffered_batches": 0, "input_source_name": "none"}, "max_buffered_batches must be at least 1"),
        ({"names": []}, r"each of the blobs \[\]"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(NetError, match=message):
        loaders(rising(), **options)


# Workers of any kind.


def test_workers_run_until_they_are_stopped():
    seen, calls = set(), []

    def work(number):
        seen.add(number)
        time.sleep(0.001)

    coordinator = parallel_workers.init_workers(
        work, 3, "w", init_fun=lambda c, g: calls.append("init"), shutdown_fun=lambda: calls.append("shutdown")
    )
    ids = coordinator.get_worker_ids()
    assert not seen
    coordinator.start()
    wait_until(lambda: seen == set(ids))
    assert len(ids) == 3
    coordinator.stop_coordinator("other")
    assert sum("worker id" in thread.name for thread in threading.enumerate()) == 3
    coordinator.stop_coordinator("w")
    assert not any("worker id" in thread.name for thread in threading.enumerate())
    assert calls == ["init", "shutdown"]
    assert coordinator.stop() is True


def test_the_first_error_ends_all_workers_of_a_name():
    calls, both = [], threading.Barrier(2)

    def work(number):
        both.wait(HANG)
        raise ValueError(f"worker {number}")

    coordinator = parallel_workers.init_workers(work, 2, "w", shutdown_fun=lambda: calls.append("shutdown"))
    coordinator.start()
    (only,) = coordinator._coordinators
    wait_until(lambda: not only.is_active())
    assert isinstance(only.error, ValueError)
    assert coordinator.stop() is True
    assert calls == ["shutdown"]


def test_a_coordinator_that_never_started_can_be_stopped():
    parallel_workers.init_workers(print, 2)
    assert parallel_workers.global_coordinator.stop() is True
