"""Strategies of the exchange between processes: what is sent of the gradients or parameters, and when."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Sequence
from typing import Any, ClassVar

from netbuilder.graph.block_updates import BlockRule
from netbuilder.ops.collectives.low_rank_allreduce import has_low_rank, low_rank_state
from netbuilder.ops.collectives.sparse_allreduce import top_k_count
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.suggestions import near_or_known

__all__ = [
    "STRATEGIES",
    "BlockMomentum",
    "DiLoCo",
    "HalfPrecision",
    "LocalSGD",
    "PartialSynchronization",
    "Plain",
    "PowerSGD",
    "Strategy",
    "Threshold",
    "TopK",
    "Zero",
]

Shape = tuple[int, ...]

_ENTRY = 8  # bytes of a position and a value
_LARGEST_FLOAT16 = 65504.0


@dataclass(frozen=True)
class Strategy:
    """Base of the strategies. Each is a frozen dataclass that checks its fields; ``Strategy.of`` reads its text form.

    Attributes:
        name: in the text form.
        sums_gradients: gradients are summed over the processes; otherwise each process trains with its own.
        blocks: replicas, also those of one process, train on their own between blocks.
        has_owners: each parameter is updated by one process, from which the others get it.
    """

    name: ClassVar[str]
    sums_gradients: ClassVar[bool] = True
    blocks: ClassVar[bool] = False
    has_owners: ClassVar[bool] = False

    @staticmethod
    def of(given: Any) -> Strategy:
        """Return a strategy: a given one, None for ``Plain()``, or that of a text.

        A text is a name, and after a colon the fields, by position or by name.

        Raises:
            ArgumentError: there is no such strategy, or a field is missing, unknown or out of range.
            TypeError: ``given`` is neither, or a field is of the wrong type.

        >>> Strategy.of("topk:0.01,residual=false")
        TopK(fraction=0.01, residual=False)
        >>> str(Strategy.of("half:bfloat16"))
        'half:bfloat16'
        """
        if given is None:
            return Plain()
        if isinstance(given, str):
            return _from_text(given)
        if not isinstance(given, Strategy):
            raise TypeError(
                f"strategy must be a Strategy, such as TopK(0.01), or a text such as 'topk:0.01', got {given!r}"
            )
        return given

    def planned_bytes(self, shapes: Sequence[Shape], processes: int) -> float | None:
        """Return the bytes that a process gives to the exchange in each step, on average; None: data decide.

        Args:
            shapes: those of the dense gradients.
            processes: their number.
        """
        return 4.0 * _elements(shapes)

    def operator(self) -> tuple[str, dict[str, Any]]:
        """Return the type and the arguments of the operator that exchanges gradients."""
        return "AllreduceBucket", {}

    @property
    def has_residuals(self) -> bool:
        """Whether there is a residual for each gradient."""
        return False

    def residual_shape(self, shape: Shape) -> Shape | None:
        """Return the shape of the residual of a gradient of some shape; None: it is the same, which need not be known.

        It has what else a process keeps of the gradient, too.
        """
        return None

    def rule(self, replicas: int) -> BlockRule | None:
        """Return the rule that brings so many replicas together after each block; None: there are no blocks."""
        return None

    def __str__(self) -> str:
        """Return the text form."""
        values = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.default is dataclasses.MISSING:
                values.append(_text(value))
            elif value != field.default:
                values.append(_text(value) if field.name == "dtype" else f"{field.name}={_text(value)}")
        return f"{self.name}:{','.join(values)}" if values else self.name


@dataclass(frozen=True)
class Plain(Strategy):
    """Gradients are summed over the processes as they are, in float32."""

    name = "plain"


@dataclass(frozen=True)
class HalfPrecision(Strategy):
    """Gradients are rounded to 16 bits on the way, which halves the bytes; parameters stay float32.

    They are summed in float32 and rounded once more. A finite gradient that the rounding makes infinite is an error on
    all processes, which names the gradient and the ranks.

    Args:
        dtype: "float16" or "bfloat16", which has the range of float32 and 8 significant bits instead of 11.
        clip: bound of the magnitude of each element before it is rounded; None: there is none.
    """

    dtype: str = "float16"
    clip: float | None = None
    name = "half"

    def __post_init__(self) -> None:
        if self.dtype not in ("float16", "bfloat16"):
            raise ArgumentError(f"HalfPrecision: dtype must be 'float16' or 'bfloat16', got {self.dtype!r}")
        if self.clip is not None:
            largest = _LARGEST_FLOAT16 if self.dtype == "float16" else math.inf
            clip = _number(self, "clip", self.clip)
            if not 0 < clip <= largest or math.isinf(clip):
                bound = f"at most {largest:g}, the largest {self.dtype}" if largest < math.inf else "finite"
                raise ArgumentError(f"HalfPrecision: clip must be positive and {bound}, got {self.clip!r}")

    def planned_bytes(self, shapes: Sequence[Shape], processes: int) -> float | None:
        return 2.0 * _elements(shapes)

    def operator(self) -> tuple[str, dict[str, Any]]:
        clip = {} if self.clip is None else {"clip": float(self.clip)}
        return "AllreduceBucket", {"precision": self.dtype, **clip}


@dataclass(frozen=True)
class PartialSynchronization(Strategy):
    """Each process updates its parameters with its own gradients; one chunk of the parameters is averaged in each step.

    Parameters are averaged, not gradients, after the update. The parameters, one after the other, are divided into
    chunks; after ceil(all elements / ``chunk``) steps each was averaged once. Parameters of processes differ meanwhile,
    and what optimizers keep, such as momenta, is not exchanged.

    Args:
        chunk: elements of a chunk.
    """

    chunk: int
    name = "partial"
    sums_gradients = False

    def __post_init__(self) -> None:
        _count(self, "chunk", self.chunk)

    def planned_bytes(self, shapes: Sequence[Shape], processes: int) -> float | None:
        chunks = max(1, -(-_elements(shapes) // self.chunk))
        return 4.0 * _elements(shapes) / chunks + 8  # and the number of the chunk


@dataclass(frozen=True)
class TopK(Strategy):
    """Of each gradient only the elements with the largest magnitudes are exchanged, each with its position.

    With ``fraction=1`` the sums are those of ``Plain``. An element takes 8 bytes instead of 4, so that fractions above
    one half send more than ``Plain``.

    Args:
        fraction: share of the elements of each gradient that each process gives, in (0, 1], rounded up.
        residual: add what a process has not given to its gradient of the next step; otherwise it is dropped.

    Source: Aji and Heafield, "Sparse communication for distributed gradient descent", 2017, arXiv:1704.05021.
    """

    fraction: float
    residual: bool = True
    name = "topk"

    def __post_init__(self) -> None:
        if not 0 < _number(self, "fraction", self.fraction) <= 1:
            raise ArgumentError(f"TopK: fraction must lie in (0, 1], got {self.fraction!r}")
        _flag(self, "residual", self.residual)

    def planned_bytes(self, shapes: Sequence[Shape], processes: int) -> float | None:
        return float(_ENTRY * sum(top_k_count(math.prod(shape), self.fraction) for shape in shapes))

    def operator(self) -> tuple[str, dict[str, Any]]:
        return "AllreduceTopK", {"fraction": float(self.fraction), "residual": int(self.residual)}

    @property
    def has_residuals(self) -> bool:
        return self.residual


@dataclass(frozen=True)
class Threshold(Strategy):
    """Of each gradient only the elements whose magnitude is at least a bound are exchanged, each with its position.

    With ``bound=0`` the sums are those of ``Plain``. Gradients are those of the mean over all samples, so that a
    process's share is the smaller, the more processes there are.

    Args:
        bound: not negative.
        residual: as for ``TopK``.
    """

    bound: float
    residual: bool = True
    name = "threshold"

    def __post_init__(self) -> None:
        if not 0 <= _number(self, "bound", self.bound) < math.inf:
            raise ArgumentError(f"Threshold: bound must be finite and not negative, got {self.bound!r}")
        _flag(self, "residual", self.residual)

    def planned_bytes(self, shapes: Sequence[Shape], processes: int) -> float | None:
        return None

    def operator(self) -> tuple[str, dict[str, Any]]:
        return "AllreduceThreshold", {"bound": float(self.bound), "residual": int(self.residual)}

    @property
    def has_residuals(self) -> bool:
        return self.residual


@dataclass(frozen=True)
class PowerSGD(Strategy):
    """Of the sum of each gradient an approximation of low rank is exchanged, as two factors.

    A gradient is a matrix with the rows of its first extent; those of one extent, and those whose factors would not be
    smaller, are summed whole. The factors are summed over the processes, so that the bytes that one receives do not
    grow with their number, other than those of ``TopK``.

    Args:
        rank: columns of the factors.
        warm_start: the next approximation begins with the last one, which makes it better in each step; otherwise with
            random numbers.
        residual: add what an approximation lacks to the gradients of the next step; otherwise it is dropped.

    Source: Vogels, Karimireddy and Jaggi, "PowerSGD: practical low-rank gradient compression for distributed
    optimization", 2019, arXiv:1905.13727.
    """

    rank: int
    warm_start: bool = True
    residual: bool = True
    name = "powersgd"

    def __post_init__(self) -> None:
        _count(self, "rank", self.rank)
        _flag(self, "warm_start", self.warm_start)
        _flag(self, "residual", self.residual)

    def planned_bytes(self, shapes: Sequence[Shape], processes: int) -> float | None:
        low = [shape for shape in shapes if has_low_rank(shape, self.rank)]
        whole = _elements(shapes) - _elements(low)
        return 4.0 * (whole + self.rank * sum(shape[0] + math.prod(shape[1:]) for shape in low))

    def operator(self) -> tuple[str, dict[str, Any]]:
        arguments = {"rank": self.rank, "warm_start": int(self.warm_start), "residual": int(self.residual)}
        return "AllreduceLowRank", arguments

    @property
    def has_residuals(self) -> bool:
        return True

    def residual_shape(self, shape: Shape) -> Shape | None:
        return low_rank_state(shape, self.rank, residual=self.residual)


@dataclass(frozen=True)
class Zero(Strategy):
    """Each parameter is owned by one process, which alone sums its gradient, updates it, and has its momenta.

    The others get the parameter after the update. Parameters are dealt whole, so that the processes own about as many
    bytes; numbers and bytes on the network are those of ``Plain``, momenta take 1 / P of the memory in each of P
    processes. Gradients are added in the order of the ranks, so that all is equal to the bit to ``Plain`` with
    ``deterministic=True``. Parameters with sparse gradients are updated by all processes.

    Args:
        stage: 1, with which the optimizer's state is divided; gradients (2) and parameters (3) are not.

    Source: Rajbhandari, Rasley, Ruwase and He, "ZeRO: memory optimizations toward training trillion parameter models",
    2020, arXiv:1910.02054, section 5.1.
    """

    stage: int
    name = "zero"
    has_owners = True

    def __post_init__(self) -> None:
        _count(self, "stage", self.stage)
        if self.stage > 1:
            raise ArgumentError(
                f"Zero: stage must be 1, which divides the optimizer's state over the processes, got {self.stage}; "
                "gradients and parameters cannot be divided"
            )

    def planned_bytes(self, shapes: Sequence[Shape], processes: int) -> float | None:
        return 4.0 * _elements(shapes) * (1 + 1 / processes)

    def operator(self) -> tuple[str, dict[str, Any]]:
        return "ReduceToOwners", {}


@dataclass(frozen=True)
class LocalSGD(Strategy):
    """All replicas train on their own; after each block of steps their parameters are averaged.

    This is ``Parallelize_BMUF`` without momentum over the blocks: replicas of one process train on their own, too.

    Args:
        iterations: steps of a block.
    """

    iterations: int
    name = "local_sgd"
    sums_gradients = False
    blocks = True

    def __post_init__(self) -> None:
        _count(self, "iterations", self.iterations)

    def planned_bytes(self, shapes: Sequence[Shape], processes: int) -> float | None:
        return 4.0 * _elements(shapes) / self.iterations

    def rule(self, replicas: int) -> BlockRule | None:
        return BlockRule(momentum=0.0, iterations=self.iterations)


@dataclass(frozen=True)
class BlockMomentum(Strategy):
    """All replicas train on their own; after each block their mean moves the parameters, with momentum over the blocks.

    See ``Parallelize_BMUF`` and ``BlockRule``.

    Args:
        iterations: steps of a block.
        momentum: of the blocks, in [0, 1); None: 1 - 1 / number of replicas.
        learning_rate: of the blocks, positive.
        nesterov: replicas start a block from the look-ahead.
        bits: of an element of the changes that processes exchange: 32, or 8, with what rounding loses added to the
            next block's change.
        overlap: steps of the next block that run while processes exchange the changes, and before the parameters are
            moved, fewer than ``iterations``; 0: the next block waits.
    """

    iterations: int
    momentum: float | None = None
    learning_rate: float = 1.0
    nesterov: bool = False
    bits: int = 32
    overlap: int = 0
    name = "block_momentum"
    sums_gradients = False
    blocks = True

    def __post_init__(self) -> None:
        _count(self, "iterations", self.iterations)
        if self.momentum is not None and not 0 <= _number(self, "momentum", self.momentum) < 1:
            raise ArgumentError(f"{type(self).__name__}: momentum must lie in [0, 1), got {self.momentum!r}")
        if not 0 < _number(self, "learning_rate", self.learning_rate) < math.inf:
            raise ArgumentError(
                f"{type(self).__name__}: learning_rate must be positive and finite, got {self.learning_rate!r}"
            )
        _flag(self, "nesterov", self.nesterov)
        _count(self, "bits", self.bits)
        if self.bits not in (8, 32):
            raise ArgumentError(f"{type(self).__name__}: bits must be 32 or 8, got {self.bits}")
        _count(self, "overlap", self.overlap, least=0)
        if self.overlap >= self.iterations:
            raise ArgumentError(
                f"{type(self).__name__}: overlap must be less than iterations={self.iterations}, got {self.overlap}"
            )

    def planned_bytes(self, shapes: Sequence[Shape], processes: int) -> float | None:
        scales = 4 * len(shapes) if self.bits == 8 else 0
        return (self.bits // 8 * _elements(shapes) + scales) / self.iterations

    def rule(self, replicas: int) -> BlockRule | None:
        momentum = 1.0 - 1.0 / replicas if self.momentum is None else float(self.momentum)
        return BlockRule(
            momentum=momentum,
            learning_rate=float(self.learning_rate),
            lookahead=momentum if self.nesterov else 0.0,
            iterations=self.iterations,
            bits=self.bits,
            overlap=self.overlap,
        )


@dataclass(frozen=True)
class DiLoCo(BlockMomentum):
    """``BlockMomentum`` with Nesterov's momentum, and the momentum and rate that were published for long blocks.

    Replicas usually train with Adam meanwhile, for some hundred steps.

    Source: Douillard and others, "DiLoCo: distributed low-communication training of language models", 2023,
    arXiv:2311.08105, section 3.
    """

    momentum: float | None = 0.9
    learning_rate: float = 0.7
    nesterov: bool = True
    name = "diloco"


STRATEGIES: dict[str, type[Strategy]] = {
    kind.name: kind
    for kind in (
        Plain,
        HalfPrecision,
        PartialSynchronization,
        TopK,
        Threshold,
        PowerSGD,
        Zero,
        LocalSGD,
        BlockMomentum,
        DiLoCo,
    )  # fmt: skip
}
"""The strategies by the names of their text forms."""


def _elements(shapes: Sequence[Shape]) -> int:
    return sum(map(math.prod, shapes))


def _number(strategy: Strategy, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{type(strategy).__name__}: {name} must be a number, got {value!r}")
    return float(value)


def _count(strategy: Strategy, name: str, value: Any, *, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{type(strategy).__name__}: {name} must be an integer, got {value!r}")
    if value < least:
        raise ArgumentError(f"{type(strategy).__name__}: {name} must be at least {least}, got {value}")


def _flag(strategy: Strategy, name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{type(strategy).__name__}: {name} must be True or False, got {value!r}")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _from_text(text: str) -> Strategy:
    name, _, rest = text.partition(":")
    kind = STRATEGIES.get(name)
    if kind is None:
        raise ArgumentError(
            f"strategy {text!r}: there is no strategy {name!r}{near_or_known(name, STRATEGIES, 'strategies')}"
        )
    fields = [field.name for field in dataclasses.fields(kind)]
    given: dict[str, Any] = {}
    for place, part in enumerate(rest.split(",") if rest else []):
        key, equals, value = part.partition("=")
        if not equals:
            key, value = fields[place] if place < len(fields) else part, part
        if key not in fields or key in given:
            listed = f"its fields are {', '.join(fields)}, each once" if fields else "it has no fields"
            raise ArgumentError(f"strategy {text!r}: {name} has no field for {part!r}; {listed}")
        given[key] = _value(value)
    required = [field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING]
    if missing := [key for key in required if key not in given]:
        raise ArgumentError(
            f"strategy {text!r}: {name} needs {', '.join(missing)}, as in '{name}:{_EXAMPLES[missing[0]]}'"
        )
    return kind(**given)


_EXAMPLES = {"chunk": "1000000", "fraction": "0.01", "bound": "0.001", "rank": "4", "stage": "1", "iterations": "8"}


def _value(text: str) -> Any:
    """Return the value of a text: a truth value, an integer, a number or, otherwise, the text."""
    known = {"true": True, "false": False, "none": None}
    if text.lower() in known:
        return known[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
