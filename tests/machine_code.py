"""What tests of machine code share: the plan context of a kernel that is called alone."""

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
