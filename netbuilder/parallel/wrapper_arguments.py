"""Arrays of a wrapper's calls: their names and structure, how they are split, and the buffers that hold them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from netbuilder.ops.core.operator import TensorSpec
from netbuilder.parallel.call_arguments import difference, named_arguments, samples_of, split_sizes, take_leaves
from netbuilder.parallel.wrapped_nets import Definition, Structure, WrappedNet
from netbuilder.proto import ArgumentError, NetError, ShapeError
from netbuilder.runtime import Workspace
from netbuilder.runtime.input.batches import Batch, Splitter

__all__ = ["WrapperArguments"]


class WrapperArguments:
    """The arguments of a wrapper's model and loss.

    Args:
        definition: of the wrapper.
        workspace: whose blobs get the arrays.
        axes: name of an array -> the axis of its samples, if it is not the first.
        dtypes: name of an array -> the type in which it is stored.

    Attributes:
        inputs: the structure of the model's arguments, once it has been called.
        specs: of the first replica's arguments as the last net was built.

    Raises:
        ArgumentError: no argument has a name in ``dtypes``.
    """

    def __init__(
        self, definition: Definition, workspace: Workspace, axes: Mapping[str, int], dtypes: Mapping[str, Any]
    ) -> None:
        self.axes = axes
        self.inputs: Structure | None = None
        self.specs: dict[str, TensorSpec] = {}
        self._definition, self._workspace, self._dtypes = definition, workspace, dtypes
        self._splitters: dict[tuple[str, ...], list[Splitter]] = {}
        self._axes_checked = not axes
        self._check_names("dtypes", self._unknown(dtypes))

    def structured(
        self,
        wrapper: object,
        what: str,
        function: Callable[..., Any],
        skipped: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        before: Structure | None,
    ) -> tuple[Structure, dict[str, Any]]:
        """Return the structure of a call's arguments, and its arrays by name.

        Args:
            wrapper: that is called, for messages.
            what: the arguments, for messages.
            function: whose arguments they are, after ``skipped`` other ones.
            before: the structure of the first call, if there was one.
        """
        if before is not None and before.is_flat(args, kwargs):
            return before, {leaf.name: array for leaf, array in zip(before.args, args)}
        named = named_arguments(function, skipped, args, kwargs, f"{wrapper!r}: {what}")
        used = set() if what == "inputs" else set(self.inputs.names() if self.inputs else ())
        found = [(name, *take_leaves(value, name, used)) for name, value in named]
        arrays = {
            name: value if hasattr(value, "__cuda_array_interface__") else np.asarray(value)
            for _, _, leaves in found
            for name, value in leaves.items()
        }
        structure = Structure(
            tuple(value for _, value, _ in found[: len(args)]),
            {key: value for key, (_, value, _) in zip(kwargs, found[len(args) :])},
        )
        if before is not None:
            text = difference(structure.args, before.args, what) or difference(structure.kwargs, before.kwargs, what)
            if text:
                raise NetError(
                    f"{wrapper!r}: {text} in the first call; the nets are built for that, so give arguments of "
                    "the same structure, and arrays for what changes"
                )
        return structure, arrays

    def count(self, arrays: dict[str, Any], where: str, compared: dict[str, Any]) -> int:
        """Return the number of samples of arrays, and of those that they are compared with; 0 if none is split."""
        samples = samples_of(compared, self.axes, where)
        if not samples and any(
            0 in array.shape[axis : axis + 1] for name, array in arrays.items() for axis in [self.axes.get(name, 0)]
        ):
            raise ShapeError(f"{where}: the batch has no samples; give at least one")
        return samples

    def fill(self, arrays: dict[str, Any], sizes: list[int]) -> list[Batch]:
        """Copy the parts of arrays into buffers of their blobs; a device without samples gets the first one."""
        if not arrays:
            return []
        devices = self._definition.devices
        names = tuple(arrays)
        splitters = self._splitters.get(names)
        if splitters is None:
            splitters = self._splitters[names] = [
                Splitter(
                    {blob: (blob,) for blob in map(scope.__add__, names)},
                    {blob: self._workspace.make(blob) for blob in map(scope.__add__, names)},
                    [option],
                    {scope + name: dtype for name, dtype in self._dtypes.items() if name in arrays},
                    even=False,
                    same_length=False,
                )
                for scope, option in zip(devices.scopes, devices.options)
            ]
        parts = {name: split_sizes(sizes, array, self.axes.get(name, 0)) for name, array in arrays.items()}
        if 0 in sizes and any(sizes):
            first = {name: split_sizes([1], array, self.axes.get(name, 0))[0] for name, array in arrays.items()}
            parts = {
                name: [part if size else first[name] for part, size in zip(of_name, sizes)]
                for name, of_name in parts.items()
            }
        return [
            splitter.split({scope + name: of_name[k] for name, of_name in parts.items()})
            for k, (scope, splitter) in enumerate(zip(devices.scopes, splitters))
        ]

    def first_specs(self, batches: list[Batch]) -> dict[str, TensorSpec]:
        """Return shapes and types of the first replica's arguments by blob, those that were presented before included.

        Strings are left out.
        """
        scope = self._definition.devices.scopes[0]
        found: dict[str, TensorSpec] = {}
        for name in self.inputs.names() if self.inputs is not None else ():
            spec = self._workspace.spec(scope + name)
            if spec is not None:
                found[scope + name] = spec
        for batch in batches:
            for blob, part in batch.source.items():
                if blob.startswith(scope):
                    dtype = np.dtype(self._dtypes.get(blob[len(scope) :], part.dtype))
                    found[blob] = TensorSpec(tuple(part.shape), dtype)
        return {blob: spec for blob, spec in found.items() if spec.dtype.kind in "biuf"}

    def several(self) -> tuple[int, dict[str, TensorSpec]]:
        """Return a number of samples, two or more, and the specs of the arguments of a replica that has so many."""
        found, counts, scope = dict(self.specs), [2], self._definition.devices.scopes[0]
        for blob, spec in self.specs.items():
            axis = self.axes.get(blob.removeprefix(scope), 0)
            if axis < len(spec.shape):
                counts.append(spec.shape[axis])
                shape = (*spec.shape[:axis], max(spec.shape[axis], 2), *spec.shape[axis + 1 :])
                found[blob] = TensorSpec(shape, spec.dtype)
        return max(counts), found

    def check_axes(self, net: WrappedNet) -> None:
        """Check, once, the names in ``axes``, which may also be blobs that the model returns.

        Raises:
            ArgumentError: nothing has a name.
        """
        if self._axes_checked:
            return
        short = self._definition.devices.short_name
        outputs = {short(blob) for blob in net.output_blobs()}
        self._check_names("batch_axes", [name for name in self._unknown(self.axes) if name not in outputs])
        self._axes_checked = True

    def _unknown(self, names: Iterable[str]) -> list[str]:
        """Return which names no argument of the model or of the loss can have."""
        known: list[str] = []
        for function, skipped in ((self._definition.model, 1), (self._definition.loss, 2)):
            parameters = list(inspect.signature(function).parameters.values()) if function is not None else []
            if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
                return []
            known += [
                parameter.name
                for place, parameter in enumerate(parameters)
                if place >= skipped or parameter.kind is inspect.Parameter.VAR_POSITIONAL
            ]
        return [name for name in names if not any(name == other or name.startswith(f"{other}_") for other in known)]

    def _check_names(self, option: str, unknown: list[str]) -> None:
        if unknown:
            raise ArgumentError(
                f"DataParallel: {option}: no array of a call has the name {unknown[0]!r}; names are those of the "
                "arguments of model and loss, such as 'x', or 'x_0' and 'x_key' for what is in a tuple or dict 'x'"
            )
