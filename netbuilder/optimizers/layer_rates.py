"""Learning rates by layer: the layers of a net, found in its graph, and factors that fall from its end to its start."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from netbuilder.graph.passages import values_left
from netbuilder.graph.shapes import infer_shapes
from netbuilder.graph.versions import EXTERNAL, Versions, number_versions
from netbuilder.model.model_helper import ModelHelper
from netbuilder.proto import NetError
from netbuilder.proto.numbers import check_numbers

__all__ = ["factors_by_pattern", "layer_rates", "layers_of", "parameters_by_pattern"]


def layer_rates(model: ModelHelper, decay: float) -> dict[str, float]:
    """Return a factor of the rate for each parameter: 1 for the last layer, ``decay`` for the one before, and so on.

    Args:
        model: the model, with its backward pass or without; each net in it counts from its own end.
        decay: factor from a layer to the one before, in (0, 1], usually 0.7 to 0.95.

    Returns:
        what ``build_optimizer`` takes as ``rates``.

    Raises:
        ArgumentError: ``decay`` is out of range.

    Source: Clark et al., "ELECTRA", 2020, arXiv:2003.10555, appendix B.

    >>> from netbuilder.model import brew
    >>> model = ModelHelper("layers")
    >>> hidden = brew.relu(model, brew.fc(model, "data", "fc1", 4, 3), "relu")
    >>> scores = brew.fc(model, hidden, "fc2", 3, 2)
    >>> layer_rates(model, 0.5)
    {'fc1_w': 0.5, 'fc1_b': 0.5, 'fc2_w': 1.0, 'fc2_b': 1.0}
    """
    check_numbers("layer rates", "in (0, 1]", decay=decay)
    return {
        name: decay ** (len(net) - number) for net in layers_of(model) for number, layer in enumerate(net, 1)
        for name in layer
    }  # fmt: skip


def layers_of(model: ModelHelper) -> list[list[list[str]]]:
    """Return for each net of a model, such as a replica, the names of the parameters of each layer, in order.

    A layer is what lies between two values through which all of the net's data pass, such as a residual block or half
    a block of a transformer. One with vectors only, such as a normalization, belongs to the layer before it. A
    parameter that several layers share belongs to the first.
    """
    shapes = infer_shapes([model.param_init_net]).shapes
    vectors = {name for name, shape in shapes.items() if sum(extent != 1 for extent in shape) < 2}
    versions = number_versions(itertools.takewhile(lambda op: not op.is_gradient_op, model.net.Proto().op))
    parts = _used_parameters(versions, [str(param) for param in model.params])
    nets = [_layers(versions, net, vectors) for net in _connected(versions, parts)]
    return [net for net in nets if net]


class _Part(NamedTuple):
    """An operator that computes values from data and parameters.

    Args:
        place: index of the operator.
        first: the parameters that it is the first to use.
        inputs: the values that it reads and that other parts have computed.
    """

    place: int
    first: list[str]
    inputs: list[int]


def _used_parameters(versions: Versions, params: Sequence[str]) -> list[_Part]:
    """Return the operators that compute values from data and parameters.

    What is computed from parameters alone, such as another type, stands for these.
    """
    known = set(params)
    of = {value: [name] for value, name in enumerate(versions.names)
          if versions.writers[value] == EXTERNAL and name in known}  # fmt: skip
    computed, seen, found = set[int](), set[str](), list[_Part]()
    for index, (inputs, outputs) in enumerate(zip(versions.inputs, versions.outputs)):
        used = dict.fromkeys(name for value in inputs for name in of.get(value, ()))
        if used and all(value in of for value in inputs):
            of.update(dict.fromkeys(outputs, list(used)))
        elif used or not computed.isdisjoint(inputs):
            found.append(_Part(index, [name for name in used if name not in seen], [*computed.intersection(inputs)]))
            computed.update(outputs)
            seen.update(used)
    return found


def _connected(versions: Versions, parts: Iterable[_Part]) -> list[list[_Part]]:
    """Return the parts of each net: those that are connected by values that they compute."""
    net_of: dict[int, list[_Part]] = {}  # value -> the net that computes it
    for part in parts:
        nets = sorted({id(net_of[value]): net_of[value] for value in part.inputs}.values(), key=len)
        whole: list[_Part] = nets.pop() if nets else []
        for each in [part, *itertools.chain(*nets)]:
            whole.append(each)
            net_of.update(dict.fromkeys(versions.outputs[each.place], whole))
    return [sorted(net) for net in {id(net): net for net in net_of.values()}.values()]


def _layers(versions: Versions, net: Iterable[_Part], vectors: set[str]) -> list[list[str]]:
    """Return the parameters of the layers of a net: one ends where a single value is still to be read."""
    layers, first = [list[str]()], {part.place: part.first for part in net}
    for index, live in values_left(versions, sorted(first)):
        layers[-1] += first[index]
        if len(live) < 2 and layers[-1]:
            layers.append([])
            if len(layers) > 2 and vectors.issuperset(layers[-2]):
                layers[-3:] = [layers[-3] + layers[-2], []]
    return layers[:-1] if not layers[-1] else layers


def factors_by_pattern(model: ModelHelper, rates: Mapping[str, float]) -> dict[str, float]:
    """Return the factor of the rate of each parameter that a pattern fits; several that fit one are multiplied.

    Args:
        model: the model.
        rates: pattern of names, of all replicas if they are without the scope of one -> factor.

    Raises:
        NetError: a pattern fits no parameter.
        ArgumentError: a factor is not a positive number.
    """
    for pattern, factor in rates.items():
        check_numbers("rates", "positive", **{f"that of {pattern!r}": factor})
    found: dict[str, float] = {}
    for pattern, params in parameters_by_pattern(model, "rates", rates).items():
        for param in params:
            found[param] = found.get(param, 1.0) * rates[pattern]
    return found


def parameters_by_pattern(model: ModelHelper, argument: str, patterns: Iterable[str]) -> dict[str, list[str]]:
    """Return the parameters that each pattern of names fits.

    Args:
        model: the model.
        argument: which argument has the patterns.
        patterns: of names, of all replicas if they are without the scope of one.

    Raises:
        NetError: a pattern fits no parameter.
    """
    short = {str(param): _without_scope(str(param), model.replica_scopes) for param in model.params}
    found: dict[str, list[str]] = {}
    for pattern in patterns:
        fits = [pattern] if pattern in short else [name for name in short if _fits(pattern, name, short[name])]
        if not fits:
            names = ", ".join(sorted(set(short.values())))
            raise NetError(f"model {model.name!r}: {argument}: {pattern!r} fits no parameter of {names}")
        found[pattern] = fits
    return found


def _fits(pattern: str, *names: str) -> bool:
    return pattern in names or any(fnmatchcase(name, pattern) for name in names)


def _without_scope(name: str, scopes: tuple[str, ...]) -> str:
    return next((name.removeprefix(scope) for scope in scopes if name.startswith(scope)), name)
