"""Maps, strings, ids, collectors, queues of samples, loops and tensor trains, operator by operator."""

import os

import numpy as np
from caffe2.proto import caffe2_pb2
from caffe2.python import core, tt_core, workspace as W


def run(op_type, inputs, outputs, shown=(), **arguments):
    """Run an operator; print what it made, or that it failed."""
    try:
        W.RunOperatorOnce(core.CreateOperator(op_type, inputs, outputs, **arguments))
    except Exception:
        print(op_type, "error")
        return
    for name in shown or outputs:
        value = np.asarray(W.FetchBlob(name))
        rounded = np.round(value.astype(np.float64), 4) + 0.0 if value.dtype.kind == "f" else value
        print(op_type, name, value.dtype, value.shape, rounded.tolist())


def feed(**blobs):
    for name, value in blobs.items():
        W.FeedBlob(name, value)


def entries(name):
    W.RunOperatorOnce(core.CreateOperator("MapToKeyValue", [name], ["k", "v"]))
    keys, values = W.FetchBlob("k"), W.FetchBlob("v")
    print(name, keys.dtype, values.dtype, sorted(zip(keys.tolist(), values.tolist())))


# Maps, also in a file.
INT64, FLOAT = caffe2_pb2.TensorProto.INT64, caffe2_pb2.TensorProto.FLOAT
W.RunOperatorOnce(core.CreateOperator("CreateMap", [], ["empty"], key_dtype=INT64))
entries("empty")
run("CreateMap", [], ["bad"], key_dtype=FLOAT)
feed(keys=np.int64([5, 3, 5, -9]), values=np.int32([1, -2, 3, 4]), few=np.int32([1]))
W.RunOperatorOnce(core.CreateOperator("KeyValueToMap", ["keys", "values"], ["map"]))
entries("map")
run("KeyValueToMap", ["keys", "few"], ["bad"])
where = {"db": os.path.abspath("maps.db"), "db_type": "minidb", "absolute_path": 1}
W.RunOperatorOnce(core.CreateOperator("Save", ["map", "empty"], [], **where))
W.ResetWorkspace()
W.RunOperatorOnce(core.CreateOperator("Load", [], ["map", "empty"], **where))
entries("map")
entries("empty")
feed(keys=np.int64([0, 2, 1, 2, 3]))
run("KeySplit", ["keys"], ["a", "b", "c", "d"], categorical_limit=4)
run("KeySplit", ["keys"], ["a", "b", "c"], categorical_limit=3)

# Strings.
feed(s=np.array([[b"", b"a"], [b"abcd", b"abcabc"]], dtype=object), n=np.float32([[1, 2.5, 1e10], [0.1, 1 / 3, -1e-7]]))
for arguments in ({}, {"length": 2}, {"length": 0}, {"length": -1}):
    run("StringPrefix", ["s"], ["o"], **arguments)
    run("StringSuffix", ["s"], ["o"], **arguments)
for text in ("", "a", "abc"):
    run("StringStartsWith", ["s"], ["o"], prefix=text)
    run("StringEndsWith", ["s"], ["o"], suffix=text)
    run("StringEquals", ["s"], ["o"], text=text)
for name in ("s", "n"):
    run("StringJoin", [name], ["o"])
    run("StringJoin", [name], ["o"], axis=1, delimiter="--")
run("StringPrefix", ["n"], ["o"])
run("FeedBlob", [], ["text"], value="hello")
run("FeedBlob", [], ["text"])

# Ids and rows.
feed(X=np.int64([1, 2, 3, 4, 5, 6]), L=np.int32([2, 0, 3, 1]))
for op_type in ("SparseDropoutWithReplacement", "SparseItemwiseDropoutWithReplacement"):
    for ratio in (0.0, 1.0, 1.5):
        run(op_type, ["X", "L"], ["Y", "OL"], ratio=ratio, replacement_value=-1)
feed(I=np.int64([0, 1, 2, 3, 1]), L=np.int32([3, 0, 2]), M=np.int32([2, -1, 0, 5]), W=np.float32([1, 2, 3, 4, 5]))
run("SparseLengthsSumSparseLookup", ["I", "L", "M"], ["i", "l"])
run("SparseLengthsSumSparseLookup", ["I", "L", "M", "W"], ["i", "l", "w"])
feed(x=np.float32([[1, 5, 9], [2, 6, 10], [3, 5, 9], [0.5, 4.5, 7]]))
run("NGramFromCategorical", ["x"], ["o"], col_ids=[1, 0], categorical_limits=[2, 3], vals=[5, 6, 1, 2, 3])
run("NGramFromCategorical", ["x"], ["o"], col_ids=[0], categorical_limits=[2], vals=[1])
feed(d=np.arange(8, dtype=np.float32).reshape(4, 2), gone=np.int32([2, 0, 2]), bad=np.int32([4]))
run("RemoveDataBlocks", ["d", "gone"], ["o"])
run("RemoveDataBlocks", ["d", "bad"], ["o"])

# Drawn and collected, where chance has no say.
feed(w=np.float32([[0, 2, 0], [0, 0, 1], [0, 0, 0]]), v=np.float32([[1, 2, 3], [4, 5, 6], [7, 8, 9]]))
run("WeightedSample", ["w", "v"], ["i", "p"])
run("WeightedSample", ["w", "v"], ["i"])
feed(c=np.float32([0, 0, 2]), like=np.zeros((2, 2), np.float32))
run("WeightedMultiSampling", ["c"], ["o"], num_samples=3)
run("WeightedMultiSampling", ["c", "like"], ["o"])
run("WeightedMultiSampling", ["c", "like"], ["o"], num_samples=3)
W.RunOperatorOnce(core.CreateOperator("UniqueUniformFill", [], ["u"], shape=[2, 3], min=4, max=9, dtype=INT64))
print(W.FetchBlob("u").dtype, W.FetchBlob("u").shape, sorted(W.FetchBlob("u").ravel().tolist()))
run("UniqueUniformFill", [], ["u"], shape=[7], min=4, max=9)
feed(rows=np.zeros(0, np.float32), next=np.array(0, np.int32), seen=np.array(0, np.int64))
W.RunOperatorOnce(core.CreateOperator("CreateMutex", [], ["mutex"]))
for data in ([1, 2, 3, 4], [5, 6, 7], list(range(20, 35)), [40]):
    feed(data=np.float32(data))
    run("LastNWindowCollector", ["rows", "next", "data", "mutex", "seen"], ["rows", "next", "seen"], num_to_collect=6)
feed(rows=np.zeros(0, np.float32), seen=np.array(0, np.int64), which=np.zeros(0, np.int64), data=np.float32([1, 2, 3]))
feed(ids=np.int64([10, 20, 10]))
inputs = ["rows", "seen", "data", "mutex", "ids", "empty", "which"]
outputs = ["rows", "seen", "empty", "which"]
run("ReservoirSampling", inputs, outputs, ["rows", "seen", "which"], num_to_collect=3)
feed(data=np.float32([4, 5]), ids=np.int64([30, 20]))
run("ReservoirSampling", inputs, outputs, ["rows", "seen", "which"], num_to_collect=3)
entries("empty")
run("DataCouple", ["rows", "seen"], ["rows", "seen"])

# Queues.
W.RunOperatorOnce(core.CreateOperator("CreateRebatchingQueue", [], ["q"], num_blobs=2, capacity=10))
feed(a=np.float32([1, 2]), b=np.array([b"x", b"y"], dtype=object))
for batch in (True, True):
    run("EnqueueRebatchingQueue", ["q", "a", "b"], [], enqueue_batch=batch)
run("DequeueRebatchingQueue", ["q"], ["x", "y"], num_elements=3)
run("CloseRebatchingQueue", ["q"], [])
run("DequeueRebatchingQueue", ["q"], ["x", "y"], num_elements=3)
run("DequeueRebatchingQueue", ["q"], ["x", "y"], num_elements=3)
run("EnqueueRebatchingQueue", ["q", "a", "b"], [])
for name in ("q0", "q1"):
    W.RunOperatorOnce(core.CreateOperator("CreateBlobsQueue", [], [name], capacity=9, num_blobs=2))
    feed(a=np.float32([7]), b=np.float32([8]))
    W.RunOperatorOnce(core.CreateOperator("EnqueueBlobs", [name, "a", "b"], ["a", "b"]))
    W.RunOperatorOnce(core.CreateOperator("CloseBlobsQueue", [name], []))
arguments = {"weights": [0.0, 1.0], "table_idx_blob": 1}
run("WeightedSampleDequeueBlobs", ["q0", "q1"], ["x", "table", "status"], **arguments)
run("WeightedSampleDequeueBlobs", ["q0", "q1"], ["x", "table", "status"], **arguments)

# Loops.
body = caffe2_pb2.NetDef(name="body", external_input=["i", "c", "v"], external_output=["next", "twice", "twice"])
body.op.extend([core.CreateOperator("Copy", ["c"], ["next"]), core.CreateOperator("Add", ["v", "v"], ["twice"])])
feed(m=np.int64([5]), yes=np.array([True]), no=np.array([False]), v=np.float32([1]))
run("ONNXWhile", ["m", "yes", "v"], ["last", "all"], body=body, has_trip_count=1)
run("ONNXWhile", ["m", "no", "v"], ["last"], body=body, has_cond=1, has_trip_count=1)
del body.external_output[2]
run("ONNXWhile", ["m", "no", "v"], ["last"], body=body, has_cond=1, has_trip_count=1)


# Tensor trains, compared with their definition in float64; TT with one sample at a time.
def same(name, want):
    """Print whether a blob holds these numbers, up to rounding."""
    value = W.FetchBlob(name)
    print(name, value.dtype, value.shape == want.shape and bool(np.allclose(value, want, 1e-4, 1e-4)))


rng = np.random.RandomState(0)
sizes = {"inp_sizes": [2, 3, 2], "out_sizes": [3, 2, 2], "tt_ranks": [1, 3, 2, 1]}
x, b, c = rng.randn(1, 12), rng.randn(12), rng.randn(62)
feed(x=np.float32(x), b=np.float32(b), c=np.float32(c))
W.RunOperatorOnce(core.CreateOperator("TT", ["x", "b", "c"], ["y"], **sizes))
last, middle, first = c[:8].reshape(2, 1, 2, 2), c[8:44].reshape(3, 2, 3, 2), c[44:].reshape(2, 3, 1, 3)
same("y", b + np.einsum("ijk,isao,jtsp,kutq->opq", x.reshape(2, 3, 2), first, middle, last).reshape(1, 12))
matrix = rng.randn(12, 12)
full = {**sizes, "tt_ranks": [1, 6, 4, 1]}
feed(c=tt_core.matrix_to_tt(matrix, **{name: np.array(value) for name, value in full.items()}))
W.RunOperatorOnce(core.CreateOperator("TT", ["x", "b", "c"], ["y"], **full))
same("y", x.dot(matrix.T) + b)
print(tt_core.init_tt_cores(**sizes).shape, tt_core.init_tt_cores(**sizes).dtype)
table = {"factor_i": [3, 4, 5], "factor_j": [2, 3, 4], "ranks": [1, 2, 3, 1], "emb_size": 24}
shapes = [(3, 1, 2, 2), (4, 2, 3, 3), (5, 3, 4, 1)]
cores, names = [rng.randn(*shape) for shape in shapes], ["core0", "core1", "core2"]
for name, values in zip(names, cores):
    W.FeedBlob(name, np.float32(values))
digits = np.int64([[0, 0, 0], [2, 3, 4], [2, 1, 1], [0, 1, 0], [2, 1, 1]])
feed(index=digits.dot([1, 3, 12]), lengths=np.int32([2, 0, 3]))
outputs = ["sums", "one", "two", "digits"]
op = core.CreateOperator("TTSparseLengthsSum", [*names, "index", "lengths"], outputs, **table)
W.RunOperatorOnce(op)
picked = [core[digits[:, k]] for k, core in enumerate(cores)]
segments = np.float64([[1, 1, 0, 0, 0], [0] * 5, [0, 0, 1, 1, 1]])
same("sums", np.einsum("gn,naib,nbjc,nckd->gijk", segments, *picked).reshape(3, 24))
same("one", picked[0].reshape(5, 2, 2))
same("two", np.einsum("naib,nbjc->nijc", *picked[:2]).reshape(5, 6, 3))
same("digits", digits)
d_sums = rng.randn(3, 24)
feed(sums_grad=np.float32(d_sums))
gradients, found = core.GradientRegistry.GetGradientForOp(op, ["sums_grad", None, None, None])
print([(g.type, list(g.input), list(g.output)) for g in gradients], [str(name) for name in found])
W.RunOperatorsOnce(gradients)
d_rows = segments.T.dot(d_sums).reshape(5, 2, 3, 4)
wanted = [
    np.einsum("nijk,nbjc,nckd->nib", d_rows, *picked[1:])[:, None],
    np.einsum("nijk,naib,nckd->nbjc", d_rows, picked[0], picked[2]),
    np.einsum("nijk,naib,nbjc->nck", d_rows, *picked[:2])[..., None],
]
for k, rows in enumerate(wanted):
    total = np.zeros(shapes[k])
    np.add.at(total, digits[:, k], rows)
    same(names[k] + "_grad", total)

# What writes to the log.
net = core.Net("logged")
net.LogInfo("begins", "ends")
print([(op.type, list(op.input), list(op.output)) for op in net.Proto().op])
