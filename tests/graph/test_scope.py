"""Name scopes and device scopes."""

import asyncio
import contextlib
import threading

import pytest

from netbuilder.graph import (
    CreateOperator,
    CurrentDeviceScope,
    CurrentNameScope,
    DeviceScope,
    EmptyDeviceScope,
    EmptyNameScope,
    NameScope,
)
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, DeviceOption


def gpu(index: int, **fields) -> DeviceOption:
    return DeviceOption(device_type=PROTO_CUDA, device_id=index, **fields)


def test_name_scopes_nest():
    assert CurrentNameScope() == ""
    with NameScope("a"):
        with NameScope("b"):
            assert CurrentNameScope() == "a/b/"
        assert CurrentNameScope() == "a/"
    assert CurrentNameScope() == ""


@pytest.mark.parametrize(
    ("prefix", "scope"), [("", "a/"), (None, "a/"), ("b", "a/b/"), ("b/c", "a/b/c/"), ("b/", "a/b//"), ("/b", "a//b/")]
)
def test_prefixes_as_caffe2_joins_them(prefix, scope):
    with NameScope("a"), NameScope(prefix):
        assert CurrentNameScope() == scope


def test_reset_starts_again_and_empty_scope_leaves_all():
    with NameScope("a"):
        with NameScope("b", reset=True):
            assert CurrentNameScope() == "b/"
        with EmptyNameScope():
            assert CurrentNameScope() == ""
        assert CurrentNameScope() == "a/"


def test_scopes_are_back_after_an_exception():
    with NameScope("a"), DeviceScope(gpu(1)):
        with pytest.raises(KeyError), NameScope("b"), DeviceScope(gpu(2)), EmptyDeviceScope(), EmptyNameScope():
            raise KeyError
        assert CurrentNameScope() == "a/"
        assert CurrentDeviceScope() == gpu(1)
    assert CurrentNameScope() == ""
    assert CurrentDeviceScope() is None


def test_threads_have_scopes_of_their_own():
    seen = []
    with NameScope("a"), DeviceScope(gpu(1)):
        thread = threading.Thread(target=lambda: seen.append((CurrentNameScope(), CurrentDeviceScope())))
        thread.start()
        thread.join()
    assert seen == [("", None)]


@pytest.mark.parametrize(
    ("outer", "inner", "merged"),
    [
        (gpu(2), DeviceOption(device_type=PROTO_CPU, device_id=3), DeviceOption(device_type=PROTO_CPU, device_id=3)),
        (gpu(2, node_name="host"), gpu(1), gpu(1, node_name="host")),
        (gpu(2, node_name="host"), gpu(1, node_name="other"), gpu(1, node_name="other")),
        (gpu(2, extra_info=["x"]), gpu(1, extra_info=["y"]), gpu(1, extra_info=["x", "y"])),
        (gpu(2, random_seed=7, numa_node_id=1), gpu(1), gpu(1)),
    ],
)
def test_device_scopes_merge_as_caffe2_does(outer, inner, merged):
    with DeviceScope(outer), DeviceScope(inner):
        assert CurrentDeviceScope() == merged
    assert outer != merged  # the arguments are left alone


def test_node_name_argument():
    with DeviceScope(gpu(0, node_name="a"), node_name="b"):
        assert CurrentDeviceScope().node_name == "b"


def test_operators_take_scopes():
    with NameScope("s"), DeviceScope(gpu(1)):
        op = CreateOperator("Relu", "x", "y", control_input="c")
        placed = CreateOperator("Relu", "x", "y", device_option=gpu(0))
        with EmptyDeviceScope():
            free = CreateOperator("Relu", "x", "y")
    assert (op.input, op.output, op.control_input) == (["s/x"], ["s/y"], ["s/c"])
    assert op.device_option == gpu(1)
    assert placed.device_option == gpu(0)
    assert not free.HasField("device_option")


def _here():
    return CurrentNameScope(), CurrentDeviceScope()


def _suspended(name, device=1, inside=contextlib.nullcontext):
    """Yield the scopes that the generator sees, three times inside of its own."""
    with NameScope(name), DeviceScope(gpu(device)), inside():
        for _ in range(3):
            yield _here()


@contextlib.contextmanager
def _both(name):
    with NameScope(name):
        yield from _device(2)


def _device(number):
    with DeviceScope(gpu(number)):
        yield


class TestGenerators:
    def test_one_that_is_suspended_keeps_its_scope_to_itself(self):
        generator = _suspended("a")
        assert next(generator) == ("a/", gpu(1)) and _here() == ("", None)
        with NameScope("c"):
            assert next(generator) == ("a/", gpu(1)) and _here() == ("c/", None)
        assert list(generator) == [("a/", gpu(1))] and _here() == ("", None)

    def test_one_that_is_closed_or_dropped_leaves_nothing(self):
        with NameScope("c"):
            closed, dropped = _suspended("a"), _suspended("b")
            next(closed), next(dropped)
            closed.close()
            del dropped
            assert _here() == ("c/", None)
        assert _here() == ("", None)

    def test_nested_ones(self):
        def outer():
            with NameScope("o"):
                inner = _suspended("i")
                assert next(inner) == ("o/i/", gpu(1)) and CurrentNameScope() == "o/"
                yield inner
                assert CurrentNameScope() == "o/"

        generator = outer()
        inner = next(generator)
        assert _here() == ("", None) and next(inner) == ("o/i/", gpu(1))
        assert next(generator, None) is None and list(inner) == [("o/i/", gpu(1))] and _here() == ("", None)

    def test_two_that_take_turns(self):
        pairs = list(zip(_suspended("a", 1), _suspended("b", 2)))
        assert pairs == [(("a/", gpu(1)), ("b/", gpu(2)))] * 3 and _here() == ("", None)

    def test_an_error_thrown_in(self):
        def catches():
            try:
                with NameScope("a"):
                    yield CurrentNameScope()
            except KeyError:
                yield CurrentNameScope()

        generator = catches()
        assert next(generator) == "a/" and generator.throw(KeyError()) == "" and CurrentNameScope() == ""

    def test_context_managers_are_meant_for_their_block(self):
        with _both("a"):
            assert _here() == ("a/", gpu(2))
            with contextlib.ExitStack() as stack:
                stack.enter_context(_both("b"))
                assert _here() == ("a/b/", gpu(2))
            assert _here() == ("a/", gpu(2))
        assert _here() == ("", None)

    def test_context_managers_within_a_generator(self):
        generator = _suspended("a", inside=lambda: _both("b"))
        assert next(generator) == ("a/b/", gpu(2)) and _here() == ("", None)
        assert list(generator) == [("a/b/", gpu(2))] * 2 and _here() == ("", None)

    def test_one_resumed_in_another_thread(self):
        generator, seen = _suspended("a"), []
        next(generator)
        thread = threading.Thread(target=lambda: seen.extend([*generator, _here()]))
        thread.start()
        thread.join()
        assert seen == [("a/", gpu(1))] * 2 + [("", None)] and _here() == ("", None)

    def test_asynchronous_ones_and_tasks(self):
        async def suspended(name):
            with NameScope(name):
                for _ in range(2):
                    await asyncio.sleep(0)
                    yield CurrentNameScope()

        @contextlib.asynccontextmanager
        async def scope(name):
            with NameScope(name):
                yield

        async def reads(name):
            async with scope(name):
                seen = [(inside, CurrentNameScope()) async for inside in suspended("g")]
                return seen, await asyncio.create_task(child())

        async def child():
            return CurrentNameScope()

        async def both():
            return await asyncio.gather(reads("a"), reads("b"))

        assert asyncio.run(both()) == [([(f"{name}/g/", f"{name}/")] * 2, f"{name}/") for name in "ab"]

    def test_scopes_left_in_another_order(self):
        first, second = NameScope("a"), NameScope("b")
        first.__enter__(), second.__enter__()
        first.__exit__(None, None, None)
        assert CurrentNameScope() == "a/b/"
        second.__exit__(None, None, None)
        assert CurrentNameScope() == ""


@pytest.mark.parametrize("make", [lambda: NameScope(3), lambda: DeviceScope("gpu"), lambda: DeviceScope(None)])
def test_refusals(make):
    with pytest.raises(TypeError, match="got"), make():
        pass
