"""Predictors called by several threads: each gets its own answers, parameters are shared, some nets take turns."""

import pickle
import signal
import threading

import numpy as np
import pytest

from netbuilder.caffe2.predicting import Predictor as Caffe2Predictor
from netbuilder.exchange import Predictor, load_predictor, save_predictor
from netbuilder.graph import Net
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import PROTO_CUDA, NetDef, NetError, OperatorError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from waiting import HANG, join_all, wait_until

RNG = np.random.default_rng(0)


def random(*shape):
    return RNG.normal(size=shape).astype(np.float32)


WEIGHTS = {"w": random(8, 3, 3, 3), "b": random(8), "v": random(5, 8), "c": random(5)}


def nets():
    """A small convolutional net, and the net that fills its parameters."""
    init = NetDef(name="init")
    for name, value in WEIGHTS.items():
        init.op.append(make_op("GivenTensorFill", [], [name], shape=value.shape, values=value.ravel().tolist()))
    net = NetDef(name="net", external_input=["x", *WEIGHTS], external_output=["y"])
    net.op.extend(
        [
            make_op("Conv", ["x", "w", "b"], ["h"], kernel=3, pad=1),
            make_op("Relu", ["h"], ["h"]),
            make_op("AveragePool", ["h"], ["p"], global_pooling=1),
            make_op("FC", ["p", "v", "c"], ["s"]),
            make_op("Softmax", ["s"], ["y"]),
        ]
    )
    return init, net


def in_threads(*calls):
    """Make calls at the same time, each in a thread of its own; return the errors."""
    errors = []
    start = threading.Barrier(len(calls), timeout=HANG)

    def work(call):
        try:
            start.wait()
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    join_all(*threads)
    return errors


KINDS = {
    "native": lambda: Predictor(*nets(), threads=3, workspace=Workspace(threads=1)),
    "one at a time": lambda: Predictor(*nets(), threads=1),
    "not folded": lambda: Predictor(*nets(), threads=4, observable="all"),
    "caffe2": lambda: Caffe2Predictor(*nets()),
}


def call(predictor, x):
    return predictor.run([x])[0] if isinstance(predictor, Caffe2Predictor) else predictor.run(x=x)["y"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS)
def test_each_thread_gets_its_own_answers(kind):
    predictor = KINDS[kind]()
    inputs = [random(1 + number % 3, 3, 6, 6 + number % 2) for number in range(5)]
    answers = [call(predictor, x) for x in inputs]

    def serve(number):
        for _ in range(400):
            assert np.array_equal(call(predictor, inputs[number]), answers[number])

    assert not in_threads(*(lambda number=number: serve(number) for number in range(5)))


def seats(predictor):
    return predictor.pool.seats


def pool_of(predictor):
    return predictor.pool if isinstance(predictor, Predictor) else predictor._pool[1]


def hold(predictor, count):
    """Take seats of the pool, as if that many threads were running; return a function that gives them back."""
    pool = pool_of(predictor)
    taken = []
    for _ in range(count):
        taken.append(pool.take())
        taken[-1].thread = -1
    return lambda: [pool.give_back(seat) for seat in taken]


def test_threads_share_the_parameters_and_their_copies():
    predictor = Predictor(*nets(), threads=3)
    x = random(2, 3, 6, 6)
    answer = call(predictor, x)
    release = hold(predictor, 2)
    assert np.array_equal(call(predictor, x), answer)
    release()
    first, *others = (seat.workspace for seat in seats(predictor))
    assert len(others) == 2 and first is predictor.workspace
    for other in others:
        assert other.find("w") is first.find("w") and other.find("x") is not first.find("x")
        assert other.arena is not first.arena
    copies = [copied.copy for seat in seats(predictor) for plan in seat.workspace.net("net").plans
              for copied in plan.constant_copies]  # fmt: skip
    made = {id(copy) for copy in copies}
    assert len(copies) == 2 * len(made)  # two of the three workspaces have run, on the same copies


def test_a_thread_alone_uses_the_predictors_workspace():
    predictor = Predictor(*nets(), threads=3, observable=["p"])
    hold(predictor, 3)()
    x = random(1, 3, 6, 6)
    call(predictor, x)
    expected = Predictor(*nets(), observable=["p"])
    call(expected, x)
    assert np.array_equal(predictor.workspace.fetch("p"), expected.workspace.fetch("p"))


def test_threads_above_the_limit_wait():
    predictor = Predictor(*nets(), threads=2)
    release = hold(predictor, 2)
    done = threading.Event()
    waiting = threading.Thread(target=lambda: (call(predictor, random(1, 3, 6, 6)), done.set()))
    waiting.start()
    assert not done.wait(0.1)
    release()
    join_all(waiting)
    assert done.is_set() and len(seats(predictor)) == 2


def waiting_thread(pool):
    """Start a thread that waits for a seat; return the thread, its record, and the event at which it ends."""
    done = threading.Event()

    def work():
        seat = pool.take()
        done.wait(HANG)
        pool.give_back(seat)

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: pool.waiting)
    return thread, pool.waiting[0], done


def test_a_thread_that_was_overtaken_is_handed_the_next_seat():
    pool = Predictor(*nets(), threads=1).pool
    mine = pool.take()
    thread, waiter, done = waiting_thread(pool)
    with pool.guard:
        waiter.wake()
    wait_until(lambda: waiter.overtaken)
    pool.give_back(mine)
    assert mine.thread == thread.ident and pool._free(first=False) is None
    done.set()
    join_all(thread)
    assert pool.take() is mine and not pool.waiting


def test_two_seats_that_are_given_back_together_wake_two_threads():
    pool = Predictor(*nets(), threads=2).pool
    taken = [pool.take()]
    taken[0].thread = -1  # of another thread
    taken.append(pool.take())
    waiting = [waiting_thread(pool)]
    for _ in range(2):
        waiting.append(waiting_thread(pool))
    for seat in taken:
        pool.give_back(seat)
    wait_until(lambda: len(pool.waiting) == 1)
    for _, _, done in waiting:
        done.set()
    join_all(*(thread for thread, _, _ in waiting))
    assert not pool.waiting and not any(seat.lock.locked() for seat in pool.seats)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
def test_a_wait_that_is_interrupted_leaves_the_seat_to_others():
    def interrupt(*_):
        raise InterruptedError

    pool = Predictor(*nets(), threads=1).pool
    before = signal.signal(signal.SIGALRM, interrupt)
    seat = pool.take()
    seat.thread = -1
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(InterruptedError):
            pool.take()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not pool.waiting
    pool.give_back(seat)
    assert pool.take() is seat


def test_a_seat_that_cannot_be_made_is_made_by_the_next_thread():
    predictor = Predictor(*nets(), threads=2)
    pool, create = predictor.pool, predictor.pool.create_net

    def fail(workspace):
        raise MemoryError

    release = hold(predictor, 1)
    pool.create_net = fail
    with pytest.raises(MemoryError):
        call(predictor, random(1, 3, 6, 6))
    pool.create_net = create
    call(predictor, random(1, 3, 6, 6))
    release()
    assert len(seats(predictor)) == 2


def test_new_parameters_are_those_of_all_threads():
    predictor = Predictor(*nets(), threads=2, fold=False)
    x = random(1, 3, 6, 6)
    hold(predictor, 2)()
    for _ in range(2):
        value = random(8, 3, 3, 3)
        predictor.workspace.feed("w", value)
        init, net = nets()
        expected = call(Predictor(init, net, parameters={"w": value}, fold=False), x)
        assert np.array_equal(call(predictor, x), expected)
        release = hold(predictor, 1)
        assert np.array_equal(call(predictor, x), expected)
        release()


def test_an_error_in_one_thread_does_not_hurt_the_others():
    predictor = Predictor(*nets(), threads=3)
    x, wrong = random(2, 3, 6, 6), random(2, 4, 6, 6)
    answer = call(predictor, x)

    def good():
        for _ in range(100):
            assert np.array_equal(call(predictor, x), answer)

    def bad():
        for _ in range(100):
            with pytest.raises(NetError, match="Conv"):
                call(predictor, wrong)

    assert not in_threads(good, bad, good, bad)
    assert np.array_equal(call(predictor, x), answer)


def counting(*, kept):
    """A net with a counter: a parameter that it writes, or a random draw."""
    init = NetDef(name="init", op=[make_op("ConstantFill", [], ["n"], shape=[1], value=0.0)])
    net = NetDef(name="net", external_input=["x", "n"], external_output=["y"])
    if kept:
        net.op.append(make_op("Add", ["x", "n"], ["n"]))
    else:
        net.op.append(make_op("Dropout", ["x"], ["d", "mask"], ratio=0.5))
        net.op.append(make_op("Add", ["d", "n"], ["d"]))
    net.op.append(make_op("Copy", ["n" if kept else "d"], ["y"]))
    return init, net


@pytest.mark.parametrize("kept", [True, False])
def test_nets_with_a_state_take_turns(kept):
    with pytest.raises(NetError, match=r"'n' from run to run|draws random numbers.*must take turns; give threads=1"):
        Predictor(*counting(kept=kept), threads=2)
    predictor = Predictor(*counting(kept=kept))
    found = []
    x = np.ones(1, np.float32)
    assert not in_threads(*(lambda: [found.append(float(predictor.run(x=x)["y"][0])) for _ in range(50)],) * 3)
    alone = Predictor(*counting(kept=kept))
    assert sorted(found) == sorted(float(alone.run(x=x)["y"][0]) for _ in range(150))


def test_branches_do_not_take_turns_but_what_they_hold_may():
    def held(*ops):
        net = NetDef(name="net", external_input=["x", "n"], external_output=["y"])
        net.op.append(make_op("GT", ["x", "n"], ["positive"]))
        net.op.append(make_op("Copy", ["x"], ["y"]))
        branch = NetDef(name="then", op=ops)
        branch.external_input.append("y")
        net.op.append(make_op("If", ["positive"], [], then_net=branch))
        return net

    init = NetDef(op=[make_op("ConstantFill", [], ["n"], shape=[1], value=0.0)])
    predictor = Predictor(init, held(make_op("Scale", ["y"], ["y"], scale=2.0)), threads=2)
    hold(predictor, 2)()
    assert predictor.run(x=np.ones(1, np.float32))["y"].tolist() == [2]
    with pytest.raises(NetError, match="keeps 'n' from run to run"):
        Predictor(init, held(make_op("Copy", ["y"], ["n"])), threads=2)


def test_a_net_on_a_gpu_takes_turns():
    from netbuilder.exchange.net_pool import NetPool

    net = NetDef(name="net", op=[make_op("Relu", ["x"], ["y"])])
    net.device_option.CopyFrom(make_device_option(PROTO_CUDA, 1))
    with pytest.raises(NetError, match=r"net 'net' runs on GPU 1, so its runs must take turns"):
        NetPool(Workspace(), net, lambda workspace: None, [], 2)
    assert NetPool(Workspace(), net, lambda workspace: None, [], None).limit == 1


def test_a_predictor_that_its_own_operator_runs_again_is_an_error():
    predictor = None

    def again(inputs, outputs):
        outputs[0].feed(predictor.run(x=inputs[0].data)["y"])

    net = Net("again")
    net.Python(again)("x", "y")
    net.Proto().external_input.append("x")
    net.Proto().external_output.append("y")
    predictor = Predictor(NetDef(), net.Proto(), inputs=["x"], trusted=True)
    with pytest.raises((NetError, OperatorError), match="runs the same predictor again"):
        predictor.run(x=np.ones(1, np.float32))


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2"])
def test_threads_must_be_a_count(threads):
    with pytest.raises(NetError, match="Predictor: threads must be a whole number, 1 or more, or None, got"):
        Predictor(*nets(), threads=threads)


def test_caffe2_predictors_keep_what_a_call_leaves_out():
    net = NetDef(name="net", external_input=["a", "b"], external_output=["y"])
    net.op.append(make_op("Add", ["a", "b"], ["y"]))
    predictor = Caffe2Predictor(NetDef(), net)
    one = np.ones(1, np.float32)
    assert predictor.run([one, one])[0] == 2
    assert predictor.run([3 * one])[0] == 4  # b is the last call's
    pool_of(predictor).limit = 2
    release = hold(predictor, 1)
    result = []
    waiting = threading.Thread(target=lambda: result.extend(predictor.run({"b": 5 * one})))
    waiting.start()
    assert predictor.run([one, one])[0] == 2  # in another workspace
    release()
    join_all(waiting)
    assert result[0] == 8


def test_a_predictor_that_is_pickled_gives_the_same_answers():
    predictor = Predictor(*nets(), threads=2, workspace=Workspace(threads=1))
    copy = pickle.loads(pickle.dumps(predictor))
    x = random(2, 3, 6, 6)
    assert np.array_equal(call(copy, x), call(predictor, x))
    assert (copy.inputs, copy.outputs, copy.workspace.threads) == (predictor.inputs, predictor.outputs, 1)
    assert copy.pool.limit == 2


def test_a_predictor_is_loaded_for_a_number_of_threads(tmp_path):
    _, net = nets()
    save_predictor(tmp_path, net, WEIGHTS, inputs=["x"])
    assert load_predictor(tmp_path, threads=3).pool.limit == 3
    with pytest.raises(NetError, match="threads must be a whole number"):
        load_predictor(tmp_path, threads=0)


def test_what_is_no_array_of_numbers_is_an_error():
    predictor = Predictor(*nets(), specs={"x": TensorSpec((1, 3, 6, 6), np.dtype(np.float32))})
    masked = np.ma.masked_less(random(1, 3, 6, 6), 0)
    with pytest.raises(NetError, match=r"predictor 'net': input 'x': the array has \d+ masked elements"):
        predictor.run(x=masked)
    with pytest.raises(NetError, match=r"blob 'x': the array has \d+ masked elements, and a blob has no mask.*filled"):
        predictor.workspace.feed("x", masked)
    with pytest.raises(NetError, match="input 'x' must have elements of type float32, got text: 'cat.jpg'"):
        predictor.run(x="cat.jpg")
    with pytest.raises(NetError, match="predictor 'net': input 'x'"):
        predictor.run(x=None)
    with pytest.raises(TypeError, match="load_predictor: directory must be a path, got None"):
        load_predictor(None)
    with pytest.raises(TypeError, match="save_predictor: directory must be a path, got None"):
        save_predictor(None, nets()[1], [])


def test_a_net_that_needs_weights_is_not_saved_without(tmp_path):
    with pytest.raises(NetError, match=r"no parameters are given, but it reads \['w', 'b', 'v', 'c'\] as operators re"):
        save_predictor(tmp_path / "p", nets()[1], [])
    assert not (tmp_path / "p").exists()
