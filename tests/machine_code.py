"""What tests of machine code share."""

import numpy as np

from netbuilder.engines.llvm.argument_rows import Rows, Work, made
from netbuilder.engines.tracing import Tracer
from netbuilder.ops.core.operator import spec_of
from netbuilder.proto import OperatorDef
from netbuilder.runtime.plan.run_context import KernelContext
from prepared import FakePlan


def alone(threads=1, op_def=None):
    """Return the plan context of a kernel outside a plan."""
    op_def = OperatorDef() if op_def is None else op_def
    return FakePlan(threads, op_def=op_def, run=KernelContext(op_def))


def traced(function, *arrays):
    """Return the program of ``function(xp, *arrays)``, which returns a list of arrays."""
    tracer = Tracer(is_gpu=False)
    symbols = [tracer.input(i, spec_of(array)) for i, array in enumerate(arrays)]
    return tracer.program(function(tracer.xp, *symbols))


def run_traced(function, *arrays, threads=1):
    """Return what machine code computes for ``function(xp, *arrays)``, which returns a list of arrays."""
    program = traced(function, *arrays)
    code = made(program)
    outs = [np.full(program.shape, 7).astype(dtype) for dtype in program.dtypes]
    work = Work(code, code.read, range(len(outs)), (), program.size, code.extents)
    Rows(alone(threads), [work]).bind(arrays, outs)()
    return outs


def parts_of_calls(monkeypatch, module):
    """Return a list to which each call that a module makes from now on adds into how many parts it is divided."""
    made, counts = module.call_of_threads, []

    def counting(ctx, rows, keep, *, brief):
        counts.append(len(rows))
        return made(ctx, rows, keep, brief=brief)

    monkeypatch.setattr(module, "call_of_threads", counting)
    return counts
