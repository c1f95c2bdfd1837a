"""Reads the golden data: operators, nets and exports as the last release of Caffe2 computed them."""

from __future__ import annotations

import functools
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder.proto import NetDef, OperatorDef

__all__ = [
    "GOLDEN",
    "OVERWRITTEN",
    "REFUSED",
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

REFUSED = {"VariableLengthSequencePadding-2": r"lengths must lie in \[0, 4\]"}
"""Cases that Caffe2 takes and that are errors here, with their text: a length beyond the last step."""


@dataclass(frozen=True)
class SparseGradient:
    """Gradient of a table: row ``indices[i]`` gets ``values[i]``."""

    indices: np.ndarray
    values: np.ndarray


@dataclass(frozen=True, eq=False)
class Case:
    """One run of one operator, with its gradient where Caffe2 has one; its arrays are read when they are used.

    ``gradient_ops`` run after ``operator``, in order, on ``output_grads``, and leave ``gradient_blobs``. The file
    ``path`` has the arrays, under the number ``stored_as``.
    """

    op: str
    index: int
    operator: OperatorDef
    gradient_ops: tuple[OperatorDef, ...]
    meta: dict[str, Any]
    path: Path
    stored_as: int

    @functools.cached_property
    def inputs(self) -> Arrays:
        """Blobs before the operator ran."""
        return self._arrays("in/")

    @functools.cached_property
    def outputs(self) -> Arrays:
        """Blobs after the operator ran."""
        return self._arrays("out/")

    @functools.cached_property
    def output_grads(self) -> Arrays:
        """Gradients of the outputs, blobs named ``<output>_grad``."""
        return self._arrays("gin/")

    @functools.cached_property
    def gradient_blobs(self) -> Arrays:
        return self._arrays("gout/")

    @functools.cached_property
    def input_grads(self) -> dict[str, np.ndarray | SparseGradient]:
        """The gradients of the operator's inputs, among the gradient blobs."""
        written = self.gradient_blobs
        return {
            blob: written[how["blob"]]
            if how["kind"] == "dense"
            else SparseGradient(written[how["indices"]], written[how["values"]])
            for blob, how in self.meta.get("input_grads", {}).items()
        }

    def _arrays(self, part: str) -> Arrays:
        return _under(_load_once(self.path), f"c{self.stored_as}/{part}")

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
        """Why Caffe2 gave no gradient although one was requested; otherwise empty."""
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
    arrays: Mapping[str, Arrays]

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
    arrays: Mapping[str, Arrays] = field(repr=False)

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


@functools.cache
def operators() -> list[str]:
    """Names of the operators that have cases; treat them as read-only."""
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
        parts = _messages(path)
        first = len(found)
        found += [_case(op, first + i, path, i, parts) for i in sorted({int(key[1:].split("/")[0]) for key in parts})]
    return tuple(found)


_MESSAGE = re.compile(r"c\d+/(meta|op|gop/\d+)")


def _messages(path: Path) -> dict[str, bytes]:
    """Return the messages and notes of a file, by their names; of arrays the names alone, with b"".

    What the collection of tests needs; to read the arrays too would take several times as long.
    """
    with zipfile.ZipFile(path) as stored:
        keys = [name.removesuffix(".npy") for name in stored.namelist()]
        return {key: _array_bytes(stored.read(f"{key}.npy")) if _MESSAGE.fullmatch(key) else b"" for key in keys}


def _array_bytes(file: bytes) -> bytes:
    """Return the data of an .npy file of version 1, after its header."""
    return file[10 + int.from_bytes(file[8:10], "little") :]


def _case(op: str, index: int, path: Path, stored_as: int, parts: Mapping[str, bytes]) -> Case:
    start = f"c{stored_as}/"
    meta = json.loads(parts[start + "meta"])
    if meta["has_gradient"]:  # what was stored later does not say it: each output's gradient has its name
        seeds = [key.removeprefix(start + "gin/") for key in parts if key.startswith(start + "gin/")]
        meta.setdefault("grad_of_outputs", {grad.removesuffix("_grad"): grad for grad in seeds})
    return Case(
        op=op,
        index=index,
        operator=parse(OperatorDef, parts[start + "op"]),
        gradient_ops=tuple(parse(OperatorDef, parts[f"{start}gop/{j}"]) for j in range(meta.get("num_grad_ops", 0))),
        meta=meta,
        path=path,
        stored_as=stored_as,
    )


def nets() -> list[str]:
    """Names of the nets."""
    return list(index()["nets"])


@functools.cache
def net(name: str) -> Net:
    """The net of this name; treat it as read-only."""
    folder = _folder("nets", name)
    protos = {path.name[: -len(".pb")]: parse(NetDef, path.read_bytes()) for path in sorted(folder.glob("*.pb"))}
    return Net(name, folder, _meta(folder), protos, _Files(folder))


def exports() -> list[str]:
    """Names of the exports."""
    return list(index()["exports"])


@functools.cache
def export(name: str) -> Export:
    """The export of this name; treat it as read-only."""
    folder = _folder("exports", name)
    protos = {path.name[: -len(".pb")]: path.read_bytes() for path in sorted(folder.glob("*.pb"))}
    return Export(name, folder, _meta(folder), protos, _Files(folder))


def all_protobufs() -> list[Path]:
    """Paths of all stored messages."""
    return sorted(GOLDEN.rglob("*.pb"))


def mismatch(got: Any, want: np.ndarray, check: str = "close", rtol: float = 0.0, atol: float = 0.0) -> str | None:
    """Describe how ``got`` differs from ``want`` in shape, type or value; None if it does not.

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


_load_once = functools.cache(load_arrays)


class _Files(Mapping[str, Arrays]):
    """The ``.npz`` files of a folder, by their names without the ending; each is read when it is used."""

    def __init__(self, folder: Path) -> None:
        self._paths = {path.stem: path for path in sorted(folder.glob("*.npz"))}

    def __getitem__(self, name: str) -> Arrays:
        return _load_once(self._paths[name])

    def __contains__(self, name: object) -> bool:
        return name in self._paths

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def _under(arrays: Mapping[str, np.ndarray], prefix: str) -> Arrays:
    return {key[len(prefix) :]: array for key, array in arrays.items() if key.startswith(prefix)}


def _folder(kind: str, name: str) -> Path:
    if name not in index()[kind]:
        raise KeyError(f"no golden {kind[:-1]} {name!r}; there are {', '.join(index()[kind])}")
    return GOLDEN / kind / name


def _meta(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "meta.json").read_text())
