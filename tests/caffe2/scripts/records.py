"""Records: what they are like, and what nets and workspaces do with them."""

from caffe2.python import schema, core, workspace
import numpy as np


def tried(f):
    try:
        return f()
    except Exception:
        return "error"


s = schema.Struct(
    ("a", np.int32),
    ("b", schema.List(np.float32)),
    ("m", schema.Map(np.int64, schema.List(str))),
    ("v", schema.Scalar()),
    ("c:d", schema.Scalar((np.float32, (3,)))),
    ("c:e", np.float64),
)
print(s.field_names(), s.field_types())
print(repr(s))
net = core.Net("n")
r = schema.NewRecord(net, s)
print(r.field_blobs())
print(schema.NewRecord(net, schema.Scalar(np.float32))(), schema.NewRecord(net, schema.List(np.float32)).field_blobs())
print(
    r.a(),
    r.a.id(),
    r.m.slice(),
    r.m["values"].slice(),
    r["m:values:values:lengths"](),
    r.m.keys(),
    r.m.lengths.id(),
    r.v.slice(),
    r.slice(),
    r.c.slice(),
)
print(schema.Scalar().dtype, schema.Scalar(blob=np.array([1, 2])).dtype, schema.Scalar(np.int32, [1, 2]).get())
print(
    schema.ConstRecord(
        core.Net("k"), schema.Struct(("a", schema.Scalar(np.float32, np.array([1.0, 2.0]))))
    ).field_blobs()
)
print(
    s == s.clone(), s == schema.Struct(("a", np.int32)), r == s, len(s), "a" in s, "c:d" in s, "m:values" in s, "x" in s
)
print(
    s[["a", "v"]].field_names(), s[0].field_types(), s["c"].field_names(), s["c:d"].dtype, s[("a", "c:d")].field_names()
)
for f in (
    lambda: s["nope"],
    lambda: s.nope,
    lambda: s.get("nope", 3),
    lambda: s.get("a", 3).dtype,
    lambda: setattr(s, "q", 1),
    lambda: schema.Scalar().get(),
    lambda: schema.Struct(("a", int), ("a", int)),
    lambda: schema.Struct(("a:b", int), ("a:c", int)).field_names(),
    lambda: (
        schema.Struct(("a", schema.Struct(("x", int)))) + schema.Struct(("a", schema.Struct(("y", int))), ("z", float))
    ),
    lambda: (s - schema.Struct(("a", int), ("c:e", float))).field_names(),
    lambda: s + schema.Struct(("a", int)),
    lambda: schema.Tuple(int, schema.List(float)).field_names(),
    lambda: schema.NamedTuple("q", int, float).field_names(),
    lambda: schema.RawTuple(2).field_names(),
    lambda: schema.RawTuple(2, "z").field_types(),
    lambda: schema.as_record({"a": int, "b": float}).field_types(),
    lambda: schema.as_record(np.float32),
    lambda: schema.from_blob_list(s, [1]),
    lambda: schema.from_blob_list(schema.Struct(("a", int), ("b", float)), [np.array([1]), [2]]).field_blobs(),
    lambda: schema.from_column_list(s.field_names(), s.field_types()) == s,
    lambda: repr(schema.from_column_list(["a:lengths", "a:values:x", "a:values:y", "b"])),
    lambda: schema.equal_schemas(r, s),
    lambda: schema.equal_schemas(r, schema.Struct(("a", int))),
    lambda: schema.is_schema_subset(schema.Struct(("a", int)), s),
    lambda: schema.is_schema_subset(s, schema.Struct(("a", int))),
    lambda: schema.schema_check(s, s) == s,
    lambda: schema.schema_check(s, schema.Struct(("a", int))),
    lambda: schema.data_type_for_dtype(np.dtype("float16")),
    lambda: schema.data_type_for_dtype(np.dtype((np.int32, (2,)))),
    lambda: schema.data_type_for_dtype(np.dtype("complex64")),
    lambda: schema.dtype_for_core_type(1),
    lambda: schema.dtype_for_core_type(4),
    lambda: schema.dtype_for_core_type(99),
    lambda: schema.from_dtype(np.dtype((np.int32, (4,)))),
    lambda: schema.Scalar(np.float32, metadata=schema.Metadata(categorical_limit=3)),
    lambda: schema.Scalar(np.int32, metadata=schema.Metadata(categorical_limit=3)).metadata,
    lambda: schema.Scalar((np.float32, (3,)), np.zeros((2, 3))).get().dtype,
    lambda: schema.Scalar(np.float32, 3).get(),
    lambda: schema.Scalar((np.void, (2,))),
    lambda: schema.List(schema.Struct(("x", int), ("y", float))).x.dtype,
    lambda: schema.List(int).items.dtype,
    lambda: schema.List(int).values,
    lambda: schema.List(int)["values"].dtype,
    lambda: schema.List(int)["q"],
    lambda: schema.ListWithEvicted(int).field_names(),
    lambda: schema.MapWithEvicted(int, float).field_names(),
    lambda: schema.ListWithEvicted(int),
    lambda: schema.Map(int, float, "k", "v").field_names(),
    lambda: schema.Struct(("", int)),
    lambda: schema.Struct(("a", None)).field_types(),
    lambda: schema.Struct(("a", core.BlobReference("z"))).a(),
    lambda: s.get_children()[0],
    lambda: schema.Scalar(np.int32).field_metadata(),
    lambda: s.has_blobs(),
    lambda: r.has_blobs(),
    lambda: r.clone_schema().has_blobs(),
    lambda: schema.Struct().field_names(),
    lambda: repr(schema.Struct()),
    lambda: schema.Scalar(str, np.array(["a", "bc"])).get().dtype,
    lambda: schema.Scalar(bytes).dtype,
    lambda: schema.Scalar(object).dtype,
    lambda: schema.Scalar(np.int32, np.array([1.5])).get(),
    lambda: schema.Scalar(bool).dtype,
):
    print(tried(f))
net = core.Net("m")
rec = net.set_input_record(schema.Struct(("x", np.float32), ("y", schema.List(np.int64))))
print(rec.field_blobs(), net.external_inputs, net.input_record() == rec)
h = net.Relu(rec.x(), "h")
net.set_output_record(schema.Struct(("h", h)))
net.AppendOutputRecordField("l", schema.List(rec.y["values"](), rec.y.lengths()))
print(net.output_record().field_names(), net.external_outputs)
c = net.Clone("c", blob_remap={"x": "xx"})
print(c.input_record().field_blobs(), c.output_record().field_blobs())
b, m = core.clone_and_bind_net(
    net,
    "b",
    "pre/",
    inputs=schema.Struct(
        ("x", core.BlobReference("in")), ("y", schema.List(core.BlobReference("v"), core.BlobReference("l")))
    ),
)
print(
    b.Proto().op[0].input,
    b.Proto().op[0].output,
    b.input_record().field_blobs(),
    b.output_record().field_blobs(),
    b.external_inputs,
    sorted((str(k), str(v)) for k, v in m.items()),
)
n2 = core.Net("n2")
n2.AddExternalInput("p/a:lengths", "p/a:values", "q")
n2.recover_input_record_by_prefix("p/")
print(repr(n2.input_record()))
rec = schema.NewRecord(core.Net("z"), schema.Struct(("x", np.float32), ("s", str), ("i", np.int32)))
schema.FeedRecord(rec, [np.array([1, 2], np.float32), np.array(["a", "b"], dtype=object), np.array([3], np.int32)])
f = schema.FetchRecord(rec)
print(f.x(), f.i(), f.s().tolist(), f.x().dtype)
schema.FeedRecord(rec, f)
workspace.FeedBlob("x", np.array([1.5]))
print(schema.FetchRecord(rec).x().dtype)
net = core.Net("e")
r = schema.InitEmptyRecord(net, schema.Struct(("a", np.int32), ("f", schema.Scalar((np.float32, (3,)))), ("s", str)))
workspace.RunNetOnce(net)
print([workspace.FetchBlob(b).shape for b in r.field_blobs()], [list(o.output) for o in net.Proto().op])
print(tried(lambda: schema.InitEmptyRecord(core.Net("e"), schema.Scalar(), enforce_types=True)))
