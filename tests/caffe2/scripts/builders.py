"""Loops, branches and guards of net_builder; tasks with several instances, by a session."""

from caffe2.python import workspace
from caffe2.python.net_builder import ops, NetBuilder
from caffe2.python.core import to_execution_step, Plan
from caffe2.python.task import Task, TaskGroup, WorkspaceType, final_output
from caffe2.python.session import LocalSession


def go(f):
    with NetBuilder() as nb:
        names = f()
    p = Plan("t")
    p.AddStep(to_execution_step(nb))
    ws = workspace.C.Workspace()
    ws.run(p)
    print(f.__name__, [ws.blobs[str(n)].fetch().tolist() for n in names])


def ifelse():
    y = ops.Const(0)
    with ops.loop(20) as l:
        y = ops.Add([y, ops.Const(1)], [y])
        with ops.If(ops.LT([y, ops.Const(5)])) as c:
            ops.Const(1, blob_out="small")
        with c.Elif(ops.EQ([y, ops.Const(7)])) as c:
            ops.Const(2, blob_out="seven")
            ops.stop()
        with c.Else():
            ops.Copy(y, "other")
    return [y, "small", "seven", "other", l.iter()]


def fact():
    x = ops.Const(5)
    y = ops.Const(1)
    with ops.loop():
        ops.stop_if(ops.LE([x, ops.Const(0)]))
        ops.Mul([y, x], [y])
        ops.Sub([x, ops.Const(1)], [x])
    return [x, y]


def nested():
    n = ops.Const(0)
    with ops.loop(3):
        with ops.loop(4):
            ops.Add([n, ops.Const(1)], [n])
        ops.Add([n, ops.Const(100)], [n])
    return [n]


def guard():
    out = []
    for v in (True, False):
        with ops.stop_guard() as g:
            ops.stop_if(ops.Const(v))
            ops.Const(1)
        out.append(g.has_stopped())
    return out


def inner():
    b = ops.Const(1)
    with ops.loop(ops.Const(6)):
        ops.Add([b, b], [b])
    return [b]


for f in (ifelse, fact, nested, guard, inner):
    go(f)
ws = workspace.C.Workspace()
s = LocalSession(ws)
with TaskGroup(WorkspaceType.GLOBAL) as tg:
    with Task(num_instances=3) as t:
        with ops.task_init():
            counter1 = ops.CreateCounter([], ["global_counter"])
            counter2 = ops.CreateCounter([], ["global_counter2"])
            counter3 = ops.CreateCounter([], ["global_counter3"])
        with ops.task_instance_init():
            task_counter = ops.CreateCounter([], ["task_counter"])
        local_counter = ops.CreateCounter([], ["local_counter"])
        with ops.loop(7):
            ops.CountUp(counter1)
            ops.CountUp(task_counter)
            ops.CountUp(local_counter)
        with ops.task_instance_exit():
            with ops.loop(ops.RetrieveCount(task_counter)):
                ops.CountUp(counter2)
        with ops.task_exit():
            ops.Copy(ops.RetrieveCount(counter1), "n1")
        with ops.task_reporter(10):
            ops.CountUp(counter3)
        o = final_output(counter2) if False else final_output("n1")
        with ops.task_exit():
            o2 = final_output(ops.RetrieveCount(counter2))
s.run(tg)
print(
    o.fetch(),
    o2.fetch(),
    sorted(n for n in ws.blobs if "counter" in n and "/" not in n) if hasattr(ws.blobs, "__iter__") else "",
)
with TaskGroup() as tg:
    with Task():
        a = ops.Const(3)
        oo = final_output(ops.Add([a, a]))
    with Task():
        q = ops.Const(4)
        o3 = final_output(q)
s.run(tg)
print(oo.fetch(), o3.fetch(), ws.blobs[str(q)].fetch())
s.run(tg)
print(oo.fetch())
