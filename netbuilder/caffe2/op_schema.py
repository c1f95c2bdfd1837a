"""``workspace.C.OpSchema``: the inputs, outputs and arguments of an operator, as Caffe2's scripts query them."""

from __future__ import annotations

import dataclasses
import inspect

from netbuilder.ops.core.operator import ANY_NUMBER, Operator, argument_fields, arity
from netbuilder.ops.core.registry import CPU, GPU, find, is_registered, plain_kernel, prepared_kernels
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["OpSchema"]

_INF = 2**31 - 1  # Caffe2's value for "any number"


@dataclass(frozen=True)
class _Argument:
    name: str
    description: str
    required: bool


class OpSchema:
    """Numbers of blobs, arguments and source location of one operator type; ``OpSchema.get`` returns it."""

    Argument = _Argument
    inf = _INF
    private = False

    def __init__(self, cls: type[Operator]) -> None:
        self._cls = cls
        self.doc = inspect.getdoc(cls) or ""
        self.file = inspect.getsourcefile(cls) or ""
        self.min_input, self.max_input = _bounds(cls.inputs)
        self.min_output, self.max_output = _bounds(cls.outputs)
        self.input_desc = [(name.rstrip("?*+"), "") for name in cls.inputs]
        self.output_desc = [(name.rstrip("?*+"), "") for name in cls.outputs]
        known = argument_fields(cls)
        self.args = [
            _Argument(field.name, f"type: {field.type}; default: {field.default!r}", required=False)
            for field in dataclasses.fields(cls)
            if field.name in known
        ]

    @property
    def line(self) -> int:
        """Where the operator is in ``file``; to find it, the file is parsed."""
        return inspect.getsourcelines(self._cls)[1]

    @staticmethod
    def get(op_type: str) -> OpSchema | None:
        """Return the schema of an operator, or None if there is no such operator."""
        return OpSchema(find(op_type)) if is_registered(op_type) else None

    @staticmethod
    def get_cpu_impl(op_type: str) -> str | None:
        """Return the name of the function that runs an operator on the CPU, or None."""
        return _kernel_name(op_type, CPU)

    @staticmethod
    def get_cuda_impl(op_type: str) -> str | None:
        """Return the name of the function that runs an operator on a GPU, or None."""
        return _kernel_name(op_type, GPU)

    @staticmethod
    def get_gradient_impl(op_type: str) -> str | None:
        """Return the name of the function that builds an operator's gradient, or None if it has no gradient."""
        if not is_registered(op_type) or find(op_type).gradient is Operator.gradient:
            return None
        return _full_name(find(op_type).gradient)

    def num_inputs_allowed(self, number: int) -> bool:
        """Whether the operator accepts this number of inputs."""
        return self.min_input <= number <= self.max_input

    def num_outputs_allowed(self, number: int) -> bool:
        """Whether the operator accepts this number of outputs."""
        return self.min_output <= number <= self.max_output

    def num_inputs_outputs_allowed(self, inputs: int, outputs: int) -> bool:
        """Whether the operator accepts these numbers of inputs and outputs."""
        return self.num_inputs_allowed(inputs) and self.num_outputs_allowed(outputs)

    def inplace_enforced(self, input_index: int, output_index: int) -> bool:
        """Whether an output must be the same blob as an input."""
        return (input_index, output_index) in self._cls.must_inplace

    def CalculateOutput(self, inputs: int) -> int:
        """Return the number of outputs, or -1 if it varies."""
        return self.min_output if self.min_output == self.max_output else -1


def _bounds(names: tuple[str, ...]) -> tuple[int, int]:
    least, most = arity(names)
    return least, most if most < ANY_NUMBER else _INF


def _kernel_name(op_type: str, device: int) -> str | None:
    if kernel := plain_kernel(op_type, device):
        return _full_name(kernel)
    return next((_full_name(made.make) for made in prepared_kernels(op_type, device)), None)


def _full_name(function: object) -> str:
    function = inspect.unwrap(getattr(function, "func", function))  # type: ignore[arg-type]
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', repr(function))}"
