"""What depends on the processor's instructions is tested for fewer of them, too, than this one has."""

import os
import subprocess
import sys

import pytest

from house import ROOT
from kernel_checks import has_instructions

IN_PARTS = (
    "tests/runtime/plan/test_updates_in_parts.py::test_other_layers_and_types",
    "tests/runtime/plan/test_updates_in_parts.py::test_same_to_the_bit",
)
WITHOUT_AVX512 = (
    *IN_PARTS,
    "tests/zoo/test_memory_budget.py::test_normalizations_are_made_again_without_a_budget",
    "tests/tools/test_profile.py::test_activations_in_bfloat16",
    "tests/parallel/test_parallel_do.py::test_in_bfloat16",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "instructions, more, tests", [("AVX2", "avx512", WITHOUT_AVX512), ("AVX512_CORE", "bfloat16", IN_PARTS)]
)
def test_fewer_instructions(instructions, more, tests):
    if not has_instructions(more):
        pytest.skip(f"this CPU has no more than {instructions}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": instructions},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-4000:]
