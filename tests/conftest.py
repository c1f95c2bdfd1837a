"""Settings of all tests: GPU marks skip by themselves, hypothesis is repeatable, examples know ``np``."""

import os

import hypothesis
import numpy as np
import pytest

from netbuilder.ops.engines.arrays import gpu_count

hypothesis.settings.register_profile(
    "netbuilder", deadline=None, derandomize=True, max_examples=int(os.environ.get("EXAMPLES", "20"))
)
hypothesis.settings.load_profile("netbuilder")


def pytest_collection_modifyitems(items):
    needs = {"gpu": 1, "multi_gpu": 2}
    for item in items:
        for mark, least in needs.items():
            if item.get_closest_marker(mark) and gpu_count() < least:
                item.add_marker(pytest.mark.skip(reason=f"needs CuPy and {least} NVIDIA GPU(s), found {gpu_count()}"))


@pytest.fixture(autouse=True)
def _numpy_in_examples(doctest_namespace):
    doctest_namespace["np"] = np
