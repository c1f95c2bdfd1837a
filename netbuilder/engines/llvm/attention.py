"""Attention and its gradient as machine code: blocks of queries whose scores stay in the cache.

A head's keys and values are copied to panels (see ``panels``), and then a block of queries at a time computes its
scores, their softmax and the product with the values. The gradient computes the weights again. What a causal mask hides
is not computed. Threads have blocks of their own, and in the gradient, where the heads that share keys are computed one
after the other, whole samples and groups of heads: so results do not depend on threads.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any

import numpy as np

from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.argument_rows import call_of_threads, shares
from netbuilder.engines.llvm.emitter import LANES, Emitter, vector
from netbuilder.engines.llvm.functions import exp_or_zero
from netbuilder.engines.llvm.loops import Loops
from netbuilder.engines.llvm.panels import PANELS, SLACK, panel_functions
from netbuilder.ops.core.contexts import Call, PlanContext, Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["attention", "attention_gradient"]

_F, _V = np.dtype(np.float32), vector("float")
_BLOCK = 32
"""Queries of a block."""

_FEW = 4
"""For fewer queries, as where a net generates one word at a time, copies of the keys take longer than the products."""

_BRIEF, _OF_A_THREAD = 1 << 15, 1 << 15  # multiplications; see ``rows``

_POINTERS = ("q", "k", "v", "mask", "dy", "y", "dq", "dk", "dv", "ds")
_MEMORY = ("keys", "key_rows", "values", "p", "dp", "out", "factors", "dk_sum", "dv_sum", "dy_block", "q_block")
_NUMBERS = ("H", "G", "T", "S", "D", "E", "mask_n", "mask_h", "mask_t", "begin", "end")
_WORDS = ("function", *_POINTERS, *_MEMORY, *_NUMBERS, "scale")


@dataclass(frozen=True)
class _Variant:
    """What the code depends on.

    Args:
        mask: its type, "" for none.
        of_keys: whether the mask has the axis of the keys.
        causal: see ``Attention``.
        gradient: whether it computes the gradient.
        d_scores: whether the gradient writes that of the scores.
        few: whether there are few queries: keys and values are read where they are.
        zero_weights: see ``Attention``.
        wide: whether registers have 512 bits.
    """

    mask: str = ""
    of_keys: bool = True
    causal: bool = False
    gradient: bool = False
    d_scores: bool = False
    few: bool = False
    zero_weights: str = "unseen"
    wide: bool = field(default_factory=lambda: machine.has_wide_registers())


class _Code(Loops):
    """Writes the function of a variant."""

    def __init__(self, variant: _Variant) -> None:
        self._variant, self._entry, self._body = variant, Emitter("e"), Emitter("v")

    def text(self) -> str:
        e, used = self._entry, ["rows", "pack", "pack_transposed"] + ["columns"] * self._variant.gradient
        used = ["dots", "weighted"] if self._variant.few else used
        for i, name in enumerate(_WORDS[1:], 1):
            kind = "ptr" if name in _POINTERS or name in _MEMORY else "float" if name == "scale" else "i64"
            place = e.let(f"getelementptr i64, ptr %arguments, i64 {i}")
            e.lines.append(f"  %{name} = load {kind}, ptr {place}, align 8")
        self._scale = e.splat("%scale", "float")
        self._padded = {name: self._round_up(e, f"%{name}") for name in "SDE"}
        b = self._body
        if self._variant.gradient:
            with self._for("%begin", "%end", 1) as unit:
                self._backward(unit)
        else:
            blocks = b.let(f"udiv i64 {self._sum('%T', _BLOCK - 1)}, {_BLOCK}")
            last = b.let(f"udiv i64 {self._sum(self._sum('%end', blocks), -1)}, {blocks}")
            with self._for(b.let(f"udiv i64 %begin, {blocks}"), last, 1) as unit:
                self._forward(unit, self._product(unit, blocks))
        functions, declared = panel_functions(*used, wide=self._variant.wide)
        head = "define void @kernel(ptr %arguments) {\nentry:"
        lines = [*sorted(declared | b.declared), functions, head, *e.lines, "  br label %body", "body:", *b.lines]
        return "\n".join([*lines, "  ret void", "}", ""])

    @staticmethod
    def _round_up(e: Emitter, number: str) -> str:
        return e.let(f"and i64 {e.let(f'add i64 {number}, {LANES - 1}')}, {-LANES}")

    # Numbers and addresses

    def _product(self, *factors: str) -> str:
        found = factors[0]
        for factor in factors[1:]:
            found = self._body.let(f"mul i64 {found}, {factor}")
        return found

    def _sum(self, x: str, y: str | int) -> str:
        return self._body.let(f"add i64 {x}, {y}")

    def _at(self, pointer: str, *factors: str) -> str:
        return self._moved(pointer, _F, self._product(*factors))

    def _call(self, name: str, *given: str) -> None:
        kinds = (parameter.split()[0] for parameter in PANELS[name].split(", "))
        self._body.add(f"call void @{name}({', '.join(f'{kind} {value}' for kind, value in zip(kinds, given))})")

    def _panels(self, extent: str) -> str:
        return self._body.let(f"udiv i64 {extent}, {LANES}")

    def _seen(self, query: str) -> str:
        """Return how many keys a query sees: the first ones."""
        if not self._variant.causal:
            return "%S"
        last = self._body.let("sub i64 %S, %T")
        return self._most(self._least(self._sum(self._sum(query, last), 1), "%S"), 0)

    # The two functions

    def _forward(self, unit: str, before: str) -> None:
        """Write the blocks of a head from ``begin`` to ``end``; ``before`` counts those of the heads before it."""
        b = self._body
        sample, head = b.let(f"udiv i64 {unit}, %H"), b.let(f"urem i64 {unit}, %H")
        group = b.let(f"udiv i64 {head}, {b.let('udiv i64 %H, %G')}")
        pair = self._sum(self._product(sample, "%G"), group)
        keys, values = self._at("%k", pair, "%S", "%D"), self._at("%v", pair, "%S", "%E")
        if self._variant.few:
            self._of_few(unit, sample, head, keys, values)
            return
        self._call("pack_transposed", keys, "%D", "%D", "%S", "%keys")
        self._call("pack", values, "%E", "%S", "%E", "%values")
        queries, results = self._at("%q", unit, "%T", "%D"), self._at("%y", unit, "%T", "%E")
        start = self._product(self._most(b.let(f"sub i64 %begin, {before}"), 0), str(_BLOCK))
        stop = self._least(self._product(b.let(f"sub i64 %end, {before}"), str(_BLOCK)), "%T")
        with self._for(start, stop, _BLOCK) as first:
            rows = self._least(b.let(f"sub i64 %T, {first}"), _BLOCK)
            seen = self._scores(self._at(queries, first, "%D"), sample, head, first, rows, normalized=False)
            wide = self._padded["E"]
            self._call("rows", "%p", self._padded["S"], "%values", "%S", "%out", wide, rows, self._panels(wide), seen)
            target = self._at(results, first, "%E")
            with self._for("0", rows, 1) as row:
                self._copy(self._at("%out", row, wide), self._at(target, row, "%E"), "%E", self._factor(row))

    def _of_few(self, unit: str, sample: str, head: str, keys: str, values: str) -> None:
        """Write the forward function of a head, one query after the other."""
        with self._for("0", "%T", 1) as query:
            line, seen = self._sum(self._product(unit, "%T"), query), self._seen(query)
            self._call("dots", self._at("%q", line, "%D"), keys, "%D", seen, "%p")
            self._softmax("%p", sample, head, query, self._round_up(self._body, seen), "0", normalized=False)
            self._call("weighted", "%p", values, seen, "%E", "%out")
            self._copy("%out", self._at("%y", line, "%E"), "%E", self._factor("0"))

    def _factor(self, row: str) -> str:
        """Return the reciprocal of a row's sum of weights."""
        b = self._body
        return b.splat(b.let(f"load float, ptr {self._at('%factors', row)}, align 4"), "float")

    def _backward(self, unit: str) -> None:
        b, wide_d, wide_e = self._body, self._padded["D"], self._padded["E"]
        sample, group = b.let(f"udiv i64 {unit}, %G"), b.let(f"urem i64 {unit}, %G")
        keys, values = self._at("%k", unit, "%S", "%D"), self._at("%v", unit, "%S", "%E")
        self._call("pack_transposed", keys, "%D", "%D", "%S", "%keys")
        self._call("pack", keys, "%D", "%S", "%D", "%key_rows")
        self._call("pack_transposed", values, "%E", "%E", "%S", "%values")
        for name, wide in (("dk", wide_d), ("dv", wide_e)):
            with self._for("0", self._product(self._padded["S"], wide), LANES) as i:
                self._write(b.constant(0), _F, self._moved(f"%{name}_sum", _F, i))
        per_group = b.let("udiv i64 %H, %G")
        with self._for("0", per_group, 1) as number, self._for("0", "%T", _BLOCK) as first:
            head = self._sum(self._product(group, per_group), number)
            line = self._sum(self._product(self._sum(self._product(sample, "%H"), head), "%T"), first)
            self._backward_block(sample, head, first, line)
        for name, extent, factor in (("dk", "D", self._scale), ("dv", "E", "")):
            with self._for("0", "%S", 1) as row:
                source = self._at(f"%{name}_sum", row, self._padded[extent])
                target = self._at(f"%{name}", self._sum(self._product(unit, "%S"), row), f"%{extent}")
                self._copy(source, target, f"%{extent}", factor)

    def _backward_block(self, sample: str, head: str, first: str, line: str) -> None:
        """Write what a block of queries does for the gradients; ``line`` counts the queries of all heads before it."""
        b, wide, wide_d, wide_e = self._body, self._padded["S"], self._padded["D"], self._padded["E"]
        rows = self._least(b.let(f"sub i64 %T, {first}"), _BLOCK)
        queries, d_results = self._at("%q", line, "%D"), self._at("%dy", line, "%E")
        seen = self._scores(queries, sample, head, first, rows, normalized=True)
        columns = self._round_up(b, seen)
        self._call("rows", d_results, "%E", "%values", "%E", "%dp", wide, rows, self._panels(columns), "%E")
        with self._for("0", rows, 1) as row:
            self._d_scores(row, columns, line)
        self._call("pack", d_results, "%E", rows, "%E", "%dy_block")
        self._call("columns", "%p", wide, "%dy_block", rows, "%dv_sum", wide_e, columns, self._panels(wide_e), rows)
        self._call("pack", queries, "%D", rows, "%D", "%q_block")
        self._call("columns", "%dp", wide, "%q_block", rows, "%dk_sum", wide_d, columns, self._panels(wide_d), rows)
        self._call("rows", "%dp", wide, "%key_rows", "%S", "%out", wide_d, rows, self._panels(wide_d), seen)
        with self._for("0", rows, 1) as row:
            target = self._at("%dq", self._sum(line, row), "%D")
            self._copy(self._at("%out", row, wide_d), target, "%D", self._scale)

    # Their parts

    def _copy(self, source: str, target: str, count: str, factor: str) -> None:
        """Write a row of a block, times a factor, to a tensor; the block has whole vectors."""
        b = self._body
        whole = b.let(f"and i64 {count}, {-LANES}")
        for start, end in (("0", whole), (whole, count)):
            with self._for(start, end, LANES) as i:
                value = self._vector(self._moved(source, _F, i), _F)
                value = b.binary("fmul", value, factor) if factor else value
                mask = "" if end == whole else self._lanes(b.let(f"sub i64 {count}, {i}"))
                self._write(value, _F, self._moved(target, _F, i), mask)

    def _scores(self, queries: str, sample: str, head: str, first: str, rows: str, *, normalized: bool) -> str:
        """Write the weights of a block to ``p``, and the reciprocals of their sums; return how many keys it sees."""
        b, wide = self._body, self._padded["S"]
        seen = self._seen(self._sum(self._sum(first, rows), -1))
        columns = self._round_up(b, seen)
        self._call("rows", queries, "%D", "%keys", "%D", "%p", wide, rows, self._panels(columns), "%D")
        with self._for("0", rows, 1) as row:
            query = self._sum(first, row)
            self._softmax(self._at("%p", row, wide), sample, head, query, columns, row, normalized=normalized)
        return seen

    def _softmax(
        self, place: str, sample: str, head: str, query: str, columns: str, row: str, *, normalized: bool
    ) -> None:
        b, low = self._body, _constant(-math.inf)
        seen, mask = self._seen(query), self._mask_of_row(sample, head, query)
        most, total = self._variable(_V, low), self._variable(_V, _constant(0))
        with self._for("0", columns, LANES) as i:
            at = self._moved(place, _F, i)
            x = b.binary("fmul", self._vector(at, _F), self._scale)
            x = self._masked(x, mask, i)
            x = b.select(self._lanes(b.let(f"sub i64 {seen}, {i}")), x, low)
            self._write(x, _F, at)
            self._set(most, _V, self._greater(self._get(most, _V), x))
        top = self._of_lanes(self._greater, self._get(most, _V))
        top = b.select(b.compare("oeq", top, low), b.constant(0), top)
        with self._for("0", columns, LANES) as i:
            at = self._moved(place, _F, i)
            e = exp_or_zero(b, b.binary("fsub", self._vector(at, _F), top))
            self._write(e, _F, at)
            self._set(total, _V, b.binary("fadd", self._get(total, _V), e))
        whole = self._of_lanes(partial(b.binary, "fadd"), self._get(total, _V))
        if self._variant.zero_weights == "nan":
            whole = self._without_nan(place, columns, whole)
        none = math.nan if self._variant.zero_weights == "never" else 1
        whole = b.select(b.compare("oeq", whole, b.constant(0)), _constant(none), whole)
        factor = b.binary("fdiv", b.constant(1), whole)
        if not normalized:
            b.add(
                f"store float {b.let(f'extractelement {_V} {factor}, i64 0')}, ptr {self._at('%factors', row)}, align 4"
            )
            return
        with self._for("0", columns, LANES) as i:
            at = self._moved(place, _F, i)
            self._write(b.binary("fmul", self._vector(at, _F), factor), _F, at)

    def _without_nan(self, place: str, columns: str, total: str) -> str:
        """Write zeros to a row of weights whose sum is NaN; return the sum."""
        b = self._body
        wrong = b.compare("uno", total, total)
        bit = b.let(f"extractelement <{LANES} x i1> {wrong}, i64 0")
        with self._for("0", b.let(f"select i1 {bit}, i64 {columns}, i64 0"), LANES) as i:
            self._write(b.constant(0), _F, self._moved(place, _F, i))
        return b.select(wrong, b.constant(0), total)

    def _mask_of_row(self, sample: str, head: str, query: str) -> str:
        if not self._variant.mask:
            return ""
        parts = [self._product(x, f"%mask_{y}") for x, y in ((sample, "n"), (head, "h"), (query, "t"))]
        return self._moved("%mask", np.dtype(self._variant.mask), self._sum(self._sum(parts[0], parts[1]), parts[2]))

    def _masked(self, x: str, mask: str, i: str) -> str:
        b = self._body
        if not mask:
            return x
        dtype = np.dtype(self._variant.mask)
        if self._variant.of_keys:
            given = self._vector(self._moved(mask, dtype, i), dtype, self._lanes(b.let(f"sub i64 %S, {i}")))
        else:
            kind = "i8" if dtype.kind == "b" else "float"
            given = b.splat(b.let(f"load {kind}, ptr {mask}, align {dtype.itemsize}"), kind)
        if dtype.kind == "b":
            return b.select(b.compare("ne", given, "zeroinitializer", "i8"), x, _constant(-math.inf))
        return b.binary("fadd", x, given)

    def _d_scores(self, row: str, columns: str, line: str) -> None:
        """Write a row of the gradient of the scores over that of the weights."""
        b, wide = self._body, self._padded["S"]
        p, dp, total = self._at("%p", row, wide), self._at("%dp", row, wide), self._variable(_V, _constant(0))
        with self._for("0", columns, LANES) as i:
            weight, d_weight = (self._vector(self._moved(x, _F, i), _F) for x in (p, dp))
            self._set(total, _V, b.fma(weight, d_weight, self._get(total, _V)))
        mean = self._of_lanes(partial(b.binary, "fadd"), self._get(total, _V))
        with self._for("0", columns, LANES) as i:
            weight, d_weight = (self._vector(self._moved(x, _F, i), _F) for x in (p, dp))
            ds = b.binary("fmul", weight, b.binary("fsub", d_weight, mean))
            self._write(ds, _F, self._moved(dp, _F, i))
        if self._variant.d_scores:
            target = self._at("%ds", self._sum(line, row), "%S")
            with self._for("0", "%S", LANES) as i:
                ds = self._vector(self._moved(dp, _F, i), _F)
                ds = b.select(self._lanes(b.let(f"sub i64 {columns}, {i}")), ds, b.constant(0))
                self._write(ds, _F, self._moved(target, _F, i), self._lanes(b.let(f"sub i64 %S, {i}")))

    def _greater(self, x: str, y: str) -> str:
        b = self._body
        return b.select(b.compare("uno", x, x), x, b.select(b.compare("ogt", x, y), x, y))


def _constant(value: float) -> str:
    return Emitter().constant(value)


@functools.lru_cache(64)
def _address(variant: _Variant) -> int | None:
    return machine.address_of(_Code(variant).text()) if machine.available() else None


@dataclass(frozen=True)
class _Shapes:
    """The extents of an attention, and the memory that a thread needs."""

    n: int
    h: int
    g: int
    t: int
    s: int
    d: int
    e: int
    gradient: bool

    @staticmethod
    def of(q: TensorSpec, k: TensorSpec, v: TensorSpec, *, gradient: bool) -> _Shapes:
        (n, h, t, d), (_, g, s, _) = q.shape, k.shape
        return _Shapes(n, h, g, t, s, d, v.shape[3], gradient)

    def memory(self) -> dict[str, int]:
        """Return the elements of each part of a thread's memory."""
        s, d, e = (-(-extent // LANES) * LANES for extent in (self.s, self.d, self.e))
        found = {"keys": s * self.d + SLACK, "p": _BLOCK * s}
        if not self.gradient:
            return found | {"values": self.s * e, "out": _BLOCK * e, "factors": _BLOCK}
        found |= {"values": s * self.e + SLACK, "key_rows": self.s * d, "dp": _BLOCK * s, "out": _BLOCK * d}
        return found | {"dk_sum": s * d, "dv_sum": s * e, "dy_block": _BLOCK * e, "q_block": _BLOCK * d}

    @property
    def nbytes(self) -> int:
        return sum(-(-4 * count // 64) * 64 for count in self.memory().values())

    @property
    def units(self) -> int:
        """Into how many parts the work can be divided: blocks of queries, or what shares keys."""
        return self.n * (self.g if self.gradient else self.h * -(-self.t // _BLOCK))

    @property
    def cost(self) -> int:
        return (3 if self.gradient else 1) * self.n * self.h * self.t * self.s * (self.d + self.e) // 8

    def threads(self, ctx: PlanContext) -> int:
        return 1 if self.cost < _OF_A_THREAD else max(1, min(ctx.threads, self.units))


def attention(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare Attention: Q, K, V, [mask] -> Y."""
    shapes = _served(op, specs, specs, gradient=False)
    if shapes is None:
        return None
    variant = replace(_variant(op, specs[3:]), few=shapes.t < _FEW)
    return _prepared(op, ctx, specs, variant, shapes, ("q", "k", "v", "mask"), ("y",))


def attention_gradient(op: Any, ctx: PlanContext, *specs: TensorSpec) -> Prepared | None:
    """Prepare AttentionGradient: dY, Q, K, V, [mask] -> dQ, dK, dV, [dmask]."""
    shapes = _served(op, specs, specs[1:], gradient=True)
    if shapes is None:
        return None
    variant = _variant(op, specs[4:], gradient=True)
    return _prepared(op, ctx, specs, variant, shapes, ("dy", "q", "k", "v", "mask"), ("dq", "dk", "dv"))


def _served(op: Any, all_specs: Sequence[TensorSpec], given: Sequence[TensorSpec], *, gradient: bool) -> _Shapes | None:
    if any(spec is None or not spec.size or spec.dtype not in (np.float32, np.bool_) for spec in all_specs):
        return None
    return _Shapes.of(*given[:3], gradient=gradient)


def _variant(op: Any, masks: Sequence[TensorSpec], *, gradient: bool = False) -> _Variant:
    zero = op.zero_weights
    if not masks:
        return _Variant(causal=bool(op.causal), gradient=gradient, zero_weights=zero)
    (mask,) = masks
    of_keys = mask.ndim > 0 and mask.shape[-1] > 1
    d_scores = gradient and op.n_out > 3 and mask.dtype != np.bool_
    return _Variant(mask.dtype.name, of_keys, bool(op.causal), gradient, d_scores, zero_weights=zero)


def _prepared(
    op: Any, ctx: PlanContext, specs: Sequence[TensorSpec], variant: _Variant, shapes: _Shapes,
    ins: Sequence[str], outs: Sequence[str],
) -> Prepared | None:  # fmt: skip
    address = _address(variant)
    if address is None:
        return None
    plain = [spec.plain for spec in specs]
    threads = shapes.threads(ctx)
    all_scores = 4 * shapes.n * shapes.h * shapes.t * shapes.s if variant.d_scores else 0

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Call:
        buffers = dict(zip(ins, inputs)) | dict(zip(outs, outputs))
        ds = scratch[threads * shapes.nbytes :][:all_scores].view(np.float32) if all_scores else None
        if ds is not None:
            buffers["ds"] = ds
        pointers = {name: buffer.ctypes.data for name, buffer in buffers.items()}
        rows = []
        for thread, (begin, end) in enumerate(shares(shapes.units, threads)):
            own = scratch[thread * shapes.nbytes :][: shapes.nbytes]
            rows.append(_words(op, variant, shapes, pointers, own, begin, end, plain[ins.index("mask") :]))
            rows[-1][0] = address
        call = call_of_threads(ctx, rows, (inputs, outputs, scratch), brief=shapes.cost < _BRIEF)
        return call if len(outputs) <= len(outs) or not variant.gradient else _with_dmask(call, ds, shapes, outputs[3])

    title = "attention_gradient" if variant.gradient else "attention"
    scratch = threads * shapes.nbytes + all_scores
    return Prepared(plain, list(op.infer(*plain)), bind, scratch=scratch, name=f"llvm {title}")


def _words(
    op: Any, variant: _Variant, shapes: _Shapes, pointers: dict[str, int], memory: Any, begin: int, end: int,
    masks: Sequence[TensorSpec],
) -> Any:  # fmt: skip
    """Return the row of arguments of a thread."""
    values: dict[str, int] = dict(pointers)
    at = memory.ctypes.data
    for name, count in shapes.memory().items():
        values[name] = at
        at += -(-4 * count // 64) * 64
    values |= {name.upper(): getattr(shapes, name) for name in "hgtsde"} | {"begin": begin, "end": end}
    for mask in masks:
        extents = (1,) * (4 - mask.ndim) + mask.shape
        for axis, name in enumerate("nht"):
            values[f"mask_{name}"] = math.prod(extents[axis + 1 :]) if extents[axis] > 1 else 0
    words = np.zeros(len(_WORDS), np.int64)
    for i, name in enumerate(_WORDS):
        words[i] = values.get(name, 0)
    words[-1:].view(np.float32)[0] = op.factor(shapes.d)
    return words


def _with_dmask(call: Call, ds: Any, shapes: _Shapes, dmask: Any) -> Call:
    """Return the call that also writes the gradient of the mask: the sums of that of the scores, or zeros."""
    if ds is None:

        def run_with_zeros() -> None:
            call()
            dmask.fill(0)

        return run_with_zeros
    scores = ds.reshape(shapes.n, shapes.h, shapes.t, shapes.s)
    target = dmask.reshape((1,) * (4 - dmask.ndim) + dmask.shape)
    axes = tuple(axis for axis, extent in enumerate(target.shape) if extent == 1)

    def run() -> None:
        call()
        np.add.reduce(scores, axes, out=target, keepdims=True)

    return run
