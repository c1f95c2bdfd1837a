"""An import that Ctrl-C interrupts does no harm: importing again, in the same process, works."""

import json
import subprocess
import sys

import pytest

import interrupted_import
from netbuilder.ops.core.operator import Operator
from netbuilder.proto import NetError


@pytest.mark.parametrize("given", [["2"], pytest.param(["60", "1"], marks=pytest.mark.slow)])
def test_importing_again_after_an_interruption(given):
    done = subprocess.run(
        [sys.executable, interrupted_import.__file__, *given], capture_output=True, text=True, timeout=1800, check=True
    )
    found = json.loads(done.stdout)
    assert found["problems"] == {}
    assert len(found["lines"]) == int(given[0])


MODULE = """
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import CPU, kernel, prepare, register
from netbuilder.proto.late_dataclass import dataclass
@register
@dataclass(frozen=True)
class OnlyInThisTest(Operator):
    pass
@prepare(OnlyInThisTest, device=CPU)
def prepared(op, ctx):
    pass
"""


def test_a_module_that_is_run_again_registers_anew(own_operators):
    for _ in range(2):
        names = {"__name__": "a_module"}
        exec(MODULE, names)
    assert own_operators.find("OnlyInThisTest") is names["OnlyInThisTest"]
    (row,) = own_operators.prepared_kernels("OnlyInThisTest", own_operators.CPU)
    assert row.make is names["prepared"]
    with pytest.raises(NetError, match="'OnlyInThisTest' is registered twice: a_module and another"):
        own_operators.register(type("OnlyInThisTest", (Operator,), {"__module__": "another"}))
