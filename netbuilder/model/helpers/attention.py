"""Transformers: positions, attention of several heads, blocks of attention and fully connected layers."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any

from netbuilder.graph.blob import BlobReference, ScopedName
from netbuilder.model.helpers.dropout import dropout as add_dropout
from netbuilder.model.helpers.engine import own_arguments
from netbuilder.model.helpers.extents import check_extents
from netbuilder.model.helpers.fc import fc
from netbuilder.model.helpers.normalization import layer_norm, rms_norm
from netbuilder.model.initializers import FillAndArguments, update_initializer
from netbuilder.model.parameter_info import ParameterInfo, ParameterTags
from netbuilder.proto import ArgumentError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.numbers import check_flags
from netbuilder.proto.suggestions import did_you_mean

if TYPE_CHECKING:
    from netbuilder.model.model_helper import ModelHelper

__all__ = ["KeyValueCache", "attention", "positions", "rotary_tables", "transformer_block"]

Blob = str | BlobReference

_BASE = 10000.0  # of the wave lengths of positions
_ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "gelu": ("Gelu", {}),
    "gelu_tanh": ("Gelu", {"fast_gelu": True}),
    "relu": ("Relu", {}),
    "swish": ("Swish", {}),
}
_NORMS: dict[str, Callable[..., BlobReference]] = {"layer": layer_norm, "rms": rms_norm}


@dataclass
class KeyValueCache:
    """The keys and values of earlier positions, for nets that compute one or a few positions a run.

    ``netbuilder.model.Generator`` makes it, and feeds the blobs before each run.

    Args:
        batch: number of sequences.
        length: the longest sequence, in positions.

    Attributes:
        positions: the blob with the numbers of the positions of a run, (T,), int32.
        mask: the blob that is true where one of these positions sees a position of the cache, (T, length), bool.
        shapes: for each blob with keys or values its shape, (batch, heads, length, width).
    """

    batch: int
    length: int
    positions: BlobReference = BlobReference("cache_positions")
    mask: BlobReference = BlobReference("cache_mask")
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def extend(self, model: ModelHelper, name: Blob, rows: BlobReference, heads: int, width: int) -> BlobReference:
        """Store the rows of a run's positions, (batch, heads, T, width); return those of all positions."""
        blob = BlobReference(ScopedName(name), model.net)
        self.shapes[str(blob)] = (self.batch, heads, self.length, width)
        stored: BlobReference = model.net.ScatterAssign([blob, self.positions, rows], blob, axis=2)
        return stored


def positions(
    model: ModelHelper,
    blob_in: Blob,
    blob_out: Blob,
    dim: int,
    length: int,
    *,
    kind: str = "learned",
    steps: int | None = None,
    weight_init: FillAndArguments | None = None,
    cache: KeyValueCache | None = None,
) -> BlobReference:
    """Add to the vectors of a sequence those of their positions, ``<blob_out>_w``, (length, dim).

    Args:
        blob_in: activations, (N, steps, dim); with a cache (N, T, dim), T at most ``length``.
        blob_out: name of the result.
        length: number of positions.
        kind: "learned", or "sinusoidal": sines and cosines of wave lengths from 2 pi to 20000 pi, which stay as they
            are.
        steps: number of positions of the activations, at most ``length``; None: ``length``.
        weight_init: (fill operator, its arguments) of learned vectors; a normal distribution of standard deviation
            0.02 if None.
        cache: for a net that computes a few positions a run.

    Raises:
        ArgumentError: ``kind`` is unknown, an extent is not a positive integer, ``dim`` is odd for sines and cosines;
            the sequences of the cache are longer than ``length``.

    Source: Vaswani et al., "Attention Is All You Need", 2017, arXiv:1706.03762, section 3.5.
    """
    check_extents("positions", blob_out, dim=dim, length=length)
    if cache is not None and not isinstance(cache, KeyValueCache):
        raise ArgumentError(f"positions {str(blob_out)!r}: cache must be that of a Generator, got {cache!r}")
    if cache is not None and cache.length > length:
        raise ArgumentError(
            f"positions {str(blob_out)!r} has {length} positions, and the Generator asks for sequences of "
            f"length={cache.length}; give it a length of at most {length}"
        )
    name = blob_out + "_w"
    if kind == "learned":
        fill = update_initializer(None, weight_init, ("GaussianFill", {"std": 0.02}))
        table = model.create_param(name, [length, dim], fill, ParameterTags.WEIGHT)
    elif kind == "sinusoidal":
        table = model.create_param(name, [length, dim], _Waves(dim), ParameterTags.COMPUTED_PARAM)
    else:
        raise ArgumentError(f"positions {str(blob_out)!r}: kind must be 'learned' or 'sinusoidal', got {kind!r}")
    if cache is not None:
        table = model.net.Gather([table, cache.positions], blob_out + "_rows")
    elif steps not in (None, length):
        check_extents("positions", blob_out, steps=steps)
        if steps > length:
            raise ArgumentError(f"positions {str(blob_out)!r}: steps must be at most length={length}, got {steps}")
        table = model.net.Slice(table, blob_out + "_rows", starts=[0, 0], ends=[steps, -1])
    result: BlobReference = model.net.Add([blob_in, table], blob_out)
    if cache is None:
        op = model.net.Proto().op[-1]
        which = f"(adds the vectors of {steps or length} positions, so sequences must have as many)"
        op.debug_info = f"{op.debug_info} {which}".lstrip()
    return result


def rotary_tables(
    model: ModelHelper, blob_out: Blob, width: int, length: int, *, base: float = _BASE
) -> tuple[BlobReference, BlobReference]:
    """Create the tables of ``attention``'s argument ``rotary``, which all layers of a net may share.

    Args:
        blob_out: prefix of the names ``<blob_out>_cos`` and ``<blob_out>_sin``.
        width: number of features of a head, even.
        length: number of positions.
        base: the greatest wave length, divided by 2 pi.

    Returns:
        Cosines and sines of the angles, (length, width / 2).

    Raises:
        ArgumentError: an extent is not a positive integer, ``width`` is odd, ``base`` is not positive.

    Source: Su et al., "RoFormer", 2021, arXiv:2104.09864, section 3.4.2.
    """
    check_extents("rotary_tables", blob_out, width=width, length=length)
    if base <= 0:
        raise ArgumentError(f"rotary_tables {str(blob_out)!r}: base must be positive, got {base}")
    cos, sin = (
        model.create_param(
            blob_out + suffix, [length, width // 2], _Waves(width, base, op), ParameterTags.COMPUTED_PARAM
        )
        for suffix, op in (("_cos", "Cos"), ("_sin", "Sin"))
    )
    return cos, sin


class _Waves:
    """Initializes a table of sines, cosines or, for each pair of columns, both, of positions over wave lengths."""

    def __init__(self, width: int, base: float = _BASE, only: str = "") -> None:
        if width % 2:
            raise ArgumentError(f"sines and cosines of positions: the width must be even, got {width}")
        self.width, self.base, self.only = width, base, only

    def create_param(self, param_name: BlobReference, init_net: Any, shape: Sequence[int]) -> Any:
        """Add the operators that compute the table."""

        def named(what: str) -> BlobReference:
            return BlobReference(f"_{param_name}_{what}")

        def numbers(what: str, count: int, axis: int) -> BlobReference:
            stop = init_net.ConstantFill([], named(f"{what}_count"), shape=[1], value=float(count))
            row: BlobReference = init_net.ExpandDims(
                init_net.Range([stop], named(f"{what}_row")), named(what), dims=[axis]
            )
            return row

        exponents = init_net.Scale(
            numbers("pairs", self.width // 2, 0), named("exponents"), scale=-2 * math.log(self.base) / self.width
        )
        rates = init_net.Exp(exponents, named("rates"))
        angles = init_net.Mul([numbers("positions", shape[0], 1), rates], named("angles"))
        if self.only:
            return ParameterInfo(None, getattr(init_net, self.only)(angles, param_name), shape=shape)
        parts = [getattr(init_net, op)(angles, named(op)) for op in ("Sin", "Cos")]
        joined, _ = init_net.Concat(parts, [named("joined"), named("parts")], axis=2, add_axis=1)
        table, _ = init_net.Reshape(joined, [param_name, named("shape")], shape=list(shape))
        return ParameterInfo(None, table, shape=shape)


def attention(
    model: ModelHelper,
    blob_in: Blob,
    blob_out: Blob,
    dim: int,
    heads: int,
    *,
    memory: Blob | None = None,
    memory_dim: int | None = None,
    key_heads: int | None = None,
    causal: bool = False,
    mask: Blob | None = None,
    mask_gradient: bool = False,
    rotary: tuple[Blob, Blob] | None = None,
    bias: bool = True,
    dropout: float = 0.0,
    is_test: bool | None = None,
    weight_init: FillAndArguments | None = None,
    out_init: FillAndArguments | None = None,
    cache: KeyValueCache | None = None,
) -> BlobReference:
    """Add attention of several heads, with the projections of its queries, keys, values and result.

    Self-attention has one projection ``<blob_out>_qkv`` for queries, keys and values (its parameters have the suffixes
    ``_w`` and ``_b``), attention to a memory has ``<blob_out>_q`` and ``<blob_out>_kv``; that of the result is
    ``<blob_out>``.

    Args:
        blob_in: activations, (N, T, dim).
        blob_out: name of the result.
        heads: number of heads, a divisor of ``dim``.
        memory: for cross-attention, the activations (N, S, ``memory_dim``) that have the keys and values.
        memory_dim: ``dim`` if None.
        key_heads: number of heads of keys and values, a divisor of ``heads``; ``heads`` if None. 1: multi-query.
        causal: whether a position sees only those up to itself.
        mask: (N, heads, T, S) or broadcastable to it: true where a position sees another one, or numbers to add to the
            scores; with dropout, numbers only.
        mask_gradient: whether the numbers are learned, as a bias of relative positions is.
        rotary: the tables of ``rotary_tables``, by which queries and keys are rotated.
        bias: whether the projections have a bias.
        dropout: probability that a weight of the softmax is dropped in training, in [0, 1).
        is_test: required with dropout.
        weight_init, out_init: (fill operator, its arguments) of the weights, and of those of the last projection; as
            for ``fc``, and ``weight_init``, if None.
        cache: for a net that computes a few positions of a sequence a run.

    Returns:
        (N, T, dim).

    Raises:
        ArgumentError: the heads do not divide the width or each other, an argument is out of range or contradicts
            another one.

    Source: Vaswani et al., "Attention Is All You Need", 2017, arXiv:1706.03762, section 3.2; of fewer heads for keys:
    Ainslie et al., "GQA", 2023, arXiv:2305.13245.
    """
    groups = heads if key_heads is None else key_heads
    check_extents("attention", blob_out, dim=dim, heads=heads, key_heads=groups)
    check_flags(f"attention {str(blob_out)!r}", causal=causal, mask_gradient=mask_gradient, bias=bias)
    _check_attention(blob_out, dim, heads, groups, dropout, is_test, memory, cache, rotary)
    width = dim // heads
    sizes = [heads * width, groups * width, groups * width]
    init: dict[str, Any] = {"weight_init": weight_init, "bias": bias}
    if memory is None:
        joined = _project(model, blob_in, blob_out + "_qkv", dim, sum(sizes), **init)
        parts = model.net.Split(joined, [blob_out + suffix for suffix in ("_q", "_k", "_v")], axis=2, split=sizes)
    else:
        query = _project(model, blob_in, blob_out + "_q", dim, sizes[0], **init)
        joined = _project(model, memory, blob_out + "_kv", memory_dim or dim, 2 * sizes[1], **init)
        parts = query, *model.net.Split(joined, [blob_out + "_k", blob_out + "_v"], axis=2, split=sizes[1:])
    q, k, v = (_by_head(model, part, count, width) for part, count in zip(parts, (heads, groups, groups)))
    if rotary is not None:
        where = [] if cache is None else [cache.positions]
        q, k = (model.net.RotaryEmbedding([part, *rotary, *where], part + "_rotated") for part in (q, k))
    if cache is not None:
        k, v = (
            cache.extend(model, blob_out + f"_{what}", part, groups, width)
            for what, part in (("keys", k), ("values", v))
        )
        mask, causal = cache.mask, False
    if dropout and not is_test:
        if mask is not None and not mask_gradient and not model.net.is_external_input(mask):
            mask = model.net.StopGradient(mask, blob_out + "_mask")
        k, v = (_repeated(model, part, heads // groups, heads, width) for part in (k, v))
        seen = _with_dropout(model, (q, k, v), blob_out, width, causal, mask, dropout)
    else:
        given = [] if mask is None else [mask]
        seen = model.net.Attention(
            [q, k, v, *given], blob_out + "_heads", causal=int(causal), mask_gradient=int(mask_gradient)
        )
    together = model.net.Transpose(seen, blob_out + "_by_position", axes=[0, 2, 1, 3])
    rows, _ = model.net.Reshape(together, [blob_out + "_rows", f"_{blob_out}_shape"], shape=[0, 0, dim])
    return _project(
        model, rows, blob_out, dim, dim, weight_init=weight_init if out_init is None else out_init, bias=bias
    )


def _check_attention(
    out: Blob,
    dim: int,
    heads: int,
    groups: int,
    dropout: float,
    is_test: bool | None,
    memory: Any,
    cache: Any,
    rotary: Any,
) -> None:
    layer = f"attention {str(out)!r}"
    if cache is not None and not isinstance(cache, KeyValueCache):
        raise ArgumentError(f"{layer}: cache must be the one that a Generator passes on, got {cache!r}")
    if rotary is not None and (not isinstance(rotary, (tuple, list)) or len(rotary) != 2):
        raise ArgumentError(f"{layer}: rotary must be the pair of tables that rotary_tables returns, got {rotary!r}")
    if dim % heads or heads % groups:
        raise ArgumentError(
            f"{layer}: heads must divide dim={dim}, and key_heads the heads, got heads={heads}, key_heads={groups}"
        )
    if not 0 <= dropout < 1:
        raise ArgumentError(f"{layer}: dropout must lie in [0, 1), got {dropout}")
    if dropout and is_test is None:
        raise ArgumentError(f"{layer}: is_test is required with dropout: False in a training net, True in a test net")
    if cache is not None and (memory is not None or dropout and not is_test):
        raise ArgumentError(f"{layer}: a cache is for self-attention in test nets; give no memory, and is_test=True")


def _project(
    model: ModelHelper, blob_in: Blob, out: Blob, dim_in: int, dim_out: int, *, weight_init: Any, bias: bool
) -> BlobReference:
    """Add a fully connected layer over the last of three axes; its bias is a constant 0 without ``bias``."""
    if not bias:
        zeros = update_initializer(None, None, ("ConstantFill", {}))
        model.create_param(out + "_b", [dim_out], zeros, ParameterTags.COMPUTED_PARAM)
    return fc(model, blob_in, out, dim_in, dim_out, weight_init=weight_init, axis=2)


def _by_head(model: ModelHelper, blob: BlobReference, heads: int, width: int) -> BlobReference:
    """Return (N, T, heads * width) as (N, heads, T, width)."""
    parts, _ = model.net.Reshape(blob, [blob + "_parts", f"_{blob}_shape"], shape=[0, 0, heads, width])
    result: BlobReference = model.net.Transpose(parts, blob + "_by_head", axes=[0, 2, 1, 3])
    return result


def _with_dropout(
    model: ModelHelper, qkv: Sequence[BlobReference], out: Blob, width: int, causal: bool, mask: Any, ratio: float
) -> BlobReference:
    """Add attention in parts, with weights that are dropped at random."""
    q, k, v = qkv
    scores = model.net.BatchMatMul([q, k], out + "_products", trans_b=1)
    scores = model.net.Scale(scores, out + "_scores", scale=width**-0.5)
    if mask is not None:
        scores = model.net.Add([scores, mask], out + "_masked")
    if causal:
        scores = model.net.SequenceMask(scores, out + "_causal", mode="upper", axis=3, batch=1)
    weights = model.net.Softmax(scores, out + "_weights", axis=-1)
    kept = add_dropout(model, weights, out + "_kept", ratio=ratio, is_test=0)
    result: BlobReference = model.net.BatchMatMul([kept, v], out + "_heads")
    return result


def _repeated(model: ModelHelper, blob: BlobReference, times: int, heads: int, width: int) -> BlobReference:
    """Return keys or values with each head repeated for the heads of queries that share it."""
    if times == 1:
        return blob
    tiled = model.net.Tile(model.net.ExpandDims(blob, blob + "_once", dims=[2]), blob + "_tiled", axis=2, tiles=times)
    result: BlobReference = model.net.Reshape(
        tiled, [blob + "_repeated", f"_{blob}_tiled_shape"], shape=[0, heads, -1, width]
    )[0]
    return result


def transformer_block(
    model: ModelHelper,
    blob_in: Blob,
    blob_out: Blob,
    dim: int,
    heads: int,
    *,
    hidden: int | None = None,
    activation: str = "gelu",
    norm: str = "layer",
    norm_first: bool = True,
    epsilon: float = 1e-5,
    dropout: float = 0.0,
    is_test: bool | None = None,
    weight_init: FillAndArguments | None = None,
    out_init: FillAndArguments | None = None,
    **of_attention: Any,
) -> BlobReference:
    """Add a block of a transformer: self-attention and two fully connected layers, each with a normalization, around
    which its input is added to its result.

    Args:
        blob_in: activations, (N, T, dim).
        blob_out: name of the result, and prefix of the names of all layers: ``_norm1``, ``_attention``, ``_norm2``,
            ``_fc1``, ``_fc2``.
        heads: of the attention.
        hidden: number of features between the fully connected layers; 4 ``dim`` if None.
        activation: of these features: "gelu", "gelu_tanh", "relu" or "swish".
        norm: "layer" or "rms".
        norm_first: normalize the input of the layers ("pre-norm", as in GPT-2 and ViT), or the sums ("post-norm", as in
            BERT).
        epsilon: of the normalizations.
        dropout: probability with which weights of the softmax and results of attention and layers are dropped.
        is_test: required with dropout.
        weight_init, out_init: as for ``attention``, and of both fully connected layers.
        of_attention: further arguments of ``attention``: ``causal``, ``mask``, ``key_heads``, ``rotary``, ``bias``,
            ``cache``, ...

    Returns:
        (N, T, dim).

    Raises:
        ArgumentError: as for ``attention``; ``activation`` or ``norm`` is unknown.

    Source: Vaswani et al., "Attention Is All You Need", 2017, arXiv:1706.03762; of normalization first: Radford et al.,
    "Language Models are Unsupervised Multitask Learners", 2019.
    """
    for what, name, known in (("activation", activation, _ACTIVATIONS), ("norm", norm, _NORMS)):
        if name not in known:
            raise ArgumentError(
                f"transformer_block {str(blob_out)!r}: {what} must be one of {', '.join(known)}, got {name!r}"
                f"{did_you_mean(name, known)}"
            )
    given = {"weight_init": weight_init, "out_init": out_init, **own_arguments(of_attention)}
    possible = [*inspect.signature(attention).parameters, *inspect.signature(transformer_block).parameters]
    for name in given:
        if name not in possible:
            raise TypeError(
                f"brew.transformer_block: got an unexpected keyword argument {name!r}{did_you_mean(name, possible)}"
            )
    last = weight_init if out_init is None else out_init
    op_type, arguments = _ACTIVATIONS[activation]
    wide = 4 * dim if hidden is None else hidden

    def attend(blob: Blob) -> BlobReference:
        return attention(model, blob, blob_out + "_attention", dim, heads, dropout=dropout, is_test=is_test, **given)

    def connect(blob: Blob) -> BlobReference:
        inner = fc(model, blob, blob_out + "_fc1", dim, wide, weight_init=weight_init, axis=2)
        inner = getattr(model.net, op_type)(inner, blob_out + "_active", **arguments)
        return fc(model, inner, blob_out + "_fc2", wide, dim, weight_init=last, axis=2)

    x: Any = blob_in
    for number, (name, layers) in enumerate((("_attended", attend), ("", connect)), 1):
        normalize = partial(
            _NORMS[norm], model, blob_out=f"{blob_out}_norm{number}", dim_in=dim, axis=2, epsilon=epsilon
        )
        made = layers(normalize(blob_in=x) if norm_first else x)
        if dropout and not is_test:
            made = add_dropout(model, made, made + "_dropped", ratio=dropout, is_test=0)
        if norm_first:
            x = model.net.Add([x, made], blob_out + name)
        else:
            x = normalize(blob_in=model.net.Add([x, made], f"{blob_out}_sum{number}"))
    result: BlobReference = x
    return result
