"""The parameters of a model: creation, lists, selection by name scope."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.graph.net import Net
from netbuilder.graph.scope import SEPARATOR, CurrentNameScope
from netbuilder.graph.source import warn_user
from netbuilder.model.initializers import ExternalInitializer
from netbuilder.model.parameter_info import ParameterInfo, ParameterTags
from netbuilder.model.parameter_sharing import parameter_name
from netbuilder.proto import NetError, ShapeError, UsageError
from netbuilder.proto.arguments import arguments
from netbuilder.proto.call_checks import checked

__all__ = ["ModelParameters"]

Tags = str | Iterable[str] | None


class ModelParameters:
    """The methods of ``ModelHelper`` for parameters.

    Args:
        name: name of the model, for errors.
        init_net: net that initializes parameters.
        init_params: whether this model initializes them; otherwise another one does.
        shared_with: the model whose parameters this one shares, or None.
    """

    def __init__(self, name: str, init_net: Net, *, init_params: bool, shared_with: ModelParameters | None) -> None:
        self.name = name
        self.param_init_net = init_net
        self.init_params = init_params
        self.weights: list[BlobReference] = []
        self.biases: list[BlobReference] = []
        # Shared, not copied: a parameter created through either model belongs to both.
        self.params: list[BlobReference] = [] if shared_with is None else shared_with.params
        self._computed_params: list[BlobReference] = [] if shared_with is None else shared_with._computed_params
        self._infos: dict[str, ParameterInfo] = {} if shared_with is None else shared_with._infos
        self._shared_names = frozenset(self._infos).union(map(str, [*self.params, *self._computed_params]))

    @checked("initializer", "param_name", "shape", "tags")
    def create_param(
        self, param_name: str | BlobReference, shape: Sequence[int], initializer: Any, tags: Tags = None
    ) -> BlobReference:
        """Create a parameter, or return the existing one of this name.

        Args:
            param_name: a string, which gets the current name scope or the one that ``ParameterSharing`` maps it to,
                or a reference with the full name.
            shape: extents, in elements.
            initializer: initializes the parameter; ignored by a test model.
            tags: values of ``ParameterTags``.

        Raises:
            TypeError: ``param_name`` is neither a string nor a reference, or ``initializer`` is not an initializer.
            ShapeError: ``shape`` is not a shape.
            UsageError: the parameter exists with another shape.
        """
        if isinstance(param_name, BlobReference):
            name = BlobReference(str(param_name))
        elif isinstance(param_name, str):
            name = parameter_name(param_name)
        else:
            raise TypeError(f"param_name must be a string or a BlobReference, got {param_name!r}")
        for extent in () if shape is None else _extents(shape):
            if not hasattr(extent, "__index__") or extent < 0:
                raise ShapeError(
                    f"model {self.name!r}: the shape of parameter {str(name)!r} must be integers >= 0, got {shape!r}"
                )
        known = self._infos.get(str(name))
        if known is not None:
            if shape is not None and known.shape is not None and list(shape) != list(known.shape):
                raise UsageError(
                    f"model {self.name!r}: parameter {known.name!r} exists already with shape {list(known.shape)}, and "
                    f"was requested with {list(shape)}; give the layer another name or scope"
                )
            return known.blob
        maker = initializer if self.init_params else ExternalInitializer()
        if not hasattr(maker, "create_param"):
            raise TypeError(
                f"model {self.name!r}, parameter {str(name)!r}: the initializer must have a method create_param, for "
                f'example Initializer("XavierFill"); got {initializer!r}'
            )
        info = maker.create_param(param_name=name, init_net=self.param_init_net, shape=shape)
        self._infos[info.name] = info
        self._list(info.blob, _tags(tags))
        return info.blob

    def AddParameter(self, param: BlobReference, tags: Tags = None) -> None:
        """Register a blob as a parameter.

        A test model removes the operator that initializes it from its init net, with a warning, because it would
        overwrite the trained value.

        Args:
            param: the blob, as returned by the init net's operator.
            tags: values of ``ParameterTags``; with COMPUTED_PARAM the parameter is not trained.

        Raises:
            TypeError: ``param`` is not a blob reference.
        """
        if not isinstance(param, BlobReference):
            raise TypeError(
                f"model {self.name!r}: a parameter must be the BlobReference that its operator returned, got {param!r}"
            )
        name = str(param)
        if name not in self._shared_names:
            self._list(param, _tags(tags))
        if not self.init_params or name in self._shared_names:
            self._remove_initializer(name)
        ops = self.param_init_net.Proto().op
        if name not in self._infos and len(ops) and name in ops[-1].output:
            self._infos[name] = self._info_from_init(param)

    def _list(self, param: BlobReference, tags: set[str]) -> None:
        (self._computed_params if ParameterTags.COMPUTED_PARAM in tags else self.params).append(param)
        if ParameterTags.WEIGHT in tags:
            self.weights.append(param)
        if ParameterTags.BIAS in tags:
            self.biases.append(param)

    def _remove_initializer(self, name: str) -> None:
        ops = self.param_init_net.Proto().op
        for index in range(len(ops) - 1, -1, -1):
            if name in ops[index].output:
                warn_user(
                    f"model {self.name!r} shares parameter {name!r} with the model that trains it: {ops[index].type} "
                    "is removed from its init net, because it would overwrite the trained value"
                )
                self._infos[name] = self._info_from_init(param=BlobReference(name, self.param_init_net))
                del ops[index]
                return

    def get_param_info(self, param: BlobReference) -> ParameterInfo | None:
        """Return the information about a parameter, None if it is not a parameter of this model.

        Raises:
            TypeError: ``param`` is not a blob reference.
        """
        if not isinstance(param, BlobReference):
            raise TypeError(f"model {self.name!r}: a parameter must be a BlobReference, got {param!r}")
        info = self._infos.get(str(param))
        if info is None and (param in self.params or param in self._computed_params):
            info = self._infos[str(param)] = self._info_from_init(param)
        return info

    def _info_from_init(self, param: BlobReference) -> ParameterInfo:
        name = str(param)
        for op in reversed(self.param_init_net.Proto().op):
            if name in op.output:
                shape = arguments(op).get("shape") if not op.input else None
                return ParameterInfo(None, param, shape=shape)
        return ParameterInfo(None, param)

    @checked()
    def GetParams(self, namescope: str | None = None, top_scope: bool = False) -> list[BlobReference]:
        """Return the trained parameters in a name scope.

        Args:
            namescope: the scope; "": all parameters; None: the current scope.
            top_scope: use only the first level of the scope.
        """
        scope = _scope(namescope)
        if top_scope:
            first, separator, _ = scope.partition(SEPARATOR)
            scope = first + separator
        return _within(self.params, scope)

    @checked()
    def GetComputedParams(self, namescope: str | None = None) -> list[BlobReference]:
        """Return the parameters that operators compute, such as running means; arguments as in ``GetParams``."""
        return _within(self._computed_params, _scope(namescope))

    def GetAllParams(self, namescope: str | None = None) -> list[BlobReference]:
        """Return trained and computed parameters in a name scope; arguments as in ``GetParams``."""
        return self.GetParams(namescope) + self.GetComputedParams(namescope)

    def Validate(self) -> None:
        """Check the lists of parameters.

        Raises:
            NetError: parameters are listed twice.
        """
        twice = {str(p) for p, n in Counter([*self.params, *self._computed_params]).items() if n > 1}
        if twice:
            made = [
                op.debug_info
                for op in self.param_init_net.Proto().op
                if op.debug_info and not twice.isdisjoint(op.output)
            ]
            raise NetError(
                f"model {self.name!r}: duplicate parameters {sorted(twice)}; two layers in one name scope have the "
                "same name, or AddParameter was called twice"
                + (f"; they are initialized at {', '.join(dict.fromkeys(made))}" if made else "")
            )


def _tags(tags: Tags) -> set[str]:
    if tags is None:
        return set()
    if isinstance(tags, str):
        return {tags}
    if isinstance(tags, Iterable):
        return set(tags)
    raise TypeError(f"tags must be a value of ParameterTags, or a list of them, got {tags!r}")


def _scope(namescope: str | None) -> str:
    if namescope is None:
        return CurrentNameScope()
    return namescope if not namescope or namescope.endswith(SEPARATOR) else namescope + SEPARATOR


def _within(params: Sequence[BlobReference], scope: str) -> list[BlobReference]:
    return [p for p in params if str(p).startswith(scope)] if scope else list(params)


def _extents(shape: Any) -> list[Any]:
    """Return the elements of a shape; [None], which is none, of what is no list."""
    scalar = getattr(shape, "ndim", 1) == 0
    return list(shape) if isinstance(shape, Iterable) and not scalar else [None]
