"""Data sets, readers, writers, pipes between tasks, and a queue of records."""

from caffe2.python import core, dataio, pipeline, record_queue, workspace
from caffe2.python.dataset import Dataset
from caffe2.python.schema import Struct, List, Map, NewRecord, FeedRecord, FetchRecord
from caffe2.python.net_builder import ops
from caffe2.python.task import TaskGroup
from caffe2.python.session import LocalSession
import numpy as np

W = workspace


def tried(f):
    try:
        return f()
    except Exception:
        return "error"


s = Struct(("x", np.int32), ("l", List(np.float32)), ("m", Map(np.int64, List(np.int32))))
init = core.Net("init")
ds = Dataset(s, name="ds")
ds.init_empty(init)
print(ds.field_names(), ds.content().field_blobs(), ds.name)
src = NewRecord(init, s)
W.RunNetOnce(init)
vals = [
    np.array([1, 2, 3, 4, 5], np.int32),
    np.array([1, 0, 2, 1, 1], np.int32),
    np.array([0.1, 0.2, 0.3, 0.4, 0.5], np.float32),
    np.array([2, 1, 0, 1, 0], np.int32),
    np.array([10, 11, 12, 13], np.int64),
    np.array([1, 2, 0, 1], np.int32),
    np.array([7, 8, 9, 6], np.int32),
]
FeedRecord(src, vals)
wn = core.Net("w")
wi = core.Net("wi")
wr = ds.writer(wi)
W.RunNetOnce(wi)
wr.write_record(wn, src)
wr.commit(wn)
W.RunNetOnce(wn)
W.RunNetOnce(wn)
print([a.tolist() for a in FetchRecord(ds.content()).field_blobs()])
for bs, enf in ((3, False), (4, True), (1, False)):
    ri = core.Net("ri")
    rd = ds.reader(ri, batch_size=bs, enforce_batch_size=enf, cursor_name="cur")
    W.RunNetOnce(ri)
    rn = core.Net("rn")
    stop, rec = rd.read_record(rn)
    W.CreateNet(rn)
    for _i in range(12):
        W.RunNet(rn)
        st = bool(W.FetchBlob(stop))
        print(bs, st, [a.tolist() for a in FetchRecord(rec).field_blobs()])
        if st:
            break
    rs = core.Net("rs")
    rd.reset(rs)
    W.RunNetOnce(rs)
    W.RunNet(rn)
    print(W.FetchBlob(rec.x()).tolist(), str(stop), rec.field_blobs())
print(
    rn.Proto().op[0].type,
    list(rn.Proto().op[0].output),
    [(a.name, a.i) for a in rn.Proto().op[0].arg],
    rn.Proto().op[1].type,
)
tn = core.Net("t")
ds.trim(tn, 4)
W.RunNetOnce(tn)
print([a.tolist() for a in FetchRecord(ds.content()).field_blobs()])
ri = core.Net("ri")
idx = ri.GivenTensorInt64Fill([], "idx", shape=[4], values=[3, 0, 2, 6])
rd = ds.random_reader(ri, idx, batch_size=3)
rd.computeoffset(ri)
W.RunNetOnce(ri)
print(W.FetchBlob(rd.offsets).tolist())
rn = core.Net("rn")
stop, rec = rd.read_record(rn)
W.CreateNet(rn)
for _i in range(3):
    W.RunNet(rn)
    print(W.FetchBlob(stop), [a.tolist() for a in FetchRecord(rec).field_blobs()])
ri = core.Net("ri")
rd = ds.random_reader(ri, batch_size=2, loop_over=True)
rd.sort_and_shuffle(ri, "x", 1, 4)
rd.computeoffset(ri)
W.RunNetOnce(ri)
print(sorted(W.FetchBlob(rd.indices).tolist()))
rn = core.Net("rn")
stop, rec = rd.read_record(rn)
W.CreateNet(rn)
for _i in range(6):
    W.RunNet(rn)
    print(W.FetchBlob(stop), W.FetchBlob(rec.x()).shape)
W.FeedBlob(ds.content().x(), np.array([1], np.int32))
cn = core.Net("c")
wr.commit(cn)
FeedRecord(ds.content(), vals)
pn = core.Net("p")
pk = pn.PackRecords(ds.content().field_blobs(), "pk", fields=ds.field_names())
out = pn.UnPackRecords([pk], [n + "_u" for n in ds.field_names()], fields=ds.field_names())
W.RunNetOnce(pn)
print([W.FetchBlob(o).tolist() for o in out])
an = core.Net("a")
a = an.Const(np.array([[1, 2]], np.float32))
b = an.Const(np.array([[3, 4], [5, 6]], np.float32))
an.Append([a, b], [a])
W.RunNetOnce(an)
print(W.FetchBlob(a).tolist())
tv = core.Net("tv")
v = tv.CreateTensorVector([], "tvec")
x = tv.Const(np.array([1.0, 2.0], np.float32))
tv.CollectTensor([v, x], [v], num_to_collect=3)
tv.CollectTensor([v, x], [v], num_to_collect=3)
sz = tv.TensorVectorSize(v, "tsz")
cc = tv.ConcatTensorVector(v, "tcc")
W.RunNetOnce(tv)
print(W.FetchBlob(sz), W.FetchBlob(cc))


# reader step, pipes
def counted(limit):
    return dataio.ReaderWithLimit(dataio.CounterReader(), limit)


ws = W.C.Workspace()
ss = LocalSession(ws)


def make(n, net, start=0):
    d = Dataset(Struct(("v", np.float32)), name="dd")
    d.init_empty(net)
    return d


for threads, rt in ((1, 1), (3, 1), (1, 3)):
    init = core.Net("init")
    with core.NameScope("k%d%d" % (threads, rt)):
        dst = Dataset(Struct(("doubled", np.int64), ("one", np.int64)), name="dst")
        dst.init_empty(init)
    ss.run(init)

    def double(rec):
        return Struct(("doubled", ops.Add([rec.iter(), rec.iter()])), ("one", ops.Const(np.array([1], np.int64))))

    def reshape(rec):
        net = core.Net("rs")
        y, _ = net.Reshape(rec.doubled(), 2, shape=[1])
        return [net], Struct(("doubled", y), ("one", rec.one()))

    with TaskGroup() as tg:
        q = pipeline.pipe(counted(20), processor=double, num_threads=threads, num_runtime_threads=rt, capacity=4)
        w, outs = pipeline.pipe_and_output(
            q, dst.writer(), processor=reshape, num_threads=threads, num_runtime_threads=rt
        )
    ss.run(tg)
    print(
        type(q).__name__,
        q.schema().field_names(),
        sorted(ws.blobs[str(dst.content().doubled())].fetch().tolist()),
        ws.blobs[str(dst.content().one())].fetch().sum(),
        outs,
    )
ws = W.C.Workspace()
ss = LocalSession(ws)
lim = counted(7)
with TaskGroup() as tg:
    out = pipeline.pipe(lim, processor=lambda r: Struct(("a", ops.Copy(r.iter()))), num_threads=2)
    pipeline.pipe(out, num_threads=2, processor=lambda r: (ops.CountUp("cnt"), None)[1], name="count")
net = core.Net("cn")
net.CreateCounter([], "cnt", init_count=0)
ss.run(net)
ss.run(tg)
net = core.Net("g")
net.RetrieveCount("cnt", "got")
ss.run(net)
print(ws.blobs["got"].fetch())
c = dataio.CompositeReader(["a", "b"], [counted(9), counted(9)])
print(c.schema().field_names())
ws = W.C.Workspace()
ss = LocalSession(ws)
net = core.Net("cn")
net.CreateCounter([], "cnt", init_count=0)
ss.run(net)
with TaskGroup() as tg:
    pipeline.pipe(c, processor=lambda r: (ops.CountUp("cnt"), None)[1])
ss.run(tg)
net = core.Net("g")
net.RetrieveCount("cnt", "got")
ss.run(net)
print(ws.blobs["got"].fetch())
rdr = dataio.ReaderWithTimeLimit(dataio.CounterReader(), 0.2)
with TaskGroup() as tg:
    pipeline.pipe(rdr, processor=lambda r: (ops.Copy(r.iter()), None)[1])
ss.run(tg)
print("timed")
print(pipeline.processor_name(double), pipeline.processor_name(lambda x: x))
net = core.Net("proc")
inp = net.set_input_record(Struct(("iter", np.int64)))
y = net.Add([inp.iter(), inp.iter()])
net.set_output_record(Struct(("y", y)))
with TaskGroup() as tg:
    q = pipeline.pipe(counted(5), processor=pipeline.NetProcessor(net), num_threads=2)
    pipeline.pipe(q, processor=lambda r: (ops.CountUp("cnt"), None)[1])
ss.run(tg)
net = core.Net("g")
net.RetrieveCount("cnt", "got")
ss.run(net)
print(ws.blobs["got"].fetch())
init = core.Net("i2")
d2 = Dataset(Struct(("v", np.float32)), name="d2")
d2.init_empty(init)
W.RunNetOnce(init)
FeedRecord(d2.content(), [np.arange(10, dtype=np.float32)])
init = core.Net("i3")
rd = d2.reader(init, batch_size=3)
d3 = Dataset(Struct(("v", np.float32)), name="d3")
d3.init_empty(init)
wr = d3.writer(init)
W.RunNetOnce(init)
rq = record_queue.RecordQueue(Struct(("v", np.float32)), num_threads=2)
qr, fill, close, flds = rq.build(rd, lambda net, r: Struct(("v", net.Mul([r.v(), r.v()]))))
step, rec = qr.execution_step("consume")
n = core.Net("wrt")
wr.write_record(n, rec)
cons = core.execution_step(
    "c",
    [
        core.execution_step("a", step.get_net("consume") if hasattr(step, "get_net") else None),
        core.execution_step("b", n),
    ],
    should_stop_blob=core.BlobReference(step.Proto().should_stop_blob),
)
p = core.Plan("pp")
p.AddStep(core.execution_step("all", [core.execution_step("prod", [fill, close]), cons], concurrent_substeps=True))
W.RunPlan(p)
print(sorted(W.FetchBlob(d3.content().v()).tolist()))
