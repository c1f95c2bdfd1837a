"""Random nets of If, While, ParallelDo and RecurrentNetwork, nested, with what NumPy computes for them in float64.

Blobs are shared, tied, overwritten in place or by other operators, read inside and outside of branches and loops, and
local to them. ``check`` compares values with an interpreter, and gradients with finite differences of the interpreter.
From the command line, ``python -m control_nets --first 0 --count 1000`` tries many and prints what differs.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
import sys
import time
from collections import Counter

import numpy as np

from netbuilder.graph import Net
from netbuilder.model import ModelHelper, brew
from netbuilder.proto import PROTO_CPU, GradientError, NetDef
from netbuilder.proto.arguments import arguments, make_op
from netbuilder.runtime import Workspace

SHAPE = (2, 2, 2)
UNARY = ("Tanh", "Sigmoid", "Scale", "Negative", "Copy", "Sin")
BINARY = ("Add", "Sub", "Mul")
IN_PLACE = ("Tanh", "Sigmoid", "Scale", "Negative", "Sum")
READS_NOTHING = ("Scale", "Negative", "Copy", "Sum")  # in the gradient
EXECUTORS = ("simple", "dag", "async_scheduling")


# -- what the nets compute ------------------------------------------------------------------------

FORMULAS = {
    "Tanh": np.tanh,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Negative": np.negative,
    "Copy": lambda x: x,
    "Sin": np.sin,
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "LT": np.less,
    "Sum": lambda *xs: sum(xs),
    "SumElements": np.sum,
}


def interpret(ops, blobs):
    """Run operators on ``blobs``, name -> array, which is changed."""
    for op in ops:
        args = arguments(op)
        if op.type == "If":
            chosen = args["then_net"] if blobs[op.input[0]].all() else args.get("else_net")
            interpret(chosen.op if chosen is not None else [], blobs)
        elif op.type == "While":
            while True:
                interpret(args["cond_net"].op if "cond_net" in args else [], blobs)
                if not blobs[op.input[0]].all():
                    break
                interpret(args["loop_net"].op, blobs)
        elif op.type == "ParallelDo":
            _parallel_do(op, args, blobs)
        elif op.type == "RecurrentNetwork":
            _recurrent(op, args, blobs)
        else:
            xs = [blobs[name] for name in op.input]
            if op.type == "Scale":
                blobs[op.output[0]] = xs[0] * args["scale"]
            elif op.type == "ReduceSum":
                blobs[op.output[0]] = xs[0].sum(axis=0)
            else:
                blobs[op.output[0]] = FORMULAS[op.type](*xs)


def _texts(value):
    return [text.decode() if isinstance(text, bytes) else text for text in value]


def _parallel_do(op, args, blobs):
    inner_inputs, modes = _texts(args["inner_inputs"]), _texts(args["modes"])
    count = min(len(args["devices"]), SHAPE[0])
    results = []
    for device in range(count):
        local = {}
        for outer, inner, mode in zip(op.input, inner_inputs, modes):
            x = blobs[outer]
            local[inner] = np.array_split(x, count)[device] if mode == "split" else x
        interpret(args["net"].op, local)
        results.append(local)
    for outer, inner, merge in zip(op.output, _texts(args["inner_outputs"]), _texts(args["merge"])):
        parts = [local[inner] for local in results]
        blobs[outer] = np.concatenate(parts) if merge == "concat" else sum(parts) / (count if merge == "mean" else 1)


def _recurrent(op, args, blobs):
    links = list(zip(_texts(args["link_internal"]), _texts(args["link_external"]), args["link_offset"]))
    state = blobs[op.input[1]].reshape(1, *SHAPE[1:])
    rows = [state]
    for t in range(SHAPE[0]):
        local = {name: blobs[name] for name in op.input}
        for internal, external, offset in links:
            if external != "states":
                local[internal] = blobs[external][t : t + 1]
            elif not offset:
                local[internal] = rows[t]
        interpret(args["step_net"].op, local)
        rows += [local[internal] for internal, external, offset in links if external == "states" and offset]
    blobs[op.output[0]] = np.concatenate(rows[1:])


# -- the nets -------------------------------------------------------------------------------------


class RandomNet:
    """A random net with a loss.

    Args:
        seed: of the random choices.
        deepest: how deep operators with nets contain each other.
        helpers: build branches and loops by ``brew.cond`` and ``brew.loop``, else as operators.

    Attributes:
        ops: the operators; the last one writes "loss".
        feeds: the values that exist before.
        leaves: the names of those that the loss is differentiated for.
    """

    def __init__(self, seed, *, deepest=2, helpers=False, flat=False):
        self.random = random.Random(seed)
        self.helpers = helpers
        self.kinds = [] if flat else [self._branch, self._loop, self._devices, self._sequence]
        self._numbers = itertools.count()
        values = np.random.default_rng(seed)
        self.leaves = ["x0", "x1", "x2", "w0"]
        self.feeds = {name: values.normal(size=SHAPE[name == "w0" :]) for name in self.leaves}
        for k in range(3):
            self.feeds[f"b{k}"] = np.array([self.random.random() < 0.5])
            self.feeds[f"k{k}"] = values.normal(size=SHAPE)
        self.feeds["one"] = np.ones(1)
        for n in range(4):
            self.feeds[f"n{n}"] = np.array([float(n)])
        self.ops = []
        scope = _Scope(["x0", "x1", "x2"], ["w0"], ["b0", "b1", "b2"])
        self._block(self.ops, scope, self.random.randint(4, 7), deepest)
        self._loss(scope)

    def _new(self, stem="t"):
        return f"{stem}{next(self._numbers)}"

    def _loss(self, scope):
        terms = []
        for k, blob in enumerate(self.random.sample(scope.full[-6:], 3)):
            self.ops.append(make_op("Mul", [blob, f"k{k}"], [f"product{k}"]))
            self.ops.append(make_op("SumElements", [f"product{k}"], [f"term{k}"]))
            terms.append(f"term{k}")
        self.ops.append(make_op("Sum", terms, ["loss"]))

    def _block(self, ops, scope, count, deepest):
        kinds = [kind for kind in self.kinds if scope.kind != "device" or kind in (self._branch, self._loop)]
        if scope.kind == "step":  # a step net cannot contain nets
            kinds = []
        for _ in range(count):
            if deepest and kinds and self.random.random() < 0.45:
                self.random.choice(kinds)(ops, scope, deepest - 1)
            else:
                self._simple(ops, scope)

    def _simple(self, ops, scope):
        r = self.random
        kind = r.choice((*UNARY, *BINARY, *BINARY, "Sum", "Sum"))
        a = scope.pick(r)
        if kind in UNARY:
            inputs, args = [a], {"scale": r.choice((0.5, -1.5))} if kind == "Scale" else {}
        elif kind == "Sum":
            inputs, args = [a, *(scope.pick(r) for _ in range(r.randint(1, 2)))], {}
        elif scope.small and r.random() < 0.2:
            inputs, args = [a, r.choice(scope.small)], {"broadcast": 1}
        else:
            inputs, args = [a, scope.pick(r)], {}
        output = self._target(scope, kind, inputs)
        ops.append(make_op(kind, inputs, [output], **args))
        scope.wrote(output)
        if kind not in READS_NOTHING and scope.kind != "loop":
            scope.needed.update(inputs if kind not in ("Tanh", "Sigmoid") else [output])

    def _target(self, scope, kind, inputs):
        """Return the blob that an operator writes: a new one, or one whose value no gradient seems to need."""
        r = self.random
        free = [blob for blob in scope.full if blob not in scope.needed and blob in scope.writable]
        if kind in IN_PLACE and inputs[0] in free and r.random() < 0.4:
            return inputs[0]
        others = [blob for blob in free if blob not in inputs]
        if others and r.random() < (0.5 if scope.kind == "loop" else 0.25):
            return r.choice(others)
        return self._new()

    def _result(self, ops, scope, output):
        """End a net with an operator that writes ``output``."""
        r = self.random
        kind = r.choice(("Copy", "Add", "Sum"))
        inputs = [scope.pick(r) for _ in range(1 if kind == "Copy" else 2)]
        if output not in inputs:
            ops.append(make_op(kind, inputs, [output]))
            scope.needed.update(inputs if kind == "Add" else ())
            scope.wrote(output)

    def _condition(self, ops, scope):
        if scope.counter and self.random.random() < 0.5:
            name = self._new("c")
            ops.append(make_op("LT", [scope.counter, "n1"], [name]))
            return name
        return self.random.choice(scope.flags)

    def _branch(self, ops, scope, deepest):
        r, condition = self.random, self._condition(ops, scope)
        nets, inner = [], []
        both = r.random() < 0.7
        result = self._new("o") if both else ""
        for _ in range(2 if both else 1):
            own = scope.inner(scope.kind if scope.kind == "device" else "branch")
            body = []
            self._block(body, own, r.randint(0 if both else 1, 3), deepest)
            if both:
                self._result(body, own, result)
            nets.append(body)
            inner.append(own)
        names = {"then_net": nets[0], **({"else_net": nets[1]} if both else {})}
        self._add(ops, "If", condition, names, scope, [result] if both else [])
        for own in inner:
            scope.needed |= own.needed & set(scope.full)
        if result:
            scope.wrote(result)

    def _loop(self, ops, scope, deepest):
        r = self.random
        counter, condition = self._new("i"), self._new("c")
        ops.append(make_op("Sub", ["one", "one"], [counter]))
        ops.append(make_op("LT", [counter, "one"], [condition]))
        own = scope.inner(scope.kind if scope.kind == "device" else "loop")
        own.counter = counter
        body = []
        self._block(body, own, r.randint(1, 3), deepest)
        carried = [blob for blob in scope.full if blob in scope.writable and blob not in scope.needed]
        if carried and r.random() < 0.8:
            self._result(body, own, r.choice(carried))
            scope.needed.difference_update(body[-1].output)
        body.append(make_op("Add", [counter, "one"], [counter]))
        scope.needed.update(blob for blob in _reads(body) if blob in scope.known)
        again = [make_op("LT", [counter, f"n{r.choice((0, 1, 2, 2, 3))}"], [condition])]
        self._add(ops, "While", condition, {"loop_net": body, "cond_net": again}, scope, [])

    def _add(self, ops, kind, condition, bodies, scope, results):
        """Append an If or While; blobs around it that only one of its nets writes are among its inputs."""
        written = dict.fromkeys(blob for body in bodies.values() for op in body for blob in op.output)
        outputs = [blob for blob in written if blob in scope.known or blob in results or blob == condition]
        if kind == "While":
            outputs += [blob for blob in written if blob == scope.counter]
            counters = [body[-1].output[0] for body in list(bodies.values())[:1]]
            outputs += [blob for blob in counters if blob not in outputs]
        read = dict.fromkeys(blob for body in bodies.values() for blob in _reads(body))
        read.update((blob, None) for blob in outputs if blob not in results)
        read.pop(condition, None)
        if self.helpers:
            model = ModelHelper(name=self._new("model"))
            nets = [Net(NetDef(name=name, op=body)) for name, body in bodies.items()]
            (brew.cond if kind == "If" else brew.loop)(model, condition, [condition, *read, *outputs], *nets)
            ops.append(model.net.Proto().op[-1])
            scope.known.update(blob for blob in ops[-1].output)
            return
        nets = {name: NetDef(name=name, op=body) for name, body in bodies.items()}
        ops.append(make_op(kind, [condition, *read], outputs, **nets))

    def _devices(self, ops, scope, deepest):
        r, prefix = self.random, self._new("p") + "/"
        split = list(dict.fromkeys(scope.pick(r) for _ in range(r.randint(1, 2))))
        inner = {blob: prefix + blob for blob in split}
        whole = {blob: prefix + blob for blob in (*scope.small, *scope.flags)}
        whole.update((blob, blob) for blob in ("one", "n0", "n1", "n2", "n3"))
        own = _Scope([*inner.values()], [whole[b] for b in scope.small], [whole[b] for b in scope.flags], "device")
        body = []
        self._block(body, own, r.randint(1, 4), deepest)
        merge = r.choice(("concat", "concat", "sum", "mean"))
        result, output = self._new(prefix + "r"), self._new("o")
        if merge == "concat":
            self._result(body, own, result)
        else:
            body.append(make_op("ReduceSum", [own.pick(r)], [result], axes=[0], keepdims=0))
        read = set(_reads(body))
        inputs = [*inner.items(), *((blob, name) for blob, name in whole.items() if name in read)]
        ops.append(
            make_op(
                "ParallelDo",
                [blob for blob, _ in inputs],
                [output, output + "_sizes"],
                net=NetDef(name="block", op=body),
                devices=list(range(r.choice((1, 2, 2)))),
                device_type=PROTO_CPU,
                inner_inputs=[name for _, name in inputs],
                modes=["split"] * len(split) + ["whole"] * (len(inputs) - len(split)),
                inner_outputs=[result],
                merge=[merge],
            )
        )
        scope.needed.update(blob for blob, _ in inputs)
        scope.wrote(output, small=merge != "concat")
        scope.needed.add(output)

    def _sequence(self, ops, scope, deepest):
        r, prefix = self.random, self._new("s") + "/"
        small = list(scope.small)
        if not small or r.random() < 0.5:
            ops.append(make_op("ReduceSum", [scope.pick(r)], [name := self._new("w")], axes=[0], keepdims=0))
            scope.wrote(name, small=True)
            small.append(name)
        initial = r.choice(small)
        sequences = [scope.pick(r) for _ in range(r.randint(1, 2))]  # may be the same one twice
        internal = [f"{prefix}x{k}" for k in range(len(sequences))]
        own = _Scope([prefix + "h_prev", *internal], small, scope.flags, "step")
        body = []
        self._block(body, own, r.randint(1, 3), deepest)
        self._result(body, own, prefix + "s")
        body.append(make_op("Tanh", [prefix + "s"], [prefix + "h"]))
        ends = {prefix + "h_prev", *internal}
        read = [blob for blob in _reads(body) if blob not in ends]
        output = self._new("o")
        inputs = list(dict.fromkeys([sequences[0], initial, *sequences, *read]))
        ops.append(
            make_op(
                "RecurrentNetwork",
                inputs,
                [output, output + "_work"],
                step_net=NetDef(name="step", op=body),
                recurrent_states=["states"],
                initial_recurrent_state_ids=[1],
                link_internal=[prefix + "h_prev", prefix + "h", *internal],
                link_external=["states", "states", *sequences],
                link_offset=[0, 1, *(0 for _ in internal)],
                alias_src=["states"],
                alias_dst=[output],
                alias_offset=[1],
                timestep=prefix + "timestep",
            )
        )
        scope.needed.update(inputs)
        scope.wrote(output)
        scope.needed.add(output)


class _Scope:
    """The blobs that operators of one net may use.

    Args:
        full, small: of the shape of a batch, and of one sample.
        flags: conditions.
        kind: of the operator that contains the net.
    """

    def __init__(self, full, small, flags, kind=""):
        self.full, self.small, self.flags, self.kind = list(full), list(small), list(flags), kind
        self.known = {*full, *small}
        self.writable = set() if kind in ("device", "step") else set(full)
        self.needed = set()
        self.counter = ""

    def inner(self, kind):
        """Return a scope for a net that uses the same names."""
        made = _Scope(self.full, self.small, self.flags, kind)
        made.needed, made.counter, made.writable = set(self.needed), self.counter, set(self.writable)
        return made

    def pick(self, r):
        """Return a blob, more often a late one."""
        return r.choice(self.full[-4:] if r.random() < 0.6 else self.full)

    def wrote(self, blob, small=False):
        self.known.add(blob)
        self.needed.discard(blob)
        names = self.small if small else self.full
        if blob not in names:
            names.append(blob)
            if not small:
                self.writable.add(blob)


def _reads(ops):
    """Return the blobs that operators read before they write them."""
    read, written = {}, set()
    for op in ops:
        read.update((name, None) for name in op.input if name not in written)
        written.update(op.output)
    return list(read)


# -- the check ------------------------------------------------------------------------------------


def values_of(net, feeds):
    blobs = dict(feeds)
    interpret(net.ops, blobs)
    return blobs


def finite_differences(net, leaf, step=1e-6):
    """Return the slopes of the loss, as the interpreter computes it."""
    slopes = np.zeros(net.feeds[leaf].shape)
    for index in np.ndindex(slopes.shape):
        ends = []
        for sign in (1, -1):
            moved = net.feeds[leaf].copy()
            moved[index] += sign * step
            ends.append(values_of(net, {**net.feeds, leaf: moved})["loss"])
        slopes[index] = (ends[0] - ends[1]) / (2 * step)
    return slopes


def run(net, executor, **options):
    """Return the workspace in which a net has run with its gradients, and where these are."""
    graph = Net(NetDef(name="random", op=net.ops, external_input=list(net.feeds)))
    gradients = graph.AddGradientOperators(["loss"])
    proto = graph.Proto()
    proto.type = executor
    proto.num_workers = 1 if executor == "simple" else 3
    workspace = Workspace(**options)
    for blob, value in net.feeds.items():
        workspace.feed(blob, value)
    found = [str(gradients[leaf]) for leaf in net.leaves if leaf in gradients]
    workspace.create_net(proto, observable=["loss", *found])
    workspace.run_net(proto.name)
    return workspace, gradients


def check(net, executors=("simple",), rtol=1e-5, **options):
    """Raise AssertionError if values or gradients differ from NumPy's.

    Raises:
        GradientError: the net has no gradient, since a value that it needs is overwritten.
    """
    want = values_of(net, net.feeds)
    slopes = {}
    for executor in executors:
        workspace, gradients = run(net, executor, **options)
        np.testing.assert_allclose(workspace.fetch("loss"), want["loss"], rtol=1e-9, atol=1e-12, err_msg="loss")
        for leaf in set(net.leaves).intersection(_reads(net.ops)):  # the others are overwritten first
            if leaf not in slopes:
                slopes[leaf] = finite_differences(net, leaf)
            slope = slopes[leaf]
            found = workspace.fetch(str(gradients[leaf])) if leaf in gradients else np.zeros_like(slope)
            near = rtol * max(1.0, np.abs(slope).max())
            np.testing.assert_allclose(found, slope, rtol=rtol, atol=near, err_msg=f"gradient of {leaf}, {executor}")


def listing(ops, indent=""):
    """Return a text with one line for each operator."""
    lines = []
    for op in ops:
        args = arguments(op)
        nets = {name: value for name, value in args.items() if isinstance(value, NetDef)}
        rest = {name: value for name, value in args.items() if name not in nets}
        lines.append(f"{indent}{op.type} {list(op.input)} -> {list(op.output)} {rest or ''}")
        lines += [f"{indent}  {name}:\n{listing(net.op, indent + '    ')}" for name, net in nets.items()]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--deepest", type=int, default=2)
    parser.add_argument("--executors", nargs="+", default=["simple"])
    parser.add_argument("--helpers", action="store_true", help="build by brew.cond and brew.loop")
    parser.add_argument("--show", action="store_true", help="print the nets")
    parser.add_argument("--flat", action="store_true", help="no branches and loops")
    given = parser.parse_args()
    found, kinds, started = Counter(), Counter(), time.time()
    for seed in range(given.first, given.first + given.count):
        net = RandomNet(seed, deepest=given.deepest, helpers=given.helpers, flat=given.flat)
        if given.show:
            print(listing(net.ops))
        try:
            check(net, given.executors)
        except GradientError as error:
            found["refused"] += 1
            kinds[re.sub(r"'.*?'|\d+", "_", str(error))[:150]] += 1
        except Exception as error:
            found["wrong"] += 1
            print(f"seed {seed}: {type(error).__name__}: {' '.join(str(error).split())[:700]}", flush=True)
        else:
            found["right"] += 1
    for text, count in kinds.most_common(20):
        print(count, text)
    print(dict(found), f"{time.time() - started:.0f} s")
    return found["wrong"] > 0


if __name__ == "__main__":
    sys.exit(main())
