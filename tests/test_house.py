"""Rules of the house: who imports whom, who names CuPy, docstrings, exports, sizes, no paths of one machine."""

import ast
import gc
import importlib
import inspect
import re
import subprocess
import sys
import types
import typing

import pytest

import netbuilder
from house import ROOT, TOP_FOLDERS, files, library_modules
from netbuilder.proto.extras import gpu_requirements

# What each unit may import directly; whatever those import is allowed, too. A unit is a package, but for two: what
# operators are made of (ops.core) comes before the engines, families of operators after them; folders of distributed
# come before operators, its modules after nets and models.
DIRECT = {
    "proto": set(),
    "data": {"proto"},
    "ops.core": {"data"},
    "engines": {"ops.core"},
    "distributed.folders": {"engines"},
    "ops": {"distributed.folders"},
    "graph": {"ops"},
    "model": {"graph"},
    "optimizers": {"passes", "model"},
    "passes": {"graph"},
    "runtime": {"ops", "passes"},
    "distributed": {"model", "runtime"},
    "parallel": {"distributed", "optimizers"},
    "exchange": {"runtime", "passes", "parallel"},
    "metrics": {"distributed"},
    "zoo": {"model"},
}
OUTER = {
    "caffe2",
    "tools",
    "__main__",
    "_lazy",
    "_modules",
    "",
}  # "" is the root package, which imports every package on demand

FOR_ALL = {"netbuilder.__version__", "netbuilder._lazy.names_on_first_use"}

LIBRARY = [module for module in library_modules() if not module.generated]


@pytest.fixture(scope="module", autouse=True)
def _sources_are_parsed_without_garbage_collection():
    """A million nodes, of which none is garbage: walking over them takes longer than making them."""
    gc.disable()
    yield
    gc.enable()


def below(package: str) -> set[str]:
    reached = set(DIRECT[package])
    for other in DIRECT[package]:
        reached |= below(other)
    return reached


EXPORTED = {name: module for module, names in netbuilder._EXPORTS.items() for name in names}


def unit(name: str) -> str | None:
    """The unit that a module, or a name in it, belongs to; None outside netbuilder."""
    parts = name.split(".")
    if parts[0] != "netbuilder":
        return None
    if len(parts) == 1:
        return ""
    if parts[1] in EXPORTED:
        return EXPORTED[parts[1]].split(".")[1]
    if parts[1:3] == ["ops", "core"]:
        return "ops.core"
    if parts[1] == "distributed" and parts[2:] and parts[2] in folders_of("distributed"):
        return "distributed.folders"
    return "" if parts[1].startswith("__") else parts[1]


def relative(path):
    return str(path.relative_to(ROOT))


def test_every_package_is_in_the_table():
    assert {unit(module.name) for module in LIBRARY} <= DIRECT.keys() | OUTER


def test_imports_run_one_way():
    wrong = []
    for module in LIBRARY:
        own = unit(module.name)
        if own in OUTER:
            continue
        allowed = below(own) | {own}
        wrong += [
            f"{module}:{line} imports {name}; {own} may import {sorted(allowed)} only"
            for name, line in module.imports
            if (other := unit(name)) is not None and other not in allowed and name not in FOR_ALL
        ]
    assert not wrong


def test_no_package_imports_the_outer_ones():
    for module in LIBRARY:
        for name, line in module.imports:
            if unit(name) in {"caffe2", "tools"}:
                assert module.package in {"caffe2", "tools"}, f"{module.path}:{line} imports {name}"


# What each family of operators imports besides `core`, and which others each folder of the runtime, of the engines
# and of what processes need imports.
FAMILIES = {
    "activations": {"math"},
    "control": {"records"},
    "detection": {"images", "windows"},
    "losses": {"activations"},
    "records": {"images"},
    "recurrent": {"dense"},
    "segments": {"arrange"},
    "updates": {"control"},
    "windows": {"math"},
}
RUNTIME = {
    "values": set(),
    "plan": {"values"},
    "execute": {"plan", "values"},
    "input": {"execute", "values"},
    "profile": {"execute", "plan", "values"},
}
ENGINES = {"cudnn": {"cuda"}, "onednn": {"llvm"}}
DISTRIBUTED = {
    "failure": {"stores", "transport"},
    "launch": {"stores", "transport"},
    "transport": {"stores"},
    "worlds": {"failure", "stores", "transport"},
}


def folders_of(package):
    return {path.parent.name for path in (ROOT / "netbuilder" / package).glob("*/__init__.py")}


def folders_imported(package):
    """Yield (folder, imported folder or module, where) of the imports between the folders of a package."""
    above = ["netbuilder", *package.split(".")]
    depth = len(above)
    for module in LIBRARY:
        parts = module.name.split(".")
        if len(parts) + module.is_package < depth + 2 or parts[:depth] != above:
            continue
        for name, line in module.imports:
            found = name.split(".")
            if found[:depth] == above and len(found) > depth and found[depth] != parts[depth]:
                yield parts[depth], found[depth], f"{module.path}:{line}"


def test_families_of_operators_import_one_way():
    wrong = [
        f"{where}: {folder} imports {other}"
        for folder, other, where in folders_imported("ops")
        if other not in FAMILIES.get(folder, set()) | {"core"}
    ]
    assert not wrong
    assert not [where for folder, other, where in folders_imported("ops") if folder == "core"]


def test_folders_of_the_runtime_import_one_way():
    assert not [
        f"{where}: {folder} imports {other}"
        for folder, other, where in folders_imported("runtime")
        if other not in RUNTIME[folder]
    ]


@pytest.mark.parametrize(("package", "allowed"), [("engines", ENGINES), ("distributed", DISTRIBUTED)])
def test_folders_import_one_way(package, allowed):
    folders = folders_of(package)
    assert allowed.keys() <= folders
    found = [*folders_imported(package)]
    assert found
    assert not [
        f"{where}: {folder} imports {other}"
        for folder, other, where in found
        if other in folders - allowed.get(folder, set())
    ]


# Import name -> the distribution that setup.py must name.
DISTRIBUTIONS = {
    "PIL": "pillow",
    "_cffi_backend": "cffi",
    "cffi": "cffi",
    "cudnn": "nvidia-cudnn-frontend",
    "cupy": "cupy-cuda12x",
    "cupyx": "cupy-cuda12x",
    "cv2": "opencv-python-headless",
    "google": "protobuf",
    "griffe": "mkdocstrings",
    "lmdb": "lmdb",
    "matplotlib": "matplotlib",
    "mkdocs": "mkdocs-material",
    "markdown": "mkdocs-material",
    "numpy": "numpy",
    "huggingface_hub": "huggingface_hub",
    "hypothesis": "hypothesis",
    "onnx": "onnx",
    "redis": "redis",
    "rich": "rich",
    "simplejpeg": "simplejpeg",
    "tensorboardX": "tensorboardX",
    "threadpoolctl": "threadpoolctl",
    "tomli": "tomli",
    "torch": "torch",
    "tqdm": "tqdm",
    "yaml": "pyyaml",
}


def runs_beside_a_peer(module) -> bool:
    """Scripts that `netbuilder-benchmark` runs by path, in the environment of what it compares with."""
    return module.path.stem.startswith("peer_")


def test_libraries_are_declared():
    declared = (ROOT / "setup.py").read_text(encoding="utf-8") + "".join(f'"{name}"' for name in gpu_requirements(12))
    wrong = []
    for module in LIBRARY:
        for name, line in () if runs_beside_a_peer(module) else module.imports:
            top = name.partition(".")[0]
            # Scripts that run in a peer's environment import their neighbours by bare names.
            own = top in ("netbuilder", "caffe2") or (module.path.parent / f"{top}.py").exists()
            if top not in sys.stdlib_module_names and not own:
                distribution = DISTRIBUTIONS.get(top)
                if distribution is None:
                    wrong.append(f"{module}:{line} imports {top}: name its distribution here and in setup.py")
                elif not re.search(rf'"{distribution}\b', declared):
                    wrong.append(f"{module}:{line} imports {top}: setup.py does not name {distribution}")
    assert not wrong


def test_methods_of_dataclasses_are_compiled_late():
    """To compile those of all classes at once was a third of the time to import netbuilder."""
    alone = ("netbuilder.proto.late_dataclass", "netbuilder.tools.bench.work")  # the latter runs without netbuilder
    wrong = [
        f"{module}:{line}"
        for module in LIBRARY
        if module.name not in alone and not runs_beside_a_peer(module)
        for name, line in module.imports
        if name == "dataclasses.dataclass"
    ]
    assert not wrong, "import dataclass from netbuilder.proto.late_dataclass"


def test_every_folder_of_modules_is_a_package():
    """Folders without __init__.py are not installed."""
    for module in LIBRARY:
        assert (module.path.parent / "__init__.py").is_file(), module.path.parent


# What is about one engine: its kernels without their devices, what its library declares, and what all of CUDA share.
ABOUT_ONE_ENGINE = (
    *(f"netbuilder.tools.{name}" for name in ("kernels.", "compile_kernels", "onednn_interface")),
    *(f"netbuilder.engines.{name}" for name in ("gpu_info", "nccl")),
)


def test_an_engine_is_named_in_its_own_folder_only():
    """Everybody else asks for it by the interface; the folders of engines have a test of their own."""
    inside = tuple(f"netbuilder.engines.{folder}" for folder in folders_of("engines"))
    wrong = [
        f"{module}:{line} imports {name}"
        for module in LIBRARY
        if not module.name.startswith((*inside, *ABOUT_ONE_ENGINE))
        for name, line in module.imports
        if name.startswith(inside)
    ]
    assert not wrong, "netbuilder.engines.engine finds engines by name and by device"


def names_cupy(module) -> list[int]:
    lines = [line for name, line in module.imports if re.match(r"cupyx?\b", name)]
    for node in module.nodes:
        if (
            isinstance(node, ast.Name)
            and node.id in ("cupy", "cupyx")
            or (isinstance(node, ast.Constant) and node.value in ("cupy", "cupyx"))
        ):
            lines.append(node.lineno)
    return lines


def test_cupy_is_named_by_engines_and_cuda_files_only():
    wrong = [
        f"{module}:{line}"
        for module in LIBRARY
        if not (module.name.startswith("netbuilder.engines.") or module.path.stem.endswith("_cuda"))
        for line in names_cupy(module)
    ]
    assert not wrong, "CuPy belongs to netbuilder/engines/ and to files called *_cuda.py"


def test_the_cupy_rule_finds_cupy():
    engine = next(m for m in LIBRARY if m.name == "netbuilder.engines.arrays")
    assert names_cupy(engine)


# Names that the library itself gives to blobs, and what its operators' own families add to names.
INTERNAL_NAME = re.compile(r"@[A-Z]+@|_autosplit_|_autogen_grad|^_grad$|^[cg]pu_$")
NAMES_ARE_MADE_IN = "netbuilder.graph.blob"


def internal_names(module) -> list[str]:
    documentation = {id(n.value) for n in module.nodes if isinstance(n, ast.Expr)}
    return [
        f"line {node.lineno}: {node.value!r}"
        for node in module.nodes
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in documentation
        and INTERNAL_NAME.search(node.value)
    ]


def test_internal_names_of_blobs_are_constants_of_one_module():
    found = {m.name: names for m in LIBRARY if m.package not in OUTER | {"ops"} and (names := internal_names(m))}
    assert len(found.pop(NAMES_ARE_MADE_IN)) == 5  # suffixes of gradients, seeds, shares; no gradient; communicator
    assert not found, f"names come from {NAMES_ARE_MADE_IN}"


# Replicas and gradients are identified by the record, the gradient map and the operators, not by names.
DEVICE_PREFIX = re.compile(r"^[cg]pu_(\d|$)")
SUFFIX_TESTS = {"endswith", "removesuffix", "rfind", "rindex", "find", "index", "count", "split", "rsplit", "partition"}
NAMED_BY_LOOKS = {
    "netbuilder.graph.blob": "makes and reads the names",
    "netbuilder.caffe2.python.models.imagenet_trainer_test_utils": "Caffe2's defaults of its functions are such names",
    "netbuilder.ops.recurrent.backward": "RecurrentNetworkGradient's arguments name gradients so, in Caffe2's nets too",
}


def told_by_looks(module) -> list[str]:
    """Return where a module has a literal prefix of a device, or looks for the suffix of gradients in a name."""
    suffixes = {
        target.id
        for node in module.tree.body
        if isinstance(node, ast.Assign) and is_suffix(node.value, ())
        for target in node.targets
        if isinstance(target, ast.Name)
    } | {"GRADIENT_SUFFIX", "AUTOGEN_GRADIENT_SUFFIX"}
    documentation = {id(n.value) for n in module.nodes if isinstance(n, ast.Expr)}
    lines = []
    for node in module.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            wrong = DEVICE_PREFIX.match(node.value) is not None
        elif isinstance(node, ast.Call):
            method = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            wrong = method == "is_gradient_name" or (
                method in SUFFIX_TESTS and any(is_suffix(argument, suffixes) for argument in node.args)
            )
        elif isinstance(node, ast.Compare):
            wrong = isinstance(node.ops[0], ast.In | ast.NotIn) and is_suffix(node.left, suffixes)
        else:
            continue
        if wrong:
            lines.append(f"{module}:{node.lineno}")
    return lines


def is_suffix(node, names) -> bool:
    if isinstance(node, ast.Name):
        return node.id in names
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in ("_grad", "_autogen_grad")


def test_nothing_is_recognized_by_how_its_name_looks():
    found = {module.name: lines for module in LIBRARY if (lines := told_by_looks(module))}
    assert NAMED_BY_LOOKS.keys() <= found.keys(), "an exemption that nothing needs"
    assert not {name: lines for name, lines in found.items() if name not in NAMED_BY_LOOKS}, (
        "ask the record of replicas (graph/replicas.py), the gradient map or the operators"
    )


@pytest.mark.parametrize(
    "text, count",
    [
        ('x = "gpu_0/fc_w"', 1),
        ('x = f"cpu_{n}/"', 1),
        ('y.endswith("_grad")', 1),
        ('"_grad" in y', 1),
        ('_GRADIENT = "_grad"\ny.removesuffix(_GRADIENT)', 1),
        ("GRADIENT_SUFFIX not in y", 1),
        ("is_gradient_name(y)", 1),
        ('y + "_grad"\n"""gpu_0/x"""\nz = "in gpu_0"\ny.endswith("_w")', 0),
    ],
)
def test_the_rule_on_names_finds_them(text, count):
    tree = ast.parse(text)
    module = types.SimpleNamespace(tree=tree, nodes=tuple(ast.walk(tree)))
    assert len(told_by_looks(module)) == count


PARTED = re.compile(
    r"(?<=[\w'\"})\]]): "
    "(is|are|was|were|has|have|had|must|does|did|needs?|takes|holds|not|will|may|should|can|cannot be) "
)
"""A colon between a subject and its predicate, as in "net 'n': has no inputs"."""


def parted_sentences(module):
    """Return the lines of texts, other than docstrings, that have a colon between a subject and its predicate."""
    described = {id(node.value) for node in module.nodes if isinstance(node, ast.Expr)}
    skipped = described | {id(part) for each in module.nodes if isinstance(each, ast.JoinedStr) for part in each.values}
    found = []
    for node in module.nodes:
        if isinstance(node, ast.JoinedStr):
            text = "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            text = node.value
        else:
            continue
        if PARTED.search(text):
            found.append(node.lineno)
    return found


def test_messages_are_sentences_without_a_colon_before_the_verb():
    assert not {module.name: lines for module in LIBRARY if (lines := parted_sentences(module))}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('raise NetError(f"net {name!r}: has no inputs")', 1),
        ('error("--swa: cannot be combined with --ema")', 1),
        ('error("in the file: " "is a letter")', 1),
        ('error(f"net {name!r} has no inputs: {blobs} are outputs")', 0),
        ('error(f"Softmax: axis must be positive, got {axis}")', 0),
        ('"""The net: has no inputs."""', 0),
    ],
)
def test_the_rule_on_sentences_finds_them(text, count):
    assert len(parted_sentences(types.SimpleNamespace(nodes=tuple(ast.walk(ast.parse(text)))))) == count


# In pieces, so that this file does not break its own rule.
MACHINE_PATH = re.compile(r"(?<![\w.:/])/(" + "|".join(["work", "home", "root", "opt", "Users", "mnt"]) + r")/\w")
REGISTRY = re.compile("(extra-)?index" + "-url|pypi" + r"\.org/simple|PIP" + "_INDEX")


def test_no_file_names_a_machine_path_or_a_registry():
    wrong = []
    for path in files():
        if path.suffix in {".npz", ".pb", ".minidb", ".gz", ".png", ".jpg", ".zip"}:
            continue
        text = path.read_text(encoding="latin-1" if path.suffix == ".onnx" else "utf-8")
        for number, line in enumerate(text.splitlines(), 1):
            if MACHINE_PATH.search(line) or REGISTRY.search(line):
                wrong.append(f"{relative(path)}:{number}: {line.strip()[:100]}")
    assert not wrong


def test_the_path_rule_finds_paths():
    assert MACHINE_PATH.search("see /" + "home/someone/notes") and MACHINE_PATH.search('open("/' + 'root/x")')
    assert not MACHINE_PATH.search("https://example.org/" + "home/page") and not MACHINE_PATH.search("cpu/" + "opt/x")


@pytest.mark.parametrize("package", TOP_FOLDERS)
def test_a_package_is_not_importable_by_itself(package):
    run = subprocess.run([sys.executable, "-c", f"import {package}"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 1
    assert f"ImportError: import this package as netbuilder.{package}" in run.stderr


def test_every_file_says_first_what_it_is():
    wrong = [
        relative(path)
        for path in files()
        if path.suffix == ".py" and not path.name.endswith("_pb2.py") and not says_what_it_is(path)
    ]
    assert not wrong, "a file begins with a docstring whose first line says what it is"


def says_what_it_is(path) -> bool:
    text = path.read_text(encoding="utf-8")
    first = ast.get_docstring(ast.parse(text[: text.find('"""', text.find('"""') + 3) + 3])) or ""
    return text.startswith(('"""', 'r"""', "#!")) and bool(first.split("\n")[0].strip())


def defines_something_public(module) -> bool:
    for node in module.tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            return True
        if (
            module.is_package
            and isinstance(node, ast.Import | ast.ImportFrom)
            and getattr(node, "module", "") != "__future__"
        ):
            return True
    return False


def test_functions_that_pass_their_arguments_on_have_a_signature():
    """``*args, **kwargs`` say nothing in help(), and in a TypeError the name of another function."""
    found = set()
    for module in LIBRARY:
        for owner in (module.tree, *module.nodes) if module.package not in OUTER else ():
            for node in owner.body if isinstance(owner, (ast.Module, ast.ClassDef)) else ():
                if isinstance(node, ast.FunctionDef) and not node.decorator_list and not node.name.startswith("_"):
                    rest = [each.arg for each in (node.args.vararg, node.args.kwarg) if each is not None]
                    found |= {node.name} if rest == ["args", "kwargs"] else set()
    ignored_as_in_caffe2 = {"load_from_db", "prepare_prediction_net"}
    assert found == ignored_as_in_caffe2 | {"scoped_execution_step"}  # whose first argument has a name of its own


def test_exports_are_listed():
    wrong = [
        module.name
        for module in LIBRARY
        if module.package  # the root package's list is built from a table; see test_package.py
        and not runs_beside_a_peer(module)
        and not is_private(module.name)
        and defines_something_public(module)
        and module.exports() is None
    ]
    assert not wrong, "a module that defines public names lists them in __all__"


def is_private(name: str) -> bool:
    return any(part.startswith("_") for part in name.split("."))


def test_exports_exist_and_are_described():
    wrong = []
    for module in LIBRARY:
        exports = [] if runs_beside_a_peer(module) else module.exports() or []
        if len(set(exports)) != len(exports):
            wrong.append(f"{module}: a name is listed twice in __all__")
        for name in exports:
            value = getattr(importlib.import_module(module.name), name, wrong)
            if value is wrong:
                wrong.append(f"{module}: __all__ lists {name!r}, which the module does not have")
            elif typing.get_origin(value) is not None:
                continue  # an alias of a type; Python 3.10 takes it for a class
            elif (inspect.isfunction(value) or inspect.isclass(value)) and not own_docstring(value):
                wrong.append(f"{module}: {name} has no docstring")
    assert not wrong


def own_docstring(value) -> str:
    text = (value.__dict__.get("__doc__") if inspect.isclass(value) else value.__doc__) or ""
    # A dataclass without a docstring gets its signature for one, a message the empty text.
    generated = inspect.isclass(value) and text.startswith(f"{value.__name__}(")
    if inspect.isclass(value) and hasattr(value, "DESCRIPTOR"):
        return "a message of the schema, described there"
    return "" if generated else text.strip()
