"""Steps of module control: how they are built, and what they do."""

from caffe2.python import core, control, workspace


def show(step, ind=0):
    flags = {
        k: getattr(step, k)
        for k in (
            "num_iter",
            "concurrent_substeps",
            "should_stop_blob",
            "only_once",
            "num_concurrent_instances",
            "create_workspace",
            "run_every_ms",
        )
        if step.HasField(k)
    }
    print("  " * ind + step.name, flags, list(step.network), step.report_net)
    for s in step.substep:
        show(s, ind + 1)


def plan(step):
    p = core.Plan(step).Proto()
    for n in p.network:
        print("net", n.name, [(o.type, list(o.input), list(o.output)) for o in n.op])
    for s in p.execution_step:
        show(s)


for f in ("Do", "DoParallel"):
    print(f)
    n1, n2 = core.Net("n1"), core.Net("n2")
    plan(getattr(control, f)("nm", n1, n2))
for f in ("DoUntil", "DoWhile", "Until", "While", "If", "IfNot"):
    print(f)
    c = core.Net("cond")
    blob = c.Const(True, blob_out="cc")
    c.AddExternalOutput(blob)
    plan(getattr(control, f)("nm", c, core.Net("body")))
    plan(getattr(control, f)("nm", "cblob", [core.Net("body"), core.Net("body2")]))
print("ifelse")
plan(control.If("nm", "cblob", core.Net("body"), core.Net("els")))
print("for")
plan(control.For("nm", core.Net("body"), 5))
print("switch")
c = core.Net("cond")
blob = c.Const(True, blob_out="cc")
c.AddExternalOutput(blob)
plan(control.Switch("nm", (c, core.Net("a")), ("bb", core.Net("b"))))
print("switchnot")
plan(control.SwitchNot("nm", ("aa", core.Net("a")), ("bb", core.Net("b"))))


def netp(n):
    n = n.Proto()
    print(
        n.name,
        [(o.type, list(o.input), list(o.output), [(a.name, a.i, list(a.ints)) for a in o.arg]) for o in n.op],
        list(n.external_input),
        list(n.external_output),
    )


def np_(x):
    print(x) if not isinstance(x, (tuple, core.Net)) else (
        netp(x) if isinstance(x, core.Net) else (netp(x[0]), print(x[1:]))
    )


c = core.Net("cond")
blob = c.Const(True, blob_out="cc")
c.AddExternalOutput(blob)
np_(control.NotNet(c))
c2 = core.Net("cond2")
blob = c2.Const(True, blob_out="c2")
c2.AddExternalOutput(blob)
np_(control.MergeConditionNets("mg", [c, c2], "And"))
print(control.GetConditionBlobFromNet(c))
np_(control.NotNet("q"))
for a in ([c, c2], [c], [c, c2, c]):
    np_(control.CombineConditions("cmb", a, "And"))
    np_(control.MergeConditionNets("mg", a, "Or"))
print("ifelse net")
plan(control.If("nm", c, core.Net("body"), core.Net("els")))
plan(control.IfNot("nm", c, core.Net("body"), core.Net("els")))
print(control.CombineConditions("cmb", [], "And"))
w = workspace
i = core.Net("i")
cnt = i.Const(0.0, blob_out="cnt")
one = i.Const(1.0, blob_out="one")
lim = i.Const(7.0, blob_out="lim")
fl = i.Const(False, blob_out="fl")
w.RunNetOnce(i)


def body():
    n = core.Net("bd")
    n.Add(["cnt", "one"], ["cnt"])
    return n


def cond(op):
    n = core.Net("cd")
    n.AddExternalOutput(getattr(n, op)(["cnt", "lim"], "cdd"))
    return n


def go(step):
    w.RunNetOnce(i)
    w.RunPlan(core.Plan(step))
    print(step.Name(), w.FetchBlob("cnt"))


go(control.For("x", body(), 5))
go(control.While("x", cond("LT"), body()))
go(control.Until("x", cond("GE"), body()))
go(control.DoUntil("x", cond("GE"), body()))
go(control.DoWhile("x", cond("LT"), [body(), body()]))
go(control.If("x", cond("LT"), body()))
go(control.If("x", cond("GT"), body(), [body(), body()]))
go(control.IfNot("x", cond("LT"), body()))
go(control.IfNot("x", "fl", body()))
go(control.If("x", "fl", body()))
go(control.For("x", control.If("y", cond("LT"), body()), 12))
go(control.Do("x", control.For("a", body(), 2), body(), control.DoParallel("p", body())))
go(control.Switch("x", (cond("LT"), body()), ("fl", body())))
go(control.SwitchNot("x", (cond("LT"), body()), ("fl", body())))
