"""DistOpt: SINGA's methods build the nets that Parallelize builds with a strategy."""

import pytest

from netbuilder import parallel
from netbuilder.graph.net_names import reset_names
from netbuilder.model import ModelHelper, brew
from netbuilder.optimizers import reset_optimizer_instance_count
from netbuilder.parallel.compat import DistOpt
from netbuilder.proto import NetError, UsageError
from parallel_models import OPTIMIZERS, no_input
from toy_models import mlp, softmax_loss

PLACE = {"num_shards": 2, "shard_id": 1, "engine": "MPI"}
ELEMENTS = 2097152


def loss(model):
    x = brew.relu(model, brew.fc(model, "data", "fc1", 6, 8), "fc1")
    return softmax_loss(model, brew.fc(model, x, "fc2", 8, 4))


def optimizer(*arguments, **options):
    reset_names()
    reset_optimizer_instance_count()
    options = {"model": ModelHelper("net"), "rendezvous": PLACE, "devices": [0], "cpu_device": True, **options}
    return DistOpt(OPTIMIZERS["sgd"], *arguments, **options)


@pytest.mark.parametrize(
    "method, arguments, strategy, elements",
    [
        ("backward_and_update", {}, "plain", ELEMENTS),
        ("backward_and_update", {"threshold": 30}, "plain", 30),
        ("backward_and_update_half", {}, "half", ELEMENTS),
        ("backward_and_update_half", {"clipping": True}, "half:float16,100", ELEMENTS),
        ("backward_and_update_half", {"clipping": True, "clip_Value": 2.5}, "half:float16,2.5", ELEMENTS),
        ("backward_and_partial_update", {}, f"partial:{ELEMENTS}", ELEMENTS),
        ("backward_and_partial_update", {"threshold": 50}, "partial:50", 50),
        ("backward_and_sparse_update", {}, "threshold:0.05", ELEMENTS),
        ("backward_and_sparse_update", {"spars": 0.1, "topK": True}, "topk:0.1", ELEMENTS),
        ("backward_and_sparse_update", {"threshold": 30, "corr": False}, "threshold:0.05,false", 30),
    ],
)
def test_methods_are_strategies(method, arguments, strategy, elements):
    made = optimizer()
    record = getattr(made, method)(loss, **arguments)
    reset_names()
    reset_optimizer_instance_count()
    model = ModelHelper("net")
    found = parallel.Parallelize_CPU(
        model, no_input, mlp, optimizer_builder_fun=OPTIMIZERS["sgd"], devices=[0], rendezvous=PLACE,
        strategy=strategy, bucket_bytes=4 * elements,
    )  # fmt: skip
    assert record == found and (made.world_size, made.global_rank) == (2, 1)
    for ours, theirs in ((made.model.net, model.net), (made.model.param_init_net, model.param_init_net)):
        for net in (ours.Proto(), theirs.Proto()):
            for op in net.op:
                op.debug_info = ""
        assert ours.Proto() == theirs.Proto()


def test_small_gradients_are_exchanged_in_buffers_of_a_size():
    made = optimizer(buffSize=36)
    made.backward_and_update(loss)
    assert sum(op.type == "AllreduceBucket" for op in made.model.net.Proto().op) == 2


@pytest.mark.parametrize(
    "call, error, match",
    [
        (lambda: DistOpt("sgd", model=ModelHelper("net")), TypeError, "opt must be a function"),
        (lambda: DistOpt(OPTIMIZERS["sgd"], model=None), TypeError, "model must be a ModelHelper, got None"),
        (lambda: optimizer("id", rendezvous=None), TypeError, "nccl_id must be an NcclIdHolder .* got 'id'"),
        (lambda: optimizer("id"), NetError, "nccl_id and rendezvous cannot both be given"),
        (lambda: optimizer(None, 0), NetError, "local_rank=0 needs nccl_id; or give rendezvous= and devices="),
        (lambda: optimizer(None, 0, gpu_num=1), NetError, "local_rank and gpu_num are two names of one argument"),
        (lambda: optimizer(None, None, 4), NetError, "world_size must be that of the rendezvous, 2, got 4"),
        (lambda: optimizer(buffSize=0), NetError, "buffSize must be a positive number of elements, got 0"),
        (lambda: optimizer(strategy="plain"), NetError, r"\['strategy'\] are chosen by its own arguments and methods"),
        (lambda: optimizer().backward_and_update("loss"), TypeError, "loss must be a function .* got 'loss'"),
        (lambda: optimizer().backward_and_update(loss, 1.5), TypeError, "threshold must be an integer, got 1.5"),
        (lambda: optimizer().backward_and_partial_update(loss, 0), NetError, "chunk must be at least 1, got 0"),
        (lambda: optimizer().backward_and_sparse_update(loss, spars=2, topK=True), NetError, "fraction must lie in"),
        (
            lambda: optimizer().backward_and_update_half(loss, clipping=True, clip_Value=-1),
            NetError,
            "clip must be pos",
        ),
        (lambda: optimizer().update("w", "w_grad"), UsageError, "opt appends the updates of all parameters"),
    ],
)
def test_refusals(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_a_second_step_is_refused():
    made = optimizer()
    made.backward_and_update(loss)
    with pytest.raises(NetError, match="model 'net' is data-parallel already"):
        made.backward_and_update_half(loss)
