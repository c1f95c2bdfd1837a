"""Checks gradients of operators and nets against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.caffe2.blobs import feed
from netbuilder.caffe2.checking import check_inferred, dense_gradient, input_devices, numeric_gradient, with_inputs
from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.python import core
from netbuilder.graph import Net
from netbuilder.graph.blob import blob_name, gradient_name
from netbuilder.graph.defuse import undefined_inputs
from netbuilder.proto import ArgumentError, DeviceOption, GradientError, NetDef, NetError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute import default

__all__ = ["GradientChecker", "NetGradientChecker", "getGradientForOp"]

__getattr__ = names_of(__name__)


def getGradientForOp(op: OperatorDef) -> tuple[Sequence[OperatorDef], Sequence[Any]]:
    """Return the operators of an operator's gradient, and the gradient of each input, None without.

    The gradients of the outputs have their names, followed by ``_grad``.
    """
    operators, gradients = core.GradientRegistry.GetGradientForOp(op, [gradient_name(name) for name in op.output])
    return operators, gradients


class GradientChecker:
    """Compares an operator's gradient with finite differences of the loss ``sum(y * y) / 2`` over its outputs.

    Args:
        stepsize: step of the central differences.
        threshold: allowed relative and absolute difference of two gradients.
        device_option: where the operators run; None: on their own devices.
        workspace_name: ignored; each check uses a new workspace.
        input_device_options: devices of inputs by blob, where they differ from the operator's.
    """

    def __init__(
        self, stepsize: float, threshold: float, device_option: DeviceOption | None = None,
        workspace_name: str = "gradient_check", input_device_options: Mapping[str, DeviceOption] | None = None,
    ) -> None:  # fmt: skip
        self._stepsize = stepsize
        self._threshold = threshold
        self._device_option = device_option
        self._workspace_name = workspace_name
        self._input_device_options = dict(input_device_options or {})

    def GetLossAndGrad(
        self, op: OperatorDef, grad_ops: Sequence[OperatorDef], inputs: Sequence[Any], input_names: Sequence[str],
        input_to_check: int, grad_name: Any, outputs_with_grads: Sequence[int],
    ) -> tuple[float, np.ndarray[Any, Any]]:  # fmt: skip
        """Return the loss, and its gradient with respect to an input as the operators compute it.

        Args:
            op, grad_ops: the operator and its gradient.
            inputs, input_names: arrays, and the blobs to feed them to.
            input_to_check: index of the input.
            grad_name: its gradient, a blob or a slice (indices, values).
            outputs_with_grads: indices of the outputs in the loss.
        """
        workspace, loss = self._forward(op, inputs, input_names, outputs_with_grads)
        for i in outputs_with_grads:
            name = op.output[i]
            gradient = workspace.fetch(name)
            workspace.feed(gradient_name(name), gradient, self._device_option)
        for grad_op in grad_ops:
            workspace.run_operator_once(grad_op)
        blobs = tuple(map(str, grad_name)) if isinstance(grad_name, tuple) else str(grad_name)
        return loss, dense_gradient(workspace, blobs, np.shape(inputs[input_to_check]))

    def _forward(
        self, op: OperatorDef, inputs: Sequence[Any], names: Sequence[str], outputs: Sequence[int]
    ) -> tuple[Workspace, float]:
        places = input_devices(op, self._device_option, self._input_device_options)
        workspace = with_inputs(dict(zip(names, inputs)), places)
        workspace.run_operator_once(op)
        return workspace, _half_squares(workspace, op, outputs)

    def _loss(
        self, op: OperatorDef, inputs: Sequence[Any], checked: int, outputs: Sequence[int]
    ) -> Callable[[Any], float]:
        """Return the loss as a function of one input; the net is created once."""
        places = input_devices(op, self._device_option, self._input_device_options)
        values = dict(zip(op.input, inputs))
        workspace = with_inputs(values, places)
        name = workspace.create_net(NetDef(name="gradient_check", op=[op]))
        again = {op.input[checked], *(set(op.input) & set(op.output))}

        def loss(x: Any) -> float:
            for blob in again:
                feed(workspace, blob, x if blob == op.input[checked] else values[blob], places[blob])
            workspace.run_net(name)
            return _half_squares(workspace, op, outputs)

        return loss

    def CheckSimple(
        self, op: OperatorDef, inputs: Sequence[Any], input_to_check: int, outputs_with_grads: Sequence[int],
        grad_ops: Sequence[OperatorDef] | None = None,
        input_device_options: Mapping[str, DeviceOption] | None = None, ensure_outputs_are_inferred: bool = False,
    ) -> tuple[bool, np.ndarray[Any, Any], np.ndarray[Any, Any]]:  # fmt: skip
        """Check the gradient with respect to one input.

        Args:
            op: unchanged.
            inputs: arrays, one for each input.
            input_to_check: index of the input.
            outputs_with_grads: indices of the outputs in the loss.
            grad_ops: the gradient operators; None: the registered ones.
            input_device_options: added to those of the checker.
            ensure_outputs_are_inferred: also check that shape inference gives the outputs' shapes and types.

        Returns:
            Whether they agree, the operators' gradient, the finite differences.

        Raises:
            GradientError: the operator has no gradient with respect to this input.
            ShapeError: the inferred shape or type of an output is wrong.
        """
        placed = self._placed(op)
        made, gradients = getGradientForOp(placed)
        grad_ops = made if grad_ops is None else grad_ops
        grad_name = gradients[input_to_check]
        if grad_name is None:
            raise GradientError(
                f"{op.type} has no gradient with respect to input {input_to_check}, {op.input[input_to_check]!r}"
            )
        before = self._input_device_options
        self._input_device_options = {**before, **(input_device_options or {})}
        try:
            return self._check(placed, list(inputs), input_to_check, outputs_with_grads, grad_ops, grad_name,
                               ensure_outputs_are_inferred)  # fmt: skip
        finally:
            self._input_device_options = before

    def _placed(self, op: OperatorDef) -> OperatorDef:
        placed = OperatorDef()
        placed.CopyFrom(op)
        if self._device_option is not None:
            placed.device_option.CopyFrom(self._device_option)
        return placed

    def _check(
        self, op: OperatorDef, inputs: list[Any], checked: int, outputs: Sequence[int],
        grad_ops: Sequence[OperatorDef], grad_name: Any, inferred: bool,
    ) -> tuple[bool, np.ndarray[Any, Any], np.ndarray[Any, Any]]:  # fmt: skip
        names = list(op.input)
        x = np.array(inputs[checked], order="C")
        if x.dtype.kind != "f":
            x = x.astype(np.float32)
        inputs[checked] = x
        _, gradient = self.GetLossAndGrad(op, grad_ops, inputs, names, checked, grad_name, outputs)
        if inferred:
            check_inferred(op, dict(zip(names, inputs)), self._forward(op, inputs, names, outputs)[0])
        estimate = numeric_gradient(self._loss(op, inputs, checked, outputs), x, self._stepsize)
        gradient = np.asarray(gradient).reshape(x.shape)
        close = np.isclose(gradient, estimate, rtol=self._threshold, atol=self._threshold)
        return bool(close.all()), gradient, estimate


class NetGradientChecker:
    """Compares gradients of nets with finite differences, or with those of another net."""

    @staticmethod
    def CompareNets(
        nets: Sequence[Net], outputs: Sequence[Sequence[Any]], outputs_with_grad_ids: Sequence[int],
        inputs_with_grads: Sequence[Any], input_values: Mapping[str, Any] | None = None, threshold: float = 1e-7,
        print_net_images: bool = False,
    ) -> None:  # fmt: skip
        """Check that nets compute the same outputs and the same gradients with respect to the same inputs.

        Args:
            nets: Nets without gradients; unchanged.
            outputs: for each net, the blobs to compare.
            outputs_with_grad_ids: indices, in these lists, of the blobs to differentiate.
            inputs_with_grads: blobs, the same in all nets.
            input_values: arrays by blob; other inputs are taken from the current workspace.
            threshold: allowed absolute difference.
            print_net_images: not supported.

        Raises:
            AssertionError: outputs or gradients differ.
            ArgumentError: ``print_net_images`` is set.
        """
        if print_net_images:
            raise ArgumentError("CompareNets: print_net_images is not supported; draw nets with netbuilder-draw")
        results = []
        for net, requested in zip(nets, outputs):
            copy = net.Clone(f"{net.Name()}_checked")
            chosen = [requested[i] for i in outputs_with_grad_ids]
            gradients = copy.AddGradientOperators(chosen)
            workspace = _workspace(copy, {blob_name(k): v for k, v in (input_values or {}).items()})
            workspace.run_net_once(copy)
            found = [workspace.fetch(blob_name(blob)) for blob in requested]
            by = [_gradient(workspace, gradients, blob) for blob in inputs_with_grads]
            results.append((found, by))
        for number, (found, by) in enumerate(results[1:], 1):
            for kind, one, other in (("output", results[0][0], found), ("gradient", results[0][1], by)):
                for place, (x, y) in enumerate(zip(one, other)):
                    np.testing.assert_allclose(
                        x, y, rtol=0, atol=threshold,
                        err_msg=f"{kind} {place} of net {nets[number].Name()!r} and {nets[0].Name()!r}",
                    )  # fmt: skip

    @staticmethod
    def Check(
        net: Net, outputs_with_grad: Sequence[Any], input_values: Mapping[str, Any], input_to_check: Any,
        step_size: float = 0.0001, threshold: float = 0.05, print_net: bool = True,
    ) -> tuple[float, float]:  # fmt: skip
        """Check a net's gradient of the loss ``sum(y)`` over outputs, with respect to one input.

        Args:
            net: without gradients; unchanged.
            outputs_with_grad: blobs in the loss.
            input_values: arrays by blob; other inputs are taken from the current workspace.
            input_to_check: a blob of ``input_values``.
            step_size: step of the central differences.
            threshold: allowed relative and absolute difference.
            print_net: ignored; the error shows the gradients.

        Returns:
            The mean and the maximum absolute difference.

        Raises:
            NetError: ``input_values`` has no value for the input.
            AssertionError: the gradients differ.
        """
        values = {blob_name(name): np.array(value, order="C") for name, value in input_values.items()}
        name, ys = blob_name(input_to_check), [blob_name(blob) for blob in outputs_with_grad]
        if name not in values:
            raise NetError(
                f"NetGradientChecker.Check: input_values must have a value for {name!r}, got {sorted(values)}"
            )
        copy = net.Clone(f"{net.Name()}_checked")
        seeds = {}
        for y in ys:
            seeds[y] = f"{y}_seed"
            copy.Proto().op.append(make_op("ConstantFill", [y], [seeds[y]], value=1.0))
        gradients = copy.AddGradientOperators(seeds)
        workspace = _workspace(copy, values)
        workspace.run_net_once(copy)
        gradient = _gradient(workspace, gradients, name)

        def loss(_: Any) -> float:
            space = _workspace(net, values)
            space.run_net_once(net)
            return float(sum(np.asarray(space.fetch(y), np.float64).sum() for y in ys))

        estimate = numeric_gradient(loss, values[name], step_size)
        np.testing.assert_allclose(gradient, estimate, rtol=threshold, atol=threshold)
        difference = np.abs(gradient - estimate)
        return float(difference.mean()), float(difference.max())


def _half_squares(workspace: Workspace, op: OperatorDef, outputs: Sequence[int]) -> float:
    """Return the loss that ``GradientChecker`` uses."""
    squares = (np.square(np.asarray(workspace.fetch(op.output[i]), np.float64)).sum() for i in outputs)
    return float(sum(squares)) / 2


def _workspace(net: Net, values: Mapping[str, Any]) -> Workspace:
    """Return a new workspace with these blobs, and the net's other inputs copied from the current workspace."""
    current = default.workspace()
    reads = [name for name in undefined_inputs(net.Proto().op) if name not in values and current.has(name)]
    return with_inputs({**values, **{name: current.fetch(name) for name in reads}}, {})


def _gradient(workspace: Workspace, gradients: Mapping[Any, Any], blob: Any) -> Any:
    by_name = {str(key): value for key, value in gradients.items()}
    name = blob_name(blob)
    if name not in by_name:
        raise NetError(f"the net has no gradient with respect to {name!r}, only to {sorted(by_name)}")
    found = by_name[name]
    as_names = tuple(map(str, found)) if isinstance(found, tuple) else str(found)
    return dense_gradient(workspace, as_names, np.shape(workspace.fetch(name)))
