"""Other buckets in a finished net: those that Parallelize would have made, and what depends on them in order."""

import numpy as np
import pytest

from netbuilder import parallel
from netbuilder.graph.net_names import reset_names
from netbuilder.graph.versions import reads_of, writes_of
from netbuilder.model import ModelHelper
from netbuilder.optimizers import reset_optimizer_instance_count
from netbuilder.parallel.process_exchange import gradient_bytes
from netbuilder.passes.rebucket import rebucket_pass
from netbuilder.proto import NetError
from parallel_models import OPTIMIZERS, no_input
from toy_models import convnet, mlp, normalized

SIZES = (0, 64, 150, 300, 1 << 20)


def built(bucket_bytes, forward=mlp, devices=(0,), **options):
    reset_names()
    reset_optimizer_instance_count()
    model, place = ModelHelper("net"), {"num_shards": 2, "shard_id": 0, "engine": "MPI"}
    record = parallel.Parallelize_CPU(
        model, no_input, forward, optimizer_builder_fun=OPTIMIZERS["momentum"], devices=list(devices),
        rendezvous=place, bucket_bytes=bucket_bytes, **options,
    )  # fmt: skip
    return model, record


def exchanged(net, record):
    return [list(op.output) for op in net.op if op.input[:1] and op.input[0] in record.world.common]


def values_read(net):
    """What each operator reads, by the operators that wrote it: the same whatever the order of independent ones is."""
    writer, found = {}, {}
    for op in net.op:
        collective = op.type.startswith("Allreduce")
        key = "exchange" if collective else (op.type, *op.output)
        for name in writes_of(op):
            if collective:
                found["exchange", name] = writer.get(name)
        if not collective:
            found.setdefault(key, []).append([writer.get(name) for name in reads_of(op)])
        writer.update(dict.fromkeys(writes_of(op), key))
    return found


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "options", [{}, {"strategy": "topk:0.1"}, {"strategy": "half"}, {"deterministic": True}], ids=str
)
@pytest.mark.parametrize("forward, devices", [(mlp, [0]), (mlp, [0, 1]), (convnet, [0]), (normalized, [0, 1])])
def test_they_are_those_of_parallelize(forward, devices, options):
    made = {size: built(size, forward, devices, **options) for size in SIZES}
    counts = set()
    for size, (model, record) in made.items():
        for other, (wanted, wanted_record) in made.items():
            before = model.net.Proto().SerializeToString()
            sizes = gradient_bytes(model, record)
            result = rebucket_pass(model.net, worlds=record.world.common, sizes=sizes, bucket_bytes=other)
            assert model.net.Proto().SerializeToString() == before
            assert exchanged(result.net, record) == exchanged(wanted.net.Proto(), wanted_record), (size, other)
            assert values_read(result.net) == values_read(wanted.net.Proto()), (size, other)
            counts.add(result.extras["buckets"])
    assert len(counts) > 1


def test_collectives_of_one_world_follow_one_another():
    model, record = built(1 << 20, max_concurrent_distributed_ops=1)
    sizes = gradient_bytes(model, record)
    net = rebucket_pass(model.net, worlds=record.world.common, sizes=sizes, bucket_bytes=0).net
    buckets = [op for op in net.op if op.type == "AllreduceBucket"]
    assert [list(op.control_input) for op in buckets] == [[], *(list(op.output[:1]) for op in buckets[:-1])]


def test_too_many_for_an_operator(monkeypatch):
    monkeypatch.setattr("netbuilder.passes.rebucket.MOST_BLOBS", 3)
    model, record = built(0)
    sizes = gradient_bytes(model, record)
    net = rebucket_pass(model.net, worlds=record.world.common, sizes=sizes, bucket_bytes=1 << 20).net
    lengths = np.array([len(blobs) for blobs in exchanged(net, record)])
    assert lengths.max() <= 3 and lengths.sum() == len(sizes)


def test_what_is_refused():
    model, record = built(0)
    options = {"worlds": record.world.common, "bucket_bytes": 0}
    with pytest.raises(NetError, match="if operators of one kind exchange them, found none"):
        rebucket_pass(model.net, sizes={"x": 4}, **options)
    net = model.net.Proto()
    next(op for op in net.op if op.type == "AllreduceBucket").type = "AllreduceTopK"
    with pytest.raises(NetError, match=r"net 'net': .* of one kind .* found \['AllreduceBucket', 'AllreduceTopK'\]"):
        rebucket_pass(net, sizes=gradient_bytes(model, record), **options)
