"""Property-based tests of operators: hypothesis strategies, and a test case with checks against references."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np

from netbuilder.caffe2.checked_arrays import (
    arrays,
    dims,
    elements_of_type,
    floats,
    lengths,
    lengths_tensor,
    segment_ids,
    segmented_tensor,
    sparse_lengths_tensor,
    sparse_segmented_tensor,
    tensor,
    tensor1d,
    tensors,
    tensors1d,
    to_float32,
)
from netbuilder.caffe2.checking import check_inferred, input_devices, run_with, with_inputs
from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.python import core, device_checker, gradient_checker, test_util, workspace
from netbuilder.graph.blob import gradient_name
from netbuilder.proto import PROTO_CUDA, ArgumentError, DeviceOption, NetDef, OperatorDef
from netbuilder.proto.netbuilder_pb2 import PROTO_HIP
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute.benchmark import benchmark_net

# After checked_arrays, whose error says how to install hypothesis.
import hypothesis  # isort: skip
import hypothesis.strategies as st  # isort: skip

__all__ = [
    "HypothesisTestCase",
    "arrays",
    "cpu_do",
    "cuda_do",
    "device_checker_device_options",
    "device_options",
    "dims",
    "elements_of_type",
    "expanded_device_options",
    "floats",
    "gcs",
    "gcs_cpu_only",
    "gcs_cuda_only",
    "gcs_gpu_only",
    "gcs_no_hip",
    "gpu_do",
    "gradient_checker_device_option",
    "hip_do",
    "is_sandcastle",
    "is_travis",
    "lengths",
    "lengths_tensor",
    "runOpBenchmark",
    "runOpOnInput",
    "segment_ids",
    "segmented_tensor",
    "settings",
    "sparse_lengths_tensor",
    "sparse_segmented_tensor",
    "temp_workspace",
    "tensor",
    "tensor1d",
    "tensors",
    "tensors1d",
    "to_float32",
]

__getattr__ = names_of(__name__)

Array = np.ndarray[Any, Any]
Places = Mapping[str, DeviceOption]

_PROFILE_VARIABLE = "CAFFE2_HYPOTHESIS_PROFILE"
_OLD_SETTINGS = ("min_satisfying_examples", "max_iterations", "timeout", "perform_health_check", "strict")


def is_sandcastle() -> bool:
    """Whether this runs in Facebook's build system, as Caffe2 asks."""
    return os.getenv("SANDCASTLE") == "1"


def is_travis() -> bool:
    """Whether this runs on Travis."""
    return "TRAVIS" in os.environ


def _load_profile() -> None:
    """Register and load the hypothesis profiles for operator tests, as Caffe2's module does."""
    common: dict[str, Any] = {
        # Caffe2's tests run long and inherit @given methods; old versions of hypothesis allowed both.
        "suppress_health_check": [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.differing_executors],
        "database": None,
        "max_examples": 10,
        "deadline": timedelta(seconds=10),
    }
    quiet = {**common, "derandomize": True, "max_examples": 50}
    hypothesis.settings.register_profile("sandcastle", hypothesis.settings(**quiet))
    hypothesis.settings.register_profile("dev", hypothesis.settings(**common))
    debug = {**common, "max_examples": 1000, "verbosity": hypothesis.Verbosity.verbose}
    hypothesis.settings.register_profile("debug", hypothesis.settings(**debug))
    hypothesis.settings.load_profile("sandcastle" if is_sandcastle() else os.getenv(_PROFILE_VARIABLE, "dev"))


_load_profile()


def settings(*args: Any, **kwargs: Any) -> Any:
    """Return ``hypothesis.settings``; arguments that only its old versions accept are dropped."""
    for name in _OLD_SETTINGS:
        kwargs.pop(name, None)
    if kwargs.get("deadline", 0) is not None and "deadline" in kwargs:
        kwargs["deadline"] = max(kwargs["deadline"], 50)
    return hypothesis.settings(*args, **kwargs)


# Devices.

cpu_do = DeviceOption()
cuda_do = gpu_do = DeviceOption(device_type=PROTO_CUDA)
hip_do = DeviceOption(device_type=PROTO_HIP)
_gpus = [DeviceOption(device_type=PROTO_CUDA, device_id=i) for i in range(workspace.NumCudaDevices())]

device_options = [cpu_do, *_gpus[:1]]
"""The CPU, and the first GPU if there is one."""

expanded_device_options = [cpu_do, *_gpus]
"""The CPU and every GPU."""


def device_checker_device_options() -> Any:
    """Return a strategy for the list of devices to compare."""
    return st.just(device_options)


def gradient_checker_device_option() -> Any:
    """Return a strategy that draws one of these devices."""
    return st.sampled_from(device_options)


gcs: dict[str, Any] = {"gc": gradient_checker_device_option(), "dc": device_checker_device_options()}
gcs_no_hip = gcs
gcs_cpu_only: dict[str, Any] = {"gc": st.just(cpu_do), "dc": st.just([cpu_do])}
# Without a GPU, drawing from these skips the test.
gcs_gpu_only: dict[str, Any] = {"gc": st.sampled_from(_gpus[:1]), "dc": st.just(_gpus[:1])}
gcs_cuda_only = gcs_gpu_only


# Operators.


@contextmanager
def temp_workspace(name: str = "temp_ws") -> Iterator[None]:
    """Use an empty workspace inside the block."""
    before = workspace.CurrentWorkspace()
    workspace.SwitchWorkspace(name, True)
    workspace.ResetWorkspace()
    try:
        yield
    finally:
        workspace.ResetWorkspace()
        workspace.SwitchWorkspace(before)


def _placed(op: OperatorDef, device: DeviceOption | None) -> OperatorDef:
    placed = OperatorDef()
    placed.CopyFrom(op)
    if device is not None:
        placed.device_option.CopyFrom(device)
    return placed


def _ready(op: OperatorDef, device: DeviceOption | None, inputs: Sequence[Any], places: Places | None) -> Workspace:
    return with_inputs(dict(zip(op.input, inputs)), input_devices(op, device, places))


def runOpOnInput(
    device_option: DeviceOption, op: OperatorDef, inputs: Sequence[Any], input_device_options: Places | None = None
) -> list[Any]:
    """Return an operator's outputs."""
    placed = _placed(op, device_option)
    places = input_devices(placed, device_option, input_device_options)
    return run_with(dict(zip(placed.input, inputs)), places, [placed], list(placed.output))


def runOpBenchmark(
    device_option: DeviceOption, op: OperatorDef, inputs: Sequence[Any], input_device_options: Places | None = None,
    iterations: int = 10,
) -> list[float]:  # fmt: skip
    """Return the mean time of a net of the operator, in milliseconds, and of the operator alone."""
    placed = _placed(op, device_option)
    space = _ready(placed, device_option, inputs, input_device_options)
    name = space.create_net(NetDef(name="benchmarked", op=[placed]))
    return benchmark_net(space, name, 1, iterations, each_operator=True)


def _same(found: Any, expected: Any, atol: float, rtol: float, what: str) -> None:
    """Raise an AssertionError unless arrays agree: numbers within the tolerances, strings exactly."""
    one, other = np.asarray(found), np.asarray(expected)
    if one.dtype.kind in "SOU":
        np.testing.assert_array_equal(_text(one), _text(other), err_msg=what)
    else:
        np.testing.assert_allclose(one, other, atol=atol, rtol=rtol, err_msg=what)


def _text(values: Array) -> list[Any]:
    return [value.encode() if isinstance(value, str) else value for value in values.reshape(-1).tolist()]


class HypothesisTestCase(test_util.TestCase):
    """A test case with checks of operators; inputs are arrays, blobs are given by their index."""

    def assertDeviceChecks(
        self, device_options: Sequence[DeviceOption], op: OperatorDef, inputs: Sequence[Any],
        outputs_to_check: Sequence[int], input_device_options: Places | None = None, threshold: float = 0.01,
    ) -> None:  # fmt: skip
        """Check that an operator's outputs agree on several devices.

        Args:
            device_options: the devices.
            op, inputs: the operator, and arrays.
            outputs_to_check: indices of the outputs.
            input_device_options: devices of inputs by blob, where they differ from the operator's.
            threshold: allowed absolute difference.
        """
        checker = device_checker.DeviceChecker(threshold, device_options=device_options)
        self.assertTrue(checker.CheckSimple(op, inputs, outputs_to_check, input_device_options))

    def assertGradientChecks(
        self, device_option: DeviceOption, op: OperatorDef, inputs: Sequence[Any], outputs_to_check: int,
        outputs_with_grads: Sequence[int], grad_ops: Sequence[OperatorDef] | None = None, threshold: float = 0.005,
        stepsize: float = 0.05, input_device_options: Places | None = None, ensure_outputs_are_inferred: bool = False,
    ) -> None:  # fmt: skip
        """Check an operator's gradient with respect to one input, see ``GradientChecker``.

        Args:
            outputs_to_check: index of the input.
            outputs_with_grads: indices of the outputs in the loss.
        """
        checker = gradient_checker.GradientChecker(
            stepsize=stepsize, threshold=threshold, device_option=device_option,
            workspace_name=str(device_option), input_device_options=input_device_options,
        )  # fmt: skip
        good, gradient, estimate = checker.CheckSimple(
            op, inputs, outputs_to_check, outputs_with_grads, grad_ops, input_device_options,
            ensure_outputs_are_inferred,
        )  # fmt: skip
        self.assertEqual(gradient.shape, estimate.shape)
        self.assertTrue(
            good,
            f"{op.type}: the gradient with respect to input {outputs_to_check} differs from the finite differences by "
            f"more than {threshold}:\n{gradient}\nfinite differences:\n{estimate}",
        )

    def assertReferenceChecks(
        self, device_option: DeviceOption, op: OperatorDef, inputs: Sequence[Any], reference: Callable[..., Any],
        input_device_options: Places | None = None, threshold: float = 1e-4, output_to_grad: str | None = None,
        grad_reference: Callable[..., Any] | None = None, atol: float | None = None,
        outputs_to_check: Sequence[int] | None = None, ensure_outputs_are_inferred: bool = False,
    ) -> list[Any]:  # fmt: skip
        """Check an operator, and its gradient, against functions on arrays; return its outputs.

        Args:
            reference: called with the inputs; returns a tuple or list of the outputs.
            threshold: allowed relative difference.
            output_to_grad: the output whose gradient is set, to the output's own value.
            grad_reference: called with this gradient, the reference's outputs and the inputs; returns for each input
                the gradient, None, or (values, indices) if it is sparse.
            atol: allowed absolute difference; None: ``threshold``.
            outputs_to_check: indices of the outputs; None: all.
            ensure_outputs_are_inferred: also check that shape inference gives the outputs' shapes and types.

        Raises:
            TypeError: the reference returns neither tuple nor list.
        """
        placed, near = _placed(op, device_option), threshold if atol is None else atol
        values = [np.array(value) if isinstance(value, np.ndarray) else value for value in inputs]
        space = _ready(placed, device_option, inputs, input_device_options)
        space.run_operator_once(placed)
        expected = reference(*values)
        if not isinstance(expected, (tuple, list)):
            raise TypeError(
                f"{op.type}: the reference must return a tuple or list of arrays, got {type(expected).__name__}"
            )
        if outputs_to_check is None:
            self.assertEqual(
                len(expected),
                len(placed.output),
                f"{op.type}: the reference must return as many outputs as the operator",
            )
            outputs_to_check = range(len(placed.output))
        found = {i: space.fetch(placed.output[i]) for i in outputs_to_check}
        for place, i in enumerate(outputs_to_check):
            what = f"{op.type}: output {i}, {placed.output[i]!r}, differs from the reference"
            _same(found[i], expected[place] if len(expected) == len(found) else expected[i], near, threshold, what)
        if ensure_outputs_are_inferred:
            check_inferred(placed, dict(zip(placed.input, inputs)), space)
        if grad_reference is not None:
            if output_to_grad is None:
                raise ArgumentError(
                    f"{op.type}: grad_reference also needs output_to_grad, the output whose gradient is set"
                )
            self._check_gradient(space, placed, inputs, expected, output_to_grad, grad_reference, (near, threshold))
        return list(found.values())

    def _check_gradient(
        self, space: Workspace, op: OperatorDef, inputs: Sequence[Any], outputs: Any, output: str,
        reference: Callable[..., Any], bounds: tuple[float, float],
    ) -> None:  # fmt: skip
        name, gradient = gradient_name(output), np.array(space.fetch(output))
        operators, gradients = core.GradientRegistry.GetBackwardPass([op], {output: name})
        space.feed(name, gradient, op.device_option)
        for each in operators:
            space.run_operator_once(each)
        by_name = {str(blob): found for blob, found in gradients.items()}
        expected = reference(gradient, outputs, inputs)
        for blob, want in zip(op.input, expected):
            found = by_name.get(blob)
            if want is None:
                continue
            self.assertIsNotNone(found, f"{op.type} has no gradient with respect to {blob!r}, but the reference does")
            what = f"{op.type}: the gradient with respect to {blob!r} differs from the reference"
            if isinstance(found, tuple):
                _same(space.fetch(str(found.values)), want[0], *bounds, what)
                _same(space.fetch(str(found.indices)), want[1], *bounds, what)
            else:
                _same(space.fetch(str(found)), want, *bounds, what)

    def assertValidationChecks(
        self, device_option: DeviceOption, op: OperatorDef, inputs: Sequence[Any], validator: Callable[..., Any],
        input_device_options: Places | None = None, as_kwargs: bool = True, init_net: Any = None,
    ) -> None:  # fmt: skip
        """Run an operator and call a function that checks its outputs.

        Args:
            validator: called with inputs and outputs by blob name or, unless ``as_kwargs``, with the lists ``inputs``
                and ``outputs``. Raises an AssertionError if they are wrong.
            init_net: run before the operator.
        """
        if as_kwargs:
            self.assertEqual(
                len({*op.input, *op.output}),
                len(op.input) + len(op.output),
                "as_kwargs needs blobs with different names",
            )
        placed = _placed(op, device_option)
        space = _ready(placed, device_option, inputs, input_device_options)
        if init_net is not None:
            space.run_net_once(init_net)
        space.run_operator_once(placed)
        outputs = [space.fetch(name) for name in placed.output]
        if as_kwargs:
            validator(**dict(zip([*placed.input, *placed.output], [*inputs, *outputs])))
        else:
            validator(inputs=inputs, outputs=outputs)

    def assertRunOpRaises(
        self, device_option: DeviceOption, op: OperatorDef, inputs: Sequence[Any],
        input_device_options: Places | None = None, exception: Any = (Exception,), regexp: str | None = None,
    ) -> None:  # fmt: skip
        """Check that an operator raises an exception.

        Args:
            exception: its type or types.
            regexp: pattern that the message must contain; None: any message.
        """
        placed = _placed(op, device_option)
        space = _ready(placed, device_option, inputs, input_device_options)
        if regexp is None:
            self.assertRaises(exception, space.run_operator_once, placed)
        else:
            self.assertRaisesRegex(exception, regexp, space.run_operator_once, placed)
