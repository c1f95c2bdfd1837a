"""What operators' signatures state is what infer gives, and what kernels return."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from all_suites import all_suites
from checks import run_plain
from netbuilder.ops.core.operator import STRING, Operator, TensorSpec, spec_of
from netbuilder.ops.core.registry import find, operator_types
from netbuilder.ops.core.signatures import FLOATS, Blob, Signature, is_gradient, parsed
from netbuilder.proto import NetError
from suite import OperatorSuite, f32, i32

Binding = dict[str, Any]
"""Extents by symbol (a tuple for a run of axes), and by "(expression)" the extents that it must have."""


def family(cls: type[Operator]) -> str:
    return cls.__module__.split(".")[2]


FAMILIES = sorted({family(find(name)) for name in operator_types()})


def stating(family_name: str) -> list[type[Operator]]:
    classes = [find(name) for name in operator_types()]
    return [cls for cls in classes if family(cls) == family_name and not is_gradient(cls)]


def bind(extents: Sequence[str], shape: Sequence[int], bound: Binding) -> Iterator[Binding]:
    """Yield each way to read a shape as these extents."""
    if not extents:
        if not shape:
            yield bound
        return
    first, rest = extents[0], extents[1:]
    if first[0] == "{":
        name = f"({first[1:-1]})"
        yield {**bound, name: (*bound.get(name, ()), math.prod(shape))}
    elif first == "..." or first.startswith("*"):
        for n in range(len(shape) + 1):
            run = {} if first == "..." else {first[1:]: tuple(shape[:n])}
            if all(bound.get(name, value) == value for name, value in run.items()):
                yield from bind(rest, shape[n:], {**bound, **run})
    elif shape:
        name = first if first.isidentifier() else f"({first})"
        value = shape[0] if first.isidentifier() else (*bound.get(name, ()), shape[0])
        if not first.isidentifier() or bound.get(name, value) == value:
            yield from bind(rest, shape[1:], {**bound, name: value})


def bind_all(stated: Sequence[tuple[Blob, TensorSpec]], bound: Binding) -> Iterator[Binding]:
    """Yield each way to read the shapes of several blobs at once."""
    if not stated:
        yield bound
        return
    (blob, spec), *rest = stated
    for shape in blob.shapes or (("...",),):
        for more in bind(shape, spec.shape, bound):
            yield from bind_all(rest, more)


def expressions_hold(bound: Binding) -> bool:
    """Whether each expression has the extents that were found; one of unbound symbols may have any."""
    scope = {"prod": math.prod, "len": len, "min": min, "max": max, "__builtins__": {}}
    for text, extents in bound.items():
        if text.startswith("("):
            with contextlib.suppress(NameError):
                if any(eval(text, scope, bound) != extent for extent in extents):
                    return False
    return True


def arguments(op: Operator) -> Binding:
    """Return the arguments of an operator that are integers."""
    return {k: int(v) for k, v in vars(op).items() if isinstance(v, int) and k not in ("n_in", "n_out")}


def paired(blobs: Sequence[Blob], specs: Sequence[TensorSpec]) -> list[tuple[Blob, TensorSpec]]:
    return [(blobs[min(i, len(blobs) - 1)], spec) for i, spec in enumerate(specs)]


def type_name(dtype: Any) -> str:
    return "string" if dtype == STRING else np.dtype(dtype).name


def mismatch(op: Operator, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> str:
    """Return what an operator's signature states otherwise than these specs are, or ""."""
    stated = parsed(type(op).signature)
    pairs = paired(stated.inputs, inputs) + paired(stated.outputs, outputs)
    by_name = {blob.name.rstrip("?*+"): spec for blob, spec in reversed(pairs)}
    for blob, spec in pairs:
        if blob.like and blob.like not in by_name:
            continue  # of an optional input
        types = (type_name(by_name[blob.like].dtype),) if blob.like else blob.types
        if blob.like and not blob.shapes and spec.shape != by_name[blob.like].shape:
            return f"{blob.name} has shape {spec.shape}, stated is that of {blob.like}"
        if type_name(spec.dtype) not in (*types, *(["string"] if "object" in types else [])):
            return f"{blob.name} has type {spec.dtype}, stated are {types}"
    if not any(map(expressions_hold, bind_all(pairs, arguments(op)))):
        return f"stated are {[(b.name, b.shapes) for b, _ in pairs]}, got {[s.shape for _, s in pairs]} of {op}"
    return ""


@dataclass(frozen=True)
class Example:
    op: Operator
    arrays: list[Any]
    outputs: list[TensorSpec]

    @property
    def inputs(self) -> list[TensorSpec]:
        return [spec_of(np.asarray(x)) for x in self.arrays]


def outputs_of(op: Operator, arrays: Sequence[Any]) -> list[TensorSpec]:
    """Return what infer gives, or the kernel where shapes depend on data."""
    if not op.dynamic and type(op).infer is not Operator.infer:
        return list(op.infer(*[spec_of(np.asarray(x)) for x in arrays]))
    if not op.n_out:
        return []
    with contextlib.redirect_stdout(io.StringIO()), np.errstate(all="ignore"):  # a rate of any type may be 0
        return [spec_of(np.asarray(y)) for y in run_plain(op, arrays)]


def examples(cls: type[Operator]) -> list[Example]:
    """Return examples of an operator's suite; one that tests the forward pass in its own way may have none."""
    suite, found = all_suites()[cls.__name__], []
    own = suite.test_forward is not OperatorSuite.test_forward

    @settings(max_examples=6, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(data=st.data())
    def draw(data: Any) -> None:
        with contextlib.suppress(*[NotImplementedError, NetError, TypeError, AttributeError, OSError] if own else []):
            op, arrays = suite().draw(data)
            op.with_arity(len(arrays), op.n_out)
            found.append(Example(op, arrays, outputs_of(op, arrays)))

    draw()
    assert found or own, cls
    return found


def refused_types(found: Sequence[Example]) -> list[str]:
    """Return the stated element types of inputs that an operator refuses in each example.

    Each is tried with the other inputs left as they are (but for those stated to be alike), then with all inputs that
    may have this type having it. Blobs of one name and several types, a weight after each tensor, are left as they are.
    """
    errors: dict[str, str] = {}
    accepted = set()
    for op, pairs in ((e.op, _paired_arrays(e)) for e in found):
        for blob in dict.fromkeys(blob for blob, _ in pairs):
            if len({np.asarray(x).dtype for b, x in pairs if b is blob}) > 1:
                continue
            for dtype in (t for t in blob.types if t not in ("string", "object")):
                case = f"{blob.name} of {dtype}"
                if case not in accepted and (error := _refusal(op, pairs, blob, dtype)):
                    errors[case] = error
                else:
                    accepted.add(case)
    return [f"{case}: {error}" for case, error in errors.items() if case not in accepted]


def _paired_arrays(example: Example) -> list[tuple[Blob, Any]]:
    stated = parsed(type(example.op).signature)
    return [(blob, x) for (blob, _), x in zip(paired(stated.inputs, example.inputs), example.arrays)]


def _refusal(op: Operator, pairs: Sequence[tuple[Blob, Any]], blob: Blob, dtype: str) -> str:
    """Return why an operator refuses a type of a blob, or ""."""
    error = ""
    for together in (False, True):
        changed = {b.name.rstrip("?*+") for b, _ in pairs if b is blob or (together and dtype in b.types)}
        with np.errstate(all="ignore"):  # an example may have numbers that another type has not
            arrays = [np.asarray(x).astype(dtype) if {b.name.rstrip("?*+"), b.like} & changed else x for b, x in pairs]
        try:
            if any("object" in b.types for b, _ in pairs) and not op.dynamic:
                op.infer(*[spec_of(np.asarray(x)) for x in arrays])  # the object itself may be for one type
            else:
                outputs_of(op, arrays)
            return ""
        except NetError as refused:
            error = str(refused)
    return error


def problems(cls: type[Operator]) -> list[str]:
    if not parsed(cls.signature).is_stated:
        return ["its signature states no shapes and types"]
    if cls.__name__ not in all_suites():
        return []
    found = examples(cls)
    wrong = [mismatch(e.op, e.inputs, e.outputs) for e in found]
    return [text for text in wrong if text][:1] or refused_types(found)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", FAMILIES)
def test_signatures_state_what_infer_gives(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for operators that write files
    found = {cls.__name__: texts for cls in stating(name) if (texts := problems(cls))}
    assert not found, "\n".join(f"{op}: {text}" for op, texts in found.items() for text in texts)


class Stated(Operator):
    """Y = something."""

    signature = """
        X (N, *S): float16|float32, a batch
            of samples
        W? (N, 2 * N) or (N): as X
        -> Y+ (prod(S), k): int64
    """
    k = 3


def test_a_signature_is_read():
    stated = parsed(Stated.signature)
    assert stated.inputs == (
        Blob("X", (("N", "*S"),), ("float16", "float32"), "", "a batch of samples"),
        Blob("W?", (("N", "2 * N"), ("N",)), (), "X", ""),
    )
    assert stated.outputs == (Blob("Y+", (("prod(S)", "k"),), ("int64",), "", ""),)
    assert parsed("X (N, 2 * N): float, Y -> Z: as X, W (prod(S), len(S)): int32") == Signature(
        (Blob("X", (("N", "2 * N"),), FLOATS, "", ""), Blob("Y", (), (), "", "")),
        (Blob("Z", (), (), "X", ""), Blob("W", (("prod(S)", "len(S)"),), ("int32",), "", "")),
    )


def test_names_and_help_follow_from_the_signature():
    class Derived(Stated):
        """Y = more.

        Source: a paper.
        """

    class Fewer(Derived):
        signature = "A: object -> B: object"

    assert (Derived.inputs, Derived.outputs, Derived.n_in, Derived.n_out) == (("X", "W?"), ("Y+",), 1, 1)
    assert (Fewer.inputs, Fewer.outputs, Fewer.n_in, Operator.inputs) == (("A",), ("B",), 1, ())
    assert Derived.__doc__ == (
        "Y = more.\n\nSignature:\n    X (N, *S): float16|float32, a batch\n        of samples\n"
        "    W? (N, 2 * N) or (N): as X\n    -> Y+ (prod(S), k): int64\n\nSource: a paper."
    )


@pytest.mark.parametrize(
    ("inputs", "output", "rule"),
    [
        ([f32(2, 3, 4), f32(2, 4)], TensorSpec((12, 3), np.dtype(np.int64)), ""),
        ([f32(2, 3, 4)], TensorSpec((12, 3), np.dtype(np.int64)), ""),
        ([f32(2, 3, 4), f32(3)], TensorSpec((12, 3), np.dtype(np.int64)), "stated are"),
        ([f32(2, 3, 4), f32(2, 5)], TensorSpec((12, 3), np.dtype(np.int64)), "stated are"),
        ([f32(2, 3, 4)], TensorSpec((13, 3), np.dtype(np.int64)), "stated are"),
        ([f32(2, 3, 4), i32(2)], TensorSpec((12, 3), np.dtype(np.int64)), "W? has type int32"),
        ([f32(2, 3, 4)], f32(12, 3), "Y+ has type float32"),
    ],
)
def test_what_is_stated_is_compared(inputs, output, rule):
    op = Stated()
    object.__setattr__(op, "k", 3)
    found = mismatch(op, inputs, [output])
    assert found.startswith(rule) and bool(found) == bool(rule)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("X (N): float33", "states 'X .N.: float33'; write"),
        ("X: float", "no shape for an object"),
        ("X (N): object -> Y (N): float", "no shape for an object"),
        ("X (N) float", "states 'X .N. float'; write"),
    ],
)
def test_a_wrong_signature_is_refused(text, rule):
    with pytest.raises(NetError, match=rule):
        parsed(text)
