"""Families of operators are imported on demand, by what their files say: it is right, and what is found is complete."""

import importlib
import pkgutil
import subprocess
import sys

import pytest

import netbuilder.ops
from netbuilder.ops.core.registry import declaring_modules, find, operator_types


def printed(code: str) -> str:
    """Return what a fresh process prints; ``find`` is imported."""
    code = f"import sys\nfrom netbuilder.ops.core.registry import find\n{code}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_the_files_declare_what_their_import_registers():
    for family in pkgutil.iter_modules(netbuilder.ops.__path__, "netbuilder.ops."):
        if family.ispkg:
            package = importlib.import_module(family.name)
            for module in pkgutil.iter_modules(package.__path__, f"{family.name}."):
                importlib.import_module(module.name)
    modules = {name: find(name).__module__ for name in operator_types()}
    assert {name: of for name, of in modules.items() if of.startswith("netbuilder.")} == declaring_modules()


def test_kernels_are_registered_while_the_module_of_their_operator_is_imported():
    code = """
import importlib
import pkgutil
import netbuilder.ops
import netbuilder.ops.core.registry as registry
def watch(name):
    add = getattr(registry, name)
    def watched(cls, **options):
        if not sys.modules[cls.__module__].__spec__._initializing:
            print(name, cls.__name__, "by", sys._getframe(1).f_globals["__name__"])
        return add(cls, **options)
    setattr(registry, name, watched)
for each in ("kernel", "prepare", "prepare_joined"):
    watch(each)
for each in pkgutil.walk_packages(netbuilder.ops.__path__, "netbuilder.ops."):
    importlib.import_module(each.name)
"""
    assert printed(code) == ""


def test_a_gradient_operator_is_found_with_its_forward_operator():
    for name in operator_types():
        cls, forward = find(name), find(name).gradient_of
        if forward is not None and name not in (f"{forward.__name__}Gradient", f"{forward.__name__}Grad"):
            used = vars(sys.modules[cls.__module__]).values()
            assert forward.__module__ in {getattr(each, "__module__", None) for each in used}, name
    assert printed("print(find('LengthsSumGradient').gradient_of)") == f"{find('LengthsSum')}\n"


def test_few_families_are_imported_and_the_network_is_left_alone():
    modules = printed("import netbuilder.model.brew, netbuilder.runtime; print(*sys.modules)").split()
    families = {each for each in modules if each.startswith("netbuilder.ops.") and ".core" not in each}
    assert len(families) <= 15 and "urllib.request" not in modules
    assert len({*declaring_modules().values()}) > 200


def test_threads_that_ask_at_once_get_the_operator_and_its_kernels():
    code = """
import threading
from netbuilder.ops.core.registry import plain_kernel
gate, found = threading.Barrier(8), []
def ask():
    gate.wait()
    found.append((find("Relu"), plain_kernel("ReluGradient", 0)))
threads = [threading.Thread(target=ask) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(found), len(set(found)), None in found[0])
"""
    assert printed(code) == "8 1 False\n"


@pytest.mark.parametrize("imported", ["", "find('Relu')"], ids=["before", "after"])
def test_the_name_of_an_operator_of_netbuilder_is_taken(imported):
    code = f"""
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import register
{imported}
class Relu(Operator):
    signature = "X -> Y"
try:
    register(Relu)
except ValueError as error:
    print(error)
"""
    message = "operator 'Relu' is registered twice: netbuilder.ops.activations.activations and __main__\n"
    assert printed(code) == message
