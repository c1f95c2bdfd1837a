"""What tests of machine code share: the plan context of a kernel that is called alone."""

import numpy as np

from netbuilder.ops.core.operator import spec_of
from netbuilder.ops.engines.llvm.rows import Rows, Work, made
from netbuilder.ops.engines.tracing import Tracer
from netbuilder.proto import OperatorDef
from netbuilder.runtime.plan.run_context import KernelContext


class Alone:
    """A plan context for a kernel outside a plan; jobs run one after another."""

    def __init__(self, threads=1, op_def=None, **options):
        self.threads = threads
        self.op_def = OperatorDef() if op_def is None else op_def
        self.run = KernelContext(self.op_def, **options)

    def together(self, jobs):
        def call():
            for job in jobs:
                job()

        return call


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
    Rows(Alone(threads), [work]).bind(arrays, outs)()
    return outs
