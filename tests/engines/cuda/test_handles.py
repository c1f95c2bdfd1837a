"""Handles of cuBLAS and cuDNN of threads that have ended: they are freed, but not during a capture or after a fork."""

import os
import threading

import numpy as np
import pytest

from cudnn_double import cudnn_double
from netbuilder.engines.arrays import array_module
from netbuilder.engines.cuda import cublas
from netbuilder.engines.cuda.capture import capture
from netbuilder.engines.cuda.handles import ThreadHandles
from netbuilder.engines.cudnn import library
from netbuilder.engines.engine import find_engine
from netbuilder.engines.gpu import gpu
from netbuilder.proto import PROTO_CUDA
from netbuilder.runtime import Workspace
from on_gpu import gpus
from waiting import join_all, wait_until

pytestmark = pytest.mark.emulated


@pytest.fixture
def libraries(monkeypatch):
    """The devices of cuBLAS's handles, and the double of cuDNN, on two GPUs."""
    devices, call = [], cublas.checked_call
    change = {"cublasCreate_v2": devices.append, "cublasDestroy_v2": devices.remove}

    def noted(name, *arguments):
        call(name, *arguments)
        if name in change:
            change[name](array_module(PROTO_CUDA).cuda.runtime.getDevice())

    monkeypatch.setattr(cublas, "checked_call", noted)
    with gpus(2), cudnn_double() as cudnn:
        yield devices, cudnn


def use(number=0):
    """Make this thread's handles for a GPU, of both libraries."""
    with gpu(number) as here:
        library.handle()
        cublas.handle(here)


def use_and_end(*numbers):
    """Let a thread make handles and end."""
    made = []

    def work():
        for number in numbers:
            use(number)
            with gpu(number) as here:
                made.append((cublas.handle(here), library.handle()))

    thread = threading.Thread(target=work)
    thread.start()
    join_all(thread)
    for handles, own in zip(
        (cublas.thread_handles, library.thread_handles), map(set, zip(*made, strict=True)), strict=True
    ):
        wait_until(lambda handles=handles, own=own: own <= {handle.pointer for _, handle in handles.ended_handles})


def test_the_next_handle_that_is_made_frees_them(libraries):
    """Each on its own GPU, which both libraries check; those of living threads stay."""
    blas, cudnn = libraries
    use(0)
    use_and_end(0, 1)
    assert len(blas) == len(cudnn.handles) == 3
    use(0)  # there is one
    assert len(blas) == len(cudnn.handles) == 3
    use(1)
    assert len(blas) == len(cudnn.handles) == 2
    for _ in range(20):
        use_and_end(0)
    assert len(blas) == len(cudnn.handles) == 3


def test_a_workspace_that_is_reset_frees_them(libraries):
    blas, cudnn = libraries
    workspace = Workspace()
    assert all(find_engine(name).available() for name in ("CUDA", "CUDNN"))
    use_and_end(0, 1)
    assert len(blas) == len(cudnn.handles) == 2
    workspace.reset()
    assert not blas and not cudnn.handles


def test_a_product_that_is_bound_frees_them(libraries):
    blas, _ = libraries
    use_and_end(0)
    with gpu(0) as here:
        x = here.xp.zeros((1, 2, 2), np.float32)
    cublas.Product(1, 2, 2, 2).bind(x, x, x)
    assert not blas


def test_none_is_freed_during_a_capture(libraries):
    """To free one makes the library wait for the GPU. Another thread may free those of another GPU."""
    blas, cudnn = libraries
    use_and_end(0, 1)
    during = []

    def in_another_thread():
        cublas.free_handles()
        library.free_handles()
        during.append([blas[:], len(cudnn.handles)])

    def call():
        cublas.free_handles()
        thread = threading.Thread(target=in_another_thread)
        thread.start()
        join_all(thread)

    capture(0, [call])
    assert during == [[[0], 1]]
    cublas.free_handles()
    library.free_handles()
    assert not blas and not cudnn.handles


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_frees_none_of_its_parent(libraries):
    """Neither those of ended threads, nor those of the thread that forks and of others."""
    freed, stop, ready = [], threading.Event(), threading.Event()
    handles = ThreadHandles(lambda here: object(), freed.append)

    def live():
        handles.get(gpu(0))
        ready.set()
        stop.wait()

    living = threading.Thread(target=live)
    living.start()
    ready.wait()
    ended = threading.Thread(target=lambda: handles.get(gpu(0)))
    ended.start()
    join_all(ended)
    wait_until(lambda: handles.ended_handles)
    own = handles.get(gpu(1))  # frees that one
    assert len(freed) == 1
    ended = threading.Thread(target=lambda: handles.get(gpu(0)))
    ended.start()
    join_all(ended)
    wait_until(lambda: handles.ended_handles)
    child = os.fork()
    if not child:
        handles.free_ended()
        os._exit(0 if len(freed) == 1 and not handles.ended_handles and not handles.of_thread.__dict__ else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert handles.get(gpu(1)) is own, "the parent keeps its own"
    stop.set()
    join_all(living)
    wait_until(lambda: len(handles.ended_handles) == 2)
    handles.free_ended()
    assert len(freed) == 3
