"""Sums of the gradients of several calls of a DataParallel, which one update uses."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.observability import OUTPUTS
from netbuilder.parallel.accumulate import clear_sums, created_nets
from netbuilder.parallel.wrapped_nets import WrappedNet, create_parts
from netbuilder.proto import NetDef, NetError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.plan.options import FindNan

__all__ = ["GradientSums"]


class GradientSums:
    """The sums of gradients of calls, which may have different numbers of samples, and the nets that work on them.

    A call adds the gradient of the mean over its samples. The sums are kept in units of one such mean, so calls of
    equal size are added as they are.

    Args:
        net: of the kind SUMMING.
        training: the net for training, which may have computed outputs and losses of a call.
        workspace: has the parameters.
        clock: of the wrapper's training.

    Attributes:
        nets: names of the created nets.

    Raises:
        NetError: gradients of several calls cannot add up.
    """

    def __init__(self, net: WrappedNet, training: WrappedNet, workspace: Workspace, clock: Any) -> None:
        if training.record.combines_means:
            raise NetError(
                f"DataParallel {training.name!r}: gradients of several calls cannot add up, because the loss is a mean "
                "whose divisor the data determine, such as weights; call step() after each backward(), or give "
                "combine_means=False, with which each device forms a mean of its own"
            )
        self._record, self._workspace, self._clock = net.record, workspace, clock
        parts = created_nets(net.helper.net.Proto(), net.record)
        self._whole = parts[0]
        self._written = {blob: op.device_option for part in parts for op in part.op for blob in op.output}
        self._rows, self._update = [part.name for part in parts[1:-1]], parts[-1].name
        outputs = (*net.output_blobs(), *net.loss_blobs())
        self._whole.external_output.extend(
            blob for blob in outputs if blob in self._written and blob not in self._whole.external_output
        )
        for part in parts:
            own_clock = {} if part is parts[-1] else {"clock": clock}
            workspace.create_net(part, observable=OUTPUTS, shares_counter=net.helper.net.shares_counters, **own_clock)
        self._rest = create_parts(net, self._whole, workspace, clock)
        self.nets = [*(part.name for part in parts), *filter(None, self._rest)]
        self._unit: float | None = None  # samples of the mean in whose units the sums are; None: they are 0
        self._owner: Any = None

    def begin(self, owner: Any) -> bool:
        """Return whether calls of this owner may be added: the sums are 0, or of the same owner."""
        if self._unit is None:
            self._owner = owner
        return self._owner is owner

    def add(self, samples: int, parts_run: int, *, wait: bool, find_nan: FindNan) -> None:
        """Add the gradients of a call, whose arrays have been fed; after an error ``clear`` must be called.

        Args:
            samples: their number.
            parts_run: how many of the parts of the forward pass, outputs and losses, have run.
            wait, find_nan: see ``Workspace.run_net``.
        """
        if self._unit not in (None, samples):
            self._multiply(self._unit / samples)
        self._unit = samples
        names = self._rest[parts_run:] if parts_run else [self._whole.name]
        for number, name in enumerate(filter(None, [*names, *self._rows])):
            if number or parts_run:
                self._clock.iteration -= 1  # all parts are one iteration, on which random numbers depend
            self._workspace.run_net(name, wait=wait, find_nan=find_nan)

    def update(self, divisor: float, *, wait: bool, find_nan: FindNan) -> None:
        """Update the parameters by the sum over samples divided by ``divisor``; the sums are 0 afterwards."""
        assert self._unit is not None
        if divisor != self._unit:
            self._multiply(self._unit / divisor)
        self._workspace.run_net(self._update, wait=wait, find_nan=find_nan)
        self._unit = None

    def clear(self) -> None:
        """Set the sums to 0."""
        clear_sums(self._record, self._workspace)
        self._unit = None

    def _multiply(self, factor: float) -> None:
        """Multiply the sums, and the collected values of sparse gradients."""
        scaling = NetDef(name=f"{self._whole.name}_scaling")
        for blob in (*self._record.accumulated, *self._record.accumulated_rows):
            spec = self._workspace.spec(blob)
            if spec is not None and spec.dtype.kind == "f":
                scaling.op.append(make_op("Scale", [blob], [blob], device_option=self._written[blob], scale=factor))
        self._workspace.run_net_once(scaling)
