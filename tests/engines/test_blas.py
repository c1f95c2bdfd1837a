"""NumPy's products are limited to one thread while plans run; the limit is removed afterwards."""

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController, threadpool_limits

from netbuilder import Workspace
from netbuilder.engines import blas, onednn
from netbuilder.graph import Net
from netbuilder.proto import ShapeError
from switches import single

hold = blas.limit_threads


def threads():
    """Return the threads of each BLAS that was loaded at the first plan; other tests may load more."""
    counted = [library.thread_count() for library in blas.libraries()]
    loaded = ThreadpoolController().select(user_api="blas").lib_controllers
    assert {library.get_num_threads() for library in loaded} >= set(counted)
    return counted


@pytest.fixture
def three_threads():
    with threadpool_limits(3, user_api="blas"):
        if not threads() or set(threads()) != {3}:
            pytest.skip("NumPy's BLAS has one thread only")
        yield


@pytest.mark.usefixtures("three_threads")
def test_the_smallest_number_counts_until_the_last_release():
    blas.limit_threads(2)
    assert set(threads()) == {2}
    blas.limit_threads(1)
    assert set(threads()) == {1}
    blas.limit_threads(8)
    assert set(threads()) == {1}
    blas.release_threads()
    blas.release_threads()
    assert set(threads()) == {1}
    blas.release_threads()
    assert set(threads()) == {3}


def held_by(monkeypatch, workspace, dtype):
    held = []
    monkeypatch.setattr(blas, "limit_threads", lambda threads: held.append(threads) or hold(threads))
    workspace.feed("x", np.ones((2, 2), dtype))
    net = Net("product")
    net.MatMul(["x", "x"], "y")
    workspace.run_net_once(net)
    return set(held)


@pytest.mark.usefixtures("three_threads")
def test_a_plan_with_kernels_of_the_library_leaves_numpy_one_thread(monkeypatch):
    if not onednn.available():
        pytest.skip("needs oneDNN")
    assert held_by(monkeypatch, Workspace(threads=2), np.float32) == {1}
    assert set(threads()) == {3}


@pytest.mark.usefixtures("three_threads")
def test_a_plan_of_numpy_alone_uses_the_threads_of_the_workspace(monkeypatch):
    assert held_by(monkeypatch, Workspace(threads=2, without=single("threads_by_work")), np.float64) == {2}
    assert held_by(monkeypatch, Workspace(threads=2, engines=(), without=single("threads_by_work")), np.float32) == {2}
    assert held_by(monkeypatch, Workspace(threads=2), np.float64) == {1}  # so small a product needs no second thread
    assert set(threads()) == {3}


@pytest.mark.usefixtures("three_threads")
def test_threads_are_given_back_when_an_operator_fails():
    workspace, net = Workspace(threads=1), Net("fails")
    workspace.feed("x", np.ones((1, 2), np.float64))
    workspace.feed("label", np.array([7], np.int32))
    net.SoftmaxWithLoss(["x", "label"], ["p", "loss"])
    with pytest.raises(ShapeError, match="labels must lie"):
        workspace.run_net_once(net)
    assert set(threads()) == {3}
