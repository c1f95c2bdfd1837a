"""Names of blobs: references, scoped names, and every name that the library itself generates or parses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, NoReturn

from netbuilder.graph.scope import SEPARATOR, CurrentNameScope
from netbuilder.graph.suggestions import LacksError
from netbuilder.ops.core.registry import is_registered, operator_types
from netbuilder.ops.core.unsupported import instead_of
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, NetError

__all__ = [
    "AUTOGEN_GRADIENT_SUFFIX",
    "COMMUNICATOR",
    "EMPTY_GRADIENT",
    "GRADIENT_SUFFIX",
    "BlobReference",
    "GradientSlice",
    "ScopedBlobReference",
    "ScopedName",
    "as_names",
    "autosplit_name",
    "blob_name",
    "concat_names",
    "device_prefix",
    "gradient_name",
    "is_gradient_name",
    "other_gradient_name",
    "seed_name",
    "strip_gradient",
    "strip_prefix",
    "with_prefix",
]

GRADIENT_SUFFIX = "_grad"
"""Suffix of a gradient's name, after the name of the blob."""

AUTOGEN_GRADIENT_SUFFIX = "_autogen_grad"
"""Suffix of the blob of ones that seeds the backward pass, after the name of the loss."""

EMPTY_GRADIENT = "@EMPTY@"
"""Instead of a gradient's name: this gradient is dropped; no operator computes, sums or copies it."""

COMMUNICATOR = "@COMMUNICATOR@"
"""Name of the communicator's blob, which the collective operators of one group of devices share."""


class BlobReference:
    """The name of a blob, and the net that made it; usable wherever a string with the name is.

    A reference is equal to its name and has the same hash. If its net is known, operators can be called on it as
    methods, ``x.Relu([], "y")``; it is then their first input.

    Args:
        name: the full name, or a reference to copy.
        net: the net that operators called on the reference are added to.

    >>> BlobReference("fc1") + "_w"
    BlobReference("fc1_w")
    >>> BlobReference("gpu_0/fc1").GetUnscopedName()
    'fc1'
    """

    __slots__ = ("_name", "_net")

    def __init__(self, name: str | bytes | BlobReference, net: Any = None) -> None:
        if type(name) is not str:
            name = name.decode() if isinstance(name, bytes) else str(name)
        self._name = name
        self._net = net

    def __str__(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f'BlobReference("{self._name}")'

    def __hash__(self) -> int:
        return hash(self._name)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, BlobReference):
            return self._name == other._name
        return self._name == other if isinstance(other, str) else NotImplemented

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, (str, BlobReference)):
            return NotImplemented
        return self._name < str(other)

    def __gt__(self, other: object) -> bool:
        if not isinstance(other, (str, BlobReference)):
            return NotImplemented
        return self._name > str(other)

    def __add__(self, other: str) -> BlobReference:
        if not isinstance(other, str):
            self._refuse_to_add(other)
        return BlobReference(self._name + other, self._net)

    def __radd__(self, other: str) -> BlobReference:
        if not isinstance(other, str):
            self._refuse_to_add(other)
        return BlobReference(other + self._name, self._net)

    def _refuse_to_add(self, other: object) -> NoReturn:
        raise TypeError(
            f"blob {self._name!r}: + appends a string to the name, got {other!r}; "
            "net.Add([a, b], name) adds the values of blobs"
        )

    def __copy__(self) -> BlobReference:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> BlobReference:
        return self

    def __reduce__(self) -> tuple[type[BlobReference], tuple[str]]:
        return BlobReference, (self._name,)

    def Net(self) -> Any:
        """Return the net that made the reference, or None."""
        return self._net

    def GetNameScope(self) -> str:
        """Return the name up to and including the last "/"; "" without one."""
        return self._name[: self._name.rfind(SEPARATOR) + 1]

    def GetUnscopedName(self) -> str:
        """Return the name after the last "/"."""
        return self._name[self._name.rfind(SEPARATOR) + 1 :]

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        if not is_registered(op_type):  # operators only, so that a reference is never mistaken for its net
            raise LacksError(
                f"blob {self._name!r} has no attribute {op_type!r}, and no operator has this name",
                lambda: "" if op_type.startswith("_") else instead_of(op_type, operator_types()),
            )
        if self._net is None:
            raise AttributeError(
                f"blob {self._name!r}: its net is not known, so no operator can be added to it; "
                f"call it on a net: net.{op_type}([{self._name!r}], ...)"
            )
        return partial(self._call, getattr(self._net, op_type))

    def _call(self, operator: Callable[..., Any], inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        more = [] if inputs is None else inputs if isinstance(inputs, (list, tuple)) else [inputs]
        return operator([self, *more], *args, **kwargs)


class GradientSlice(NamedTuple):
    """A sparse gradient of a table: the rows ``indices`` have the gradients ``values``."""

    indices: BlobReference | str
    values: BlobReference | str


def blob_name(blob: Any) -> str:
    """Return the name of a blob given as a reference, a string or bytes.

    Raises:
        TypeError: ``blob`` is of another type.
    """
    if type(blob) is str:
        return blob
    if isinstance(blob, (BlobReference, str)):
        return str(blob)
    if isinstance(blob, bytes):
        return blob.decode()
    raise TypeError(f"a blob must be a BlobReference or a string, got {blob!r} of type {type(blob).__name__}")


def ScopedName(name: Any) -> str:
    """Return ``name`` with the current name scope as prefix; the name of a reference is already complete.

    >>> ScopedName("x")
    'x'
    """
    if isinstance(name, BlobReference):
        return str(name)
    return CurrentNameScope() + blob_name(name)


def ScopedBlobReference(name: Any, net: Any = None) -> BlobReference:
    """Return a reference to ``name`` under the current name scope, as ``BlobReference`` does without."""
    if isinstance(name, BlobReference):
        return name
    return BlobReference(ScopedName(name), net)


def gradient_name(blob: Any) -> str:
    """Return the name of the gradient of ``blob``.

    >>> gradient_name("gpu_0/fc_w")
    'gpu_0/fc_w_grad'
    """
    return blob_name(blob) + GRADIENT_SUFFIX


def is_gradient_name(blob: Any) -> bool:
    """Whether a name looks like one of ``gradient_name``. The map that AddGradientOperators returns is reliable."""
    return blob_name(blob).endswith(GRADIENT_SUFFIX)


def strip_gradient(blob: Any) -> str:
    """Return the name of the blob whose gradient is named ``blob``.

    Raises:
        NetError: ``blob`` does not have the suffix of a gradient.
    """
    name = blob_name(blob)
    if not name.endswith(GRADIENT_SUFFIX):
        raise NetError(f"blob {name!r} is not a gradient: the name of a gradient ends in {GRADIENT_SUFFIX!r}")
    return name[: -len(GRADIENT_SUFFIX)]


def seed_name(loss: Any) -> str:
    """Return the name of the blob of ones that seeds the backward pass of ``loss``."""
    return blob_name(loss) + AUTOGEN_GRADIENT_SUFFIX


SHARE_MARK = "_"
"""Begins the name of a share of a gradient, before the scope."""


def autosplit_name(gradient: str, index: int) -> str:
    """Return the name of the share of a gradient that comes from consumer ``index`` + 1.

    >>> autosplit_name("x_grad", 0)
    '_x_grad_autosplit_0'
    """
    return f"{SHARE_MARK}{gradient}_autosplit_{index}"


def other_gradient_name(gradient: str, version: int) -> str:
    """Return the name of the gradient of a blob's earlier version, for when the usual name is still in use."""
    return f"{gradient}_version_{version}"


def concat_names(gradient: str) -> tuple[str, str, str, str]:
    """Return the names of a concatenated sparse gradient: indices and their split, values and their split."""
    indices, values = gradient + "_indices_concat", gradient + "_values_concat"
    return indices, indices + "_split", values, values + "_split"


def gathered_name(blob: str) -> str:
    """Return the name of one replica's copy of an allgather result; the blob of its split has the suffix "_split".

    >>> gathered_name("cpu_0/rows_grad")
    'cpu_0/rows_grad_gathered'
    """
    return blob + "_gathered"


_PREFIXES: dict[int, str] = {PROTO_CPU: "cpu", PROTO_CUDA: "gpu"}
_DEVICE_PREFIX = re.compile(r"(?:cpu|gpu)_\d+/")


def device_prefix(device_type: int, device_id: int) -> str:
    """Return the name scope of a replica, without the "/".

    >>> device_prefix(PROTO_CUDA, 3)
    'gpu_3'

    Raises:
        NetError: the device type is neither CPU nor GPU.
    """
    if device_type not in _PREFIXES:
        raise NetError(f"device type {device_type}: replicas run on CPUs and GPUs only, of types {_PREFIXES}")
    return f"{_PREFIXES[device_type]}_{device_id}"


def with_prefix(prefix: str, blob: Any) -> str:
    """Return ``blob``'s name under ``prefix``; a name that has the prefix already is unchanged.

    >>> with_prefix("cpu_0", "fc_w"), with_prefix("cpu_0", "cpu_0/fc_w")
    ('cpu_0/fc_w', 'cpu_0/fc_w')
    """
    name, scope = blob_name(blob), prefix.rstrip(SEPARATOR) + SEPARATOR
    return name if name.startswith(scope) else scope + name


def strip_prefix(blob: Any, prefix: str | None = None) -> str:
    """Return ``blob``'s name without ``prefix``; None: without the scope of a replica.

    A name without this prefix is returned unchanged.

    >>> strip_prefix("gpu_11/a/fc_w"), strip_prefix("a/fc_w"), strip_prefix("a/fc_w", "a")
    ('a/fc_w', 'a/fc_w', 'fc_w')
    """
    name = blob_name(blob)
    if prefix is not None:
        return name.removeprefix(prefix.rstrip(SEPARATOR) + SEPARATOR)
    match = _DEVICE_PREFIX.match(name)
    return name[match.end() :] if match else name


def as_names(blobs: Any, *, unnamed: bool = False) -> list[str]:
    """Return the scoped names of a blob or of a list of blobs.

    Args:
        blobs: references or strings.
        unnamed: accept the empty string as a name.

    Raises:
        TypeError: an element is neither a reference nor a string.
        NetError: a name is empty, without ``unnamed``.
    """
    if isinstance(blobs, (list, tuple)):
        pass
    elif isinstance(blobs, (str, bytes, BlobReference)):
        blobs = (blobs,)
    elif isinstance(blobs, Iterable) and not isinstance(blobs, Mapping) and getattr(blobs, "ndim", 1) != 0:
        blobs = list(blobs)
    else:
        raise TypeError(
            f"blobs must be a BlobReference, a string, or a list of these, got {blobs!r} of type {type(blobs).__name__}"
        )
    scope: str | None = None
    names = []
    for blob in blobs:
        kind = type(blob)
        if kind is BlobReference:
            names.append(blob._name)
            continue
        if scope is None:
            scope = CurrentNameScope()
        if kind is str:
            if not blob and not unnamed:
                raise NetError("the name of a blob must not be empty, got ''")
            names.append(scope + blob)
        elif isinstance(blob, BlobReference):
            names.append(str(blob))
        else:
            names.append(scope + blob_name(blob))
    return names
