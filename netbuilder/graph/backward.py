"""The backward pass: one walk over the operators in reverse order, which collects their gradient operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from netbuilder.graph.blob import EMPTY_GRADIENT, autosplit_name, gradient_name, other_gradient_name
from netbuilder.graph.defuse import undefined_inputs
from netbuilder.graph.gradient_context import OverwrittenInputError, operator_gradient
from netbuilder.graph.gradient_errors import (
    gradients_added_before,
    may_keep_its_value,
    no_gradient,
    overwritten,
    overwritten_local,
    unknown_blob_in_gradient,
    writes_local,
)
from netbuilder.graph.gradient_shares import Share, add_up
from netbuilder.graph.versions import EXTERNAL, number_versions
from netbuilder.ops.core.contexts import Sparse
from netbuilder.ops.core.registry import find, is_registered
from netbuilder.ops.core.renaming import (
    always_written,
    rename_in_group,
    rename_written,
    shares_names,
    subgraphs,
    written_blobs,
)
from netbuilder.proto import DeviceOption, NetError, OperatorDef

__all__ = ["BackwardPass", "Gradient"]

Gradient = str | Sparse
"""Where a gradient is stored: a blob, or the blobs of its indices and values."""

_SEED = -1  # instead of the index of the operator that a gradient comes from: the caller gave it
_RUNS_WITHOUT_GRADIENT = "ZeroGradient"
# Gradient operators that read only the shape of their input, so that it may have been overwritten in place: zeros for
# blobs that the loss does not depend on.
_READ_SHAPES = ("ConstantFill",)


class BackwardPass:
    """Builds the backward pass of operators; after ``run`` the results are in ``operators`` and ``gradients``.

    The walk works on values, that is on versions of blobs: ``_value_gradients[v]`` says where the gradient of
    value v is. A value that several operators read collects one share from each, and the shares are added up at its
    first reader, which the walk meets last.

    Args:
        ops: the operators, in the order in which they run; unchanged.
        differentiate: differentiates subgraphs; given to the operators that have some.
        numbers: gives every operator a number that no other one has, those of subgraphs included.
        reserved: whether a name must not be overwritten by gradients, besides those that ``ops`` write.
        prefix: of the names of all blobs that the gradient operators write, if the operators are those of a subgraph;
            only blobs that the forward operators name, too, and those in ``results`` have names without it.
        results: blob -> name for the gradient of the value that it has before the operators run.
    """

    def __init__(
        self,
        ops: Sequence[OperatorDef],
        differentiate: Callable[..., Any],
        numbers: Iterator[int],
        reserved: Callable[[str], bool] | None = None,
        prefix: str = "",
        results: Mapping[str, str] | None = None,
    ) -> None:
        self.ops = list(ops)
        self.versions = number_versions(self.ops)
        self.operators: list[OperatorDef] = []
        # For each of these operators the index of the forward operator whose visit made it.
        self.made_for: list[int] = []
        self.gradients: dict[str, Gradient] = {}
        self._differentiate = differentiate
        self._reserved = reserved
        self._numbers = numbers
        self._prefix = prefix
        self._results = results or {}
        self._result_names = frozenset(self._results.values())
        self._value_gradients: list[Gradient | None] = [None] * len(self.versions.names)
        # The consumer whose gradient operator made (the first term of) each value's gradient.
        self._via = [_SEED] * len(self.versions.names)
        self._shares: dict[int, list[Share]] = {}
        # (value, blob) -> number of shares of the value's gradient that are stored in the blob.
        self._shares_in: dict[tuple[int, str], int] = {}
        # Blobs of indices and their device -> the blob of their concatenation.
        self._joins: dict[tuple[str | bytes, ...], str] = {}
        # Blob -> number of live gradients, or partial sums of gradients, that are stored in it.
        self._pending: dict[str, int] = {}
        # Blob, local blobs of branches and loops included -> the last operator that writes it, from this index on.
        self._last_writers: dict[str, int] = {}
        # Local blobs of branches and loops, which are stored next to the blobs of this net.
        nested = [op for op in self.ops if op.arg and shares_names(op)]
        self._local = frozenset(written_blobs(nested)).difference(self.versions.last)
        self._last_writers_from = len(self.ops)

    def seed(self, blob: str, gradient: Gradient, op: OperatorDef | None) -> None:
        """Set the gradient of a loss: an existing blob, or the output of ``op``, which is added."""
        value = self.versions.last[blob]
        writer = self.versions.writers[value]
        if op is not None:
            self.operators.append(op)
            self.made_for.append(_SEED)
            share = Share(gradient, op.device_option, [op], op)
        else:
            share = Share(gradient, DeviceOption() if writer == EXTERNAL else self.ops[writer].device_option)
        self._value_gradients[value] = gradient
        self._add_share(value, share)
        self.gradients[blob] = gradient

    def run(self) -> None:
        """Walk over the operators in reverse order.

        Raises:
            GradientError: see ``Net.AddGradientOperators``.
        """
        gradients, outputs = self._value_gradients, self.versions.outputs
        for index in range(len(self.ops) - 1, -1, -1):
            given: dict[int, Gradient] = {}
            for slot, value in enumerate(outputs[index]):
                gradient = gradients[value]
                if gradient is not None:
                    given[slot] = gradient
            if given or self.ops[index].type == _RUNS_WITHOUT_GRADIENT:
                self._differentiate_operator(index, given)
            if self._shares:
                self._add_up_shares(index)
            self.made_for += [index] * (len(self.operators) - len(self.made_for))
        for value, writer in enumerate(self.versions.writers):
            if writer == EXTERNAL and gradients[value] is None:
                self.gradients.pop(self.versions.names[value], None)  # it was that of a later value of the blob

    # -- one operator -----------------------------------------------------------------------

    def _differentiate_operator(self, index: int, given: dict[int, Gradient]) -> None:
        op = self.ops[index]
        if op.arg and shares_names(op):
            self._check_kept_values(index, given)
        names = [self._gradient_name(value) for value in self.versions.inputs[index]] if self._prefix else None
        try:
            made, d_inputs = operator_gradient(op, given, self._differentiate, next(self._numbers), names)
        except OverwrittenInputError:
            raise
        except NetError as error:
            raise no_gradient(self.ops, index, self._path_to_loss(index), error) from error
        for gradient in given.values():
            self._release(gradient)
        if EMPTY_GRADIENT in d_inputs.values():
            d_inputs = {slot: gradient for slot, gradient in d_inputs.items() if gradient != EMPTY_GRADIENT}
        if self._prefix and not shares_names(op):  # the nets in the gradients of others write such names already
            d_inputs = self._with_prefix(made, d_inputs)
        if made:
            self._check_reads(index, made, given)
            self._check_writes(index, made, given, d_inputs)
            self.operators += made
        self._record_input_gradients(index, made, d_inputs)
        if len(d_inputs) < len(self.versions.inputs[index]):
            for slot, name in enumerate(op.input):
                if slot not in d_inputs and name in self.gradients and name in op.output:
                    del self.gradients[name]  # it was the gradient of the output that overwrote this input

    def _gradient_name(self, value: int) -> str:
        blob = self.versions.names[value]
        if blob in self._results and self.versions.writers[value] == EXTERNAL:
            return self._results[blob]
        return self._prefix + gradient_name(blob)

    def _own(self, name: str) -> str:
        """Return a name for a blob that gradient operators write: one that nothing outside of the subgraph has."""
        if name.startswith(self._prefix) or name in self.versions.last or name in self._result_names:
            return name  # an object, such as a scope, may be changed in place
        return self._prefix + name

    def _with_prefix(self, made: list[OperatorDef], d_inputs: Mapping[int, Gradient]) -> dict[int, Gradient]:
        """Give the blobs that gradient operators write names of the subgraph; return the gradients of the inputs."""
        new = rename_written(made, self._own)
        return {
            slot: Sparse(*(new.get(blob, blob) for blob in _blobs(gradient)))
            if isinstance(gradient, Sparse)
            else new.get(gradient, gradient)
            for slot, gradient in d_inputs.items()
        }

    def _check_reads(self, index: int, made: list[OperatorDef], given: Mapping[int, Gradient]) -> None:
        """Check that the blobs that the gradient operators read still hold the values of the forward operator."""
        last, writers = self.versions.last, self.versions.writers
        also: set[str] | None = None
        for gradient_op in made:
            for name in gradient_op.input[:]:
                value = last.get(name)
                if value is not None and (writers[value] <= index or gradient_op.type in _READ_SHAPES):
                    continue
                if also is None:
                    also = {blob for gradient in given.values() for blob in _blobs(gradient)}
                # An operator may read a blob that it overwrites: SpatialBN over several devices, whose statistics are
                # stored there later.
                if name not in also and name not in gradient_op.output:
                    if value is None:
                        raise unknown_blob_in_gradient(self.ops, index, gradient_op, name)
                    raise overwritten(self.ops, self.versions, index, gradient_op, name)
            if len(made) > 1:
                also = also or {blob for gradient in given.values() for blob in _blobs(gradient)}
                also.update(gradient_op.output)
            if gradient_op.arg and shares_names(gradient_op):
                self._check_local_reads(index, gradient_op)

    def _check_kept_values(self, index: int, given: Iterable[int]) -> None:
        """Check that an output which a branch or loop may leave as it was is among its inputs, too.

        Only then does the gradient of its earlier value follow.
        """
        op = self.ops[index]
        for slot in given:
            name, version = op.output[slot], self.versions.versions[self.versions.outputs[index][slot]]
            if version and name not in op.input and name not in always_written(op):
                raise may_keep_its_value(self.ops, index, name)

    def _check_local_reads(self, index: int, gradient_op: OperatorDef) -> None:
        """Check that the local blobs of branches still hold what the forward operator stored there."""
        for later in range(self._last_writers_from - 1, index, -1):
            for blob in written_blobs(self.ops[later : later + 1]):
                self._last_writers.setdefault(blob, later)
        self._last_writers_from = min(self._last_writers_from, index + 1)
        for net in subgraphs(gradient_op):
            for name in undefined_inputs(net.op):
                if name in self._last_writers and name not in gradient_op.input:
                    raise overwritten_local(self.ops, index, self._last_writers[name], name)

    def _check_writes(
        self, index: int, made: list[OperatorDef], given: Mapping[int, Gradient], d_inputs: dict[int, Gradient]
    ) -> None:
        """Raise if a gradient operator overwrites a forward blob; rename it if it overwrites a live gradient."""
        last, writers, pending, reserved = self.versions.last, self.versions.writers, self._pending, self._reserved
        op = self.ops[index]
        stateful = is_registered(op.type) and find(op.type).stateful
        objects = set(op.input).intersection(op.output) if stateful else set()
        for gradient_op in made:
            for name in gradient_op.output[:]:
                if name in objects and name in gradient_op.input:
                    continue  # a scope, which both operators change in place
                value = last.get(name)
                if name in self._local:
                    raise writes_local(self.ops, index, name)
                if reserved is not None and reserved(name):
                    raise gradients_added_before(self.ops, self.versions, index, name)
                if value is not None and writers[value] != EXTERNAL and not self._is_used_up(value, given):
                    raise gradients_added_before(self.ops, self.versions, index, name)
                if name in pending:
                    self._rename_conflicting(index, made, d_inputs, name)

    def _is_used_up(self, value: int, given: Mapping[int, Gradient]) -> bool:
        """Whether a forward value serves only as the gradient given for an output here; no forward operator reads it.

        Example: loss = Scale(loss), where the net fills loss_grad before its gradients are added.
        """
        name = self.versions.names[value]
        return not self.versions.readers[value] and any(name in _blobs(gradient) for gradient in given.values())

    def _rename_conflicting(
        self, index: int, made: list[OperatorDef], d_inputs: dict[int, Gradient], name: str
    ) -> None:
        """Rename an output of the gradient operators that would overwrite the live gradient of another value.

        Example: in h = Scale(h); h = Sum(h, q), h_grad is also the gradient of q.
        """
        targets = {self.versions.inputs[index][slot] for slot, gradient in d_inputs.items() if name in _blobs(gradient)}
        if self._pending[name] == sum(self._shares_in.get((value, name), 0) for value in targets):
            return  # the shares of one value are renamed when they are added up
        new = self._other_name(name, min((self.versions.versions[value] for value in targets), default=0))
        rename_in_group(made, name, new)
        for slot, gradient in d_inputs.items():
            if isinstance(gradient, Sparse):
                d_inputs[slot] = Sparse(*(new if blob == name else blob for blob in _blobs(gradient)))
            elif gradient == name:
                d_inputs[slot] = new

    # -- gradients of its inputs ------------------------------------------------------------

    def _record_input_gradients(self, index: int, made: list[OperatorDef], d_inputs: Mapping[int, Gradient]) -> None:
        values, readers, names = self.versions.inputs[index], self.versions.readers, self.versions.names
        shared: dict[int, Gradient] = {}
        for slot, gradient in d_inputs.items():
            value = values[slot]
            self.gradients[names[value]] = gradient
            if len(readers[value]) > 1 or value in self._shares:
                shared[slot] = gradient
            else:
                self._value_gradients[value] = gradient
                self._via[value] = index
                self._retain(gradient)
        if shared:
            for slot, share in _shares_of(shared, made, self.ops[index].device_option):
                value = values[slot]
                if self._value_gradients[value] is None:
                    self._value_gradients[value] = share.gradient
                    self._via[value] = index
                self._add_share(value, share)

    def _add_share(self, value: int, share: Share) -> None:
        self._shares.setdefault(value, []).append(share)
        for blob in _blobs(share.gradient):
            self._shares_in[value, blob] = self._shares_in.get((value, blob), 0) + 1
        self._retain(share.gradient)

    def _add_up_shares(self, index: int) -> None:
        """Add up the shares of the values of which operator ``index`` is the first reader."""
        for value in dict.fromkeys(self.versions.inputs[index]):
            if value not in self._shares or self.versions.readers[value][0] != index:
                continue
            shares = self._shares.pop(value)
            if len(shares) < 2:
                continue
            for share in shares:
                self._release(share.gradient)
            blob = self.versions.names[value]
            free = self._gradient_name(value)
            if free in self._pending or any(share.op is None and share.gradient == free for share in shares):
                free = self._other_name(free, self.versions.versions[value])
            sums, total = add_up(blob, shares, free, self.ops[index].debug_info, self._share_name)
            if isinstance(total, Sparse):
                sums, total = self._joined_once(sums, total)
            self.operators += sums
            self._value_gradients[value] = self.gradients[blob] = total
            self._retain(total)

    def _other_name(self, gradient: str, version: int) -> str:
        return self._own(other_gradient_name(gradient, version))

    def _share_name(self, gradient: str, count: int) -> tuple[str, int]:
        """Return a new name for a share of a gradient, and the next count."""
        gradient = gradient.removeprefix(self._prefix)
        while True:
            name = self._prefix + autosplit_name(gradient, count)
            count += 1
            if name not in self.versions.last and not (self._reserved is not None and self._reserved(name)):
                return name, count

    def _joined_once(self, sums: list[OperatorDef], total: Sparse) -> tuple[list[OperatorDef], Sparse]:
        """Concatenate indices only once for all tables that are looked up by the same blobs of indices."""
        join = next(op for op in sums if op.output[0] == total.indices)
        key: tuple[str | bytes, ...] = (*join.input, join.device_option.SerializeToString(deterministic=True))
        if key not in self._joins:
            self._joins[key] = total.indices
            return sums, total
        return [op for op in sums if op is not join], Sparse(self._joins[key], total.values)

    def _retain(self, gradient: Gradient) -> None:
        for blob in _blobs(gradient):
            self._pending[blob] = self._pending.get(blob, 0) + 1

    def _release(self, gradient: Gradient) -> None:
        for blob in _blobs(gradient):
            left = self._pending[blob] - 1
            if left:
                self._pending[blob] = left
            else:
                del self._pending[blob]

    def _path_to_loss(self, index: int) -> list[str]:
        path: list[str] = []
        while True:
            path.append(self.ops[index].type)
            value = next((v for v in self.versions.outputs[index] if self._value_gradients[v] is not None), None)
            if value is None:
                return path
            path.append(repr(self.versions.names[value]))
            index = self._via[value]
            if index == _SEED:
                return path


def _blobs(gradient: Gradient) -> tuple[str, ...]:
    return (gradient,) if isinstance(gradient, str) else (gradient.indices, gradient.values)


def _shares_of(
    gradients: Mapping[int, Gradient], made: Sequence[OperatorDef], device: DeviceOption
) -> list[tuple[int, Share]]:
    """Return (input, share) for the gradients of some inputs of one operator.

    Gradients that the gradient operators write come first, in their order, then those that another blob has already.
    """
    requested = {blob for gradient in gradients.values() for blob in _blobs(gradient)}
    writes: dict[str, list[tuple[int, OperatorDef, int]]] = {}
    place = 0
    for op in made:
        for slot, name in enumerate(op.output):
            if name in requested:
                writes.setdefault(name, []).append((place, op, slot))
            place += 1
    slots: dict[str, list[int]] = {}
    for slot, gradient in gradients.items():
        if isinstance(gradient, str):
            slots.setdefault(gradient, []).append(slot)
    written: list[tuple[int, int, Share]] = []
    passed: list[tuple[int, Share]] = []
    for name, targets in slots.items():
        # If a name is written several times the last write counts, unless it is the gradient of as many inputs, as for
        # x in Mul(x, x).
        found = writes.get(name, [])[-len(targets) :]
        for (place, op, output), slot in zip(found, targets):
            written.append((place, slot, Share(name, op.device_option, made, op, output, shared_name=len(found) > 1)))
        if not found:
            passed += [(slot, Share(name, device)) for slot in targets]
    for slot, gradient in gradients.items():
        if isinstance(gradient, Sparse):
            indices, values = (writes.get(blob, [(0, None, 0)])[-1] for blob in _blobs(gradient))
            passed.append((slot, Share(gradient, device, made, indices[1], indices[2], values[1], values[2])))
    written.sort(key=lambda row: row[0])
    return [(slot, share) for _, slot, share in written] + passed
