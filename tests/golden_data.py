"""Reads the golden data: operators, nets and exports as the last release of Caffe2 computed them."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder.proto import NetDef, OperatorDef

__all__ = [
    "GOLDEN",
    "OVERWRITTEN",
    "Case",
    "Export",
    "Net",
    "SparseGradient",
    "all_protobufs",
    "cases",
    "export",
    "exports",
    "index",
    "load_arrays",
    "mismatch",
    "net",
    "nets",
    "operators",
    "parse",
]

GOLDEN = Path(__file__).resolve().parent / "golden"

Arrays = dict[str, np.ndarray]

OVERWRITTEN = ("Log-2", "Mul-9", "Mul-10", "Sqr-2")
"""Cases in place whose gradient reads what was overwritten, from which Caffe2 computes a wrong one: an error here."""


@dataclass(frozen=True)
class SparseGradient:
    """Gradient of a table: row ``indices[i]`` gets ``values[i]``."""

    indices: np.ndarray
    values: np.ndarray


@dataclass(frozen=True, eq=False)
class Case:
    """One run of one operator, with its gradient where Caffe2 has one.

    ``inputs`` and ``outputs`` are blobs before and after the operator ran. ``gradient_ops`` run after
    it, in order, on ``output_grads`` (blobs named ``<output>_grad``), and leave ``gradient_blobs``.
    ``input_grads`` maps forward inputs to the gradients among those.
    """

    op: str
    index: int
    operator: OperatorDef
    inputs: Arrays
    outputs: Arrays
    gradient_ops: tuple[OperatorDef, ...]
    output_grads: Arrays
    gradient_blobs: Arrays
    input_grads: dict[str, np.ndarray | SparseGradient]
    meta: dict[str, Any]

    @property
    def label(self) -> str:
        return self.meta.get("label", "")

    @property
    def args(self) -> dict[str, Any]:
        """The arguments as given in Python."""
        return self.meta["args"]

    @property
    def check(self) -> str:
        """How outputs compare: "exact", "close" or "distribution"."""
        return self.meta["check"]

    @property
    def rtol(self) -> float:
        return self.meta["rtol"]

    @property
    def atol(self) -> float:
        return self.meta["atol"]

    @property
    def has_gradient(self) -> bool:
        return self.meta["has_gradient"]

    @property
    def grad_rtol(self) -> float:
        return self.meta["grad_rtol"]

    @property
    def grad_atol(self) -> float:
        return self.meta["grad_atol"]

    @property
    def gradient_refused(self) -> str:
        """Why Caffe2 gave no gradient where one was asked for; empty if it gave one or none was asked for."""
        return str(self.meta.get("gradient_left_out", ""))

    def __str__(self) -> str:
        """Name of the case, fit for a test id."""
        label = self.label.replace(" ", "_") or "plain"
        return f"{self.op}-{self.index}-{label}"

    __repr__ = __str__


@dataclass(frozen=True, eq=False)
class Net:
    """One net: its messages (by file name without ".pb"), arrays (by file name without ".npz") and notes."""

    name: str
    folder: Path
    meta: dict[str, Any]
    protos: dict[str, NetDef]
    arrays: dict[str, Arrays]

    @property
    def main(self) -> NetDef:
        return self.protos["net"]

    @property
    def init(self) -> NetDef:
        return self.protos["param_init_net"]

    @property
    def runnable(self) -> bool:
        """Whether values were stored for plain replay (init, inputs, expected)."""
        return {"init", "inputs", "expected"} <= self.arrays.keys() and "rtol" in self.meta

    @property
    def rtol(self) -> float:
        return self.meta["rtol"]

    @property
    def atol(self) -> float:
        return self.meta["atol"]

    def start_values(self) -> Arrays:
        """Blobs after the init net, by name."""
        return self.arrays["init"]

    def inputs(self, iteration: int) -> Arrays:
        """Blobs to feed before ``iteration`` (from 1)."""
        return _under(self.arrays["inputs"], f"iter{iteration}/")

    def iterations(self) -> list[int]:
        return sorted({int(key.split("/")[0][len("iter") :]) for key in self.arrays["inputs"]})

    def expected(self, iteration: int) -> Arrays:
        """Losses, and for some iterations parameters, gradients and optimizer state, after ``iteration``."""
        found = self.arrays["expected"]
        return _under(found, f"iter{iteration}/") | _under(found, f"loss/iter{iteration}/")

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


@dataclass(frozen=True, eq=False)
class Export:
    """One exported predictor or checkpoint: messages, arrays, notes and the folder with its other files."""

    name: str
    folder: Path
    meta: dict[str, Any]
    protos: dict[str, bytes] = field(repr=False)
    arrays: dict[str, Arrays] = field(repr=False)

    def net(self, name: str = "predict_net") -> NetDef:
        """The net stored as ``<name>.pb``."""
        return parse(NetDef, self.protos[name])

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


@functools.cache
def index() -> dict[str, Any]:
    """The table of contents, ``index.json``."""
    return json.loads((GOLDEN / "index.json").read_text())


def operators() -> list[str]:
    """Names of the operators that have cases."""
    listed = list(index()["ops"])
    return listed + sorted({path.stem for path in (GOLDEN / "more").glob("*.npz")} - set(listed))


def cases(op: str | None = None) -> list[Case]:
    """All cases of one operator, or of all.

    >>> [case.label for case in cases("Abs")]
    ['', '', '0-dimensional', 'special values']
    """
    if op is None:
        return [case for name in operators() for case in _cases_of(name)]
    if op not in operators():
        raise KeyError(f"no golden cases for operator {op!r}")
    return list(_cases_of(op))


@functools.cache
def _cases_of(op: str) -> tuple[Case, ...]:
    """The cases in ``ops/``, then those in ``more/``, which were stored later and are not in the index."""
    found: list[Case] = []
    for path in (GOLDEN / "ops" / f"{op}.npz", GOLDEN / "more" / f"{op}.npz"):
        if not path.exists():
            continue
        groups: dict[int, Arrays] = {}
        for key, array in load_arrays(path).items():
            number, rest = key[1:].split("/", 1)
            groups.setdefault(int(number), {})[rest] = array
        found += [_case(op, len(found) + i, groups[i]) for i in sorted(groups)]
    return tuple(found)


def _case(op: str, number: int, parts: Arrays) -> Case:
    meta = json.loads(parts["meta"].tobytes())
    output_grads = _under(parts, "gin/")
    if meta["has_gradient"]:  # what was stored later does not say it: each output's gradient has its name
        meta.setdefault("grad_of_outputs", {grad.removesuffix("_grad"): grad for grad in output_grads})
    written = _under(parts, "gout/")
    grads: dict[str, np.ndarray | SparseGradient] = {}
    for blob, how in meta.get("input_grads", {}).items():
        if how["kind"] == "dense":
            grads[blob] = written[how["blob"]]
        else:
            grads[blob] = SparseGradient(written[how["indices"]], written[how["values"]])
    return Case(
        op=op,
        index=number,
        operator=parse(OperatorDef, parts["op"].tobytes()),
        inputs=_under(parts, "in/"),
        outputs=_under(parts, "out/"),
        gradient_ops=tuple(parse(OperatorDef, parts[f"gop/{j}"].tobytes()) for j in range(meta.get("num_grad_ops", 0))),
        output_grads=output_grads,
        gradient_blobs=written,
        input_grads=grads,
        meta=meta,
    )


def nets() -> list[str]:
    """Names of the nets."""
    return list(index()["nets"])


@functools.cache
def net(name: str) -> Net:
    """The net of this name; treat it as read-only."""
    folder = _folder("nets", name)
    protos = {path.name[: -len(".pb")]: parse(NetDef, path.read_bytes()) for path in sorted(folder.glob("*.pb"))}
    return Net(name, folder, _meta(folder), protos, _arrays(folder))


def exports() -> list[str]:
    """Names of the exports."""
    return list(index()["exports"])


@functools.cache
def export(name: str) -> Export:
    """The export of this name; treat it as read-only."""
    folder = _folder("exports", name)
    protos = {path.name[: -len(".pb")]: path.read_bytes() for path in sorted(folder.glob("*.pb"))}
    return Export(name, folder, _meta(folder), protos, _arrays(folder))


def all_protobufs() -> list[Path]:
    """Paths of all stored messages."""
    return sorted(GOLDEN.rglob("*.pb"))


def mismatch(got: Any, want: np.ndarray, check: str = "close", rtol: float = 0.0, atol: float = 0.0) -> str | None:
    """Say how ``got`` differs from ``want`` in shape, type or value; None if it does not.

    Args:
        got: array, or what becomes one.
        want: what Caffe2 gave.
        check: "exact"; "close" (within ``atol + rtol * |want|``; integers and bools equal); or
            "distribution" (shape and type alone: the caller compares moments).
        rtol, atol: tolerances of "close".

    >>> mismatch(np.float32([1, 2.5]), np.float32([1, 2]), "close", 1e-3)
    '1 of 2 values differ, most at (1,): got 2.5, expected 2.0 (difference 0.5)'
    """
    if check not in ("exact", "close", "distribution"):
        raise ValueError(f"check must be exact, close or distribution, got {check!r}")
    got = np.asarray(got)
    if got.shape != want.shape:
        return f"shape {got.shape}, expected {want.shape}"
    if got.dtype != want.dtype:
        return f"type {got.dtype}, expected {want.dtype}"
    if check == "distribution":
        return None
    if want.dtype.kind != "f":
        wrong = np.asarray(got != want)
        distance = wrong
    else:
        wide, expected = got.astype(np.float64), want.astype(np.float64)
        with np.errstate(all="ignore"):
            distance = np.abs(wide - expected)
            allowed = 0.0 if check == "exact" else atol + rtol * np.abs(expected)
            equal = (wide == expected) | (np.isnan(wide) & np.isnan(expected)) | (distance <= allowed)
        # An infinity agrees with the same infinity alone, whatever the tolerance.
        wrong = ~np.where(np.isfinite(expected), equal, (wide == expected) | (np.isnan(wide) & np.isnan(expected)))
    if not wrong.any():
        return None
    ranked = np.where(wrong, np.nan_to_num(distance.astype(np.float64), nan=np.inf), -1.0)
    worst = tuple(int(i) for i in np.unravel_index(int(np.argmax(ranked)), want.shape))
    text = f"{int(wrong.sum())} of {want.size} values differ, most at {worst}: got {got[worst]}, expected {want[worst]}"
    if want.dtype.kind == "f":
        text += f" (difference {distance[worst]:.3g})"
    return text


def parse(message_class: type[Any], data: bytes) -> Any:
    """Return the message that ``data`` holds."""
    return message_class.FromString(data)


def load_arrays(path: Path) -> Arrays:
    """All arrays of an ``.npz`` file, by name."""
    with np.load(path, allow_pickle=False) as stored:
        return {key: stored[key] for key in stored.files}


def _under(arrays: Mapping[str, np.ndarray], prefix: str) -> Arrays:
    return {key[len(prefix) :]: array for key, array in arrays.items() if key.startswith(prefix)}


def _folder(kind: str, name: str) -> Path:
    if name not in index()[kind]:
        raise KeyError(f"no golden {kind[:-1]} {name!r}; there are {', '.join(index()[kind])}")
    return GOLDEN / kind / name


def _meta(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "meta.json").read_text())


def _arrays(folder: Path) -> dict[str, Arrays]:
    return {path.stem: load_arrays(path) for path in sorted(folder.glob("*.npz"))}
