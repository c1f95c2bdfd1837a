"""Rules of the house: who imports whom, who names CuPy, docstrings, exports, sizes, no paths of one machine."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
import typing

import pytest

from house import ROOMS_BESIDE, ROOT, files, library_modules

# What each room imports directly; what those import comes with it.
DIRECT = {
    "proto": set(),
    "data": {"proto"},
    "ops": {"proto", "data"},
    "graph": {"ops"},
    "model": {"graph"},
    "optimizers": {"graph", "model"},
    "passes": {"graph"},
    "runtime": {"ops", "graph"},
    "parallel": {"passes", "model", "optimizers", "runtime"},
    "exchange": {"runtime", "passes", "parallel"},
    "jobs": {"exchange"},
    "zoo": {"model"},
}
FACES = {"caffe2", "tools", "__main__", ""}  # "" is the root package, which imports every room when asked for a name
LINES_AT_MOST = 500

PYTHON_FILES = [path for path in files() if path.suffix == ".py" and not path.name.endswith("_pb2.py")]
LIBRARY = [module for module in library_modules() if not module.generated]


def below(room: str) -> set[str]:
    reached = set(DIRECT[room])
    for other in DIRECT[room]:
        reached |= below(other)
    return reached


def imported_room(name: str) -> str | None:
    """The room that an imported name lies in; None outside netbuilder."""
    parts = name.split(".")
    if parts[0] != "netbuilder":
        return None
    if len(parts) == 1:
        return ""
    import netbuilder

    home = netbuilder._HOME.get(parts[1])
    return home.split(".")[1] if home else "" if parts[1].startswith("__") else parts[1]


def relative(path):
    return str(path.relative_to(ROOT))


def test_every_room_is_in_the_table():
    assert {module.room for module in LIBRARY} <= DIRECT.keys() | FACES


@pytest.mark.parametrize("module", LIBRARY, ids=str)
def test_imports_run_one_way(module):
    if module.room in FACES:
        return
    allowed = below(module.room) | {module.room}
    wrong = [
        f"line {line}: {name}"
        for name, line in module.imports()
        if (room := imported_room(name)) is not None and room not in allowed and name != "netbuilder.__version__"
    ]
    assert not wrong, f"{module.room} may import {sorted(allowed)} only: {wrong}"


def test_no_room_imports_the_faces():
    for module in LIBRARY:
        for name, line in module.imports():
            if imported_room(name) in {"caffe2", "tools"}:
                assert module.room in {"caffe2", "tools"}, f"{module.path}:{line} imports {name}"


# Import name -> the distribution that setup.py must name.
DISTRIBUTIONS = {
    "PIL": "pillow",
    "cffi": "cffi",
    "cudnn": "nvidia-cudnn-frontend",
    "cupy": "cupy-cuda12x",
    "cupyx": "cupy-cuda12x",
    "cv2": "opencv-python-headless",
    "google": "protobuf",
    "lmdb": "lmdb",
    "matplotlib": "matplotlib",
    "numpy": "numpy",
    "hypothesis": "hypothesis",
    "onnx": "onnx",
    "simplejpeg": "simplejpeg",
    "tensorboardX": "tensorboardX",
    "threadpoolctl": "threadpoolctl",
    "tomli": "tomli",
    "tqdm": "tqdm",
    "yaml": "pyyaml",
}


def runs_beside_a_peer(module) -> bool:
    """Scripts that `netbuilder-benchmark` runs by path, in the environment of what it compares with."""
    return module.path.stem.startswith("peer_")


@pytest.mark.parametrize("module", [m for m in LIBRARY if not runs_beside_a_peer(m)], ids=str)
def test_libraries_are_declared(module):
    declared = (ROOT / "setup.py").read_text(encoding="utf-8")
    for name, line in module.imports():
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in ("netbuilder", "caffe2"):
            wanted = DISTRIBUTIONS.get(top)
            assert wanted is not None, f"line {line} imports {top}: name its distribution here and in setup.py"
            assert re.search(rf'"{wanted}\b', declared), f"line {line} imports {top}: setup.py does not name {wanted}"


def test_every_folder_of_modules_is_a_package():
    """Folders without __init__.py are not installed."""
    for module in LIBRARY:
        assert (module.path.parent / "__init__.py").is_file(), module.path.parent


def names_cupy(module) -> list[int]:
    lines = [line for name, line in module.imports() if re.match(r"cupyx?\b", name)]
    for node in ast.walk(module.tree):
        if (
            isinstance(node, ast.Name)
            and node.id in ("cupy", "cupyx")
            or (isinstance(node, ast.Constant) and node.value in ("cupy", "cupyx"))
        ):
            lines.append(node.lineno)
    return lines


@pytest.mark.parametrize("module", LIBRARY, ids=str)
def test_cupy_is_named_by_engines_and_cuda_files_only(module):
    if not (module.name.startswith("netbuilder.ops.engines.") or module.path.stem.endswith("_cuda")):
        assert not names_cupy(module), "CuPy belongs to ops/engines/ and to files called *_cuda.py"


def test_the_cupy_rule_finds_cupy():
    engine = next(m for m in LIBRARY if m.name == "netbuilder.ops.engines.arrays")
    assert names_cupy(engine)


# Names that the library itself gives to blobs, and what its operators' own families add to names.
INTERNAL_NAME = re.compile(r"@[A-Z]+@|_autosplit_|_autogen_grad|^_grad$|^[cg]pu_$")
NAMES_ARE_MADE_IN = "netbuilder.graph.blob"


def internal_names(module) -> list[str]:
    documentation = {id(n.value) for n in ast.walk(module.tree) if isinstance(n, ast.Expr)}
    return [
        f"line {node.lineno}: {node.value!r}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in documentation
        and INTERNAL_NAME.search(node.value)
    ]


@pytest.mark.parametrize("module", [m for m in LIBRARY if m.room not in FACES | {"ops"}], ids=str)
def test_internal_names_of_blobs_are_constants_of_one_module(module):
    found = internal_names(module)
    if module.name == NAMES_ARE_MADE_IN:
        assert len(found) == 5  # suffixes of gradients and of seeds, shares, the empty gradient, the communicator
    else:
        assert not found, f"names come from {NAMES_ARE_MADE_IN}"


# In pieces, so that this file does not break its own rule.
MACHINE_PATH = re.compile(r"(?<![\w.:/])/(" + "|".join(["work", "home", "root", "opt", "Users", "mnt"]) + r")/\w")
REGISTRY = re.compile("(extra-)?index" + "-url|pypi" + r"\.org/simple|PIP" + "_INDEX")


def test_no_file_names_a_machine_path_or_a_registry():
    wrong = []
    for path in files():
        if path.suffix in {".npz", ".pb", ".minidb", ".gz", ".png", ".jpg"}:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if MACHINE_PATH.search(line) or REGISTRY.search(line):
                wrong.append(f"{relative(path)}:{number}: {line.strip()[:100]}")
    assert not wrong


def test_the_path_rule_finds_paths():
    assert MACHINE_PATH.search("see /" + "home/someone/notes") and MACHINE_PATH.search('open("/' + 'root/x")')
    assert not MACHINE_PATH.search("https://example.org/" + "home/page") and not MACHINE_PATH.search("cpu/" + "opt/x")


@pytest.mark.parametrize("room", ROOMS_BESIDE)
def test_a_room_is_not_importable_by_itself(room):
    run = subprocess.run([sys.executable, "-c", f"import {room}"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 1
    assert f"ImportError: import this package as netbuilder.{room}" in run.stderr


@pytest.mark.parametrize("path", PYTHON_FILES, ids=relative)
def test_every_file_says_what_it_is_and_stays_short(path):
    text = path.read_text(encoding="utf-8")
    first = ast.get_docstring(ast.parse(text)) or ""
    assert first.split("\n")[0].strip(), "the first line says what the file is"
    assert text.startswith(('"""', 'r"""', "#!")), "the docstring comes first"
    assert text.count("\n") <= LINES_AT_MOST, f"{text.count(chr(10))} lines: look for the second thing in it"


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


@pytest.mark.parametrize("module", [m for m in LIBRARY if not runs_beside_a_peer(m)], ids=str)
def test_exports_are_listed(module):
    if module.room == "":
        return  # built from a table; see test_package.py
    if defines_something_public(module) and not is_private(module.name):
        assert module.exports() is not None, "a module that defines public names lists them in __all__"


def is_private(name: str) -> bool:
    return any(part.startswith("_") for part in name.split("."))


@pytest.mark.parametrize("module", [m for m in LIBRARY if m.exports()], ids=str)
def test_exports_exist_and_are_described(module):
    exports = module.exports()
    assert len(set(exports)) == len(exports), "a name is listed twice"
    loaded = importlib.import_module(module.name)
    for name in exports:
        assert hasattr(loaded, name), f"__all__ lists {name!r}, which the module does not have"
        value = getattr(loaded, name)
        if typing.get_origin(value) is not None:
            continue  # an alias of a type; Python 3.10 takes it for a class
        if inspect.isfunction(value) or inspect.isclass(value):
            assert own_docstring(value), f"{name} has no docstring"


def own_docstring(value) -> str:
    text = (value.__dict__.get("__doc__") if inspect.isclass(value) else value.__doc__) or ""
    # A dataclass without a docstring gets its signature for one, a message the empty text.
    generated = inspect.isclass(value) and text.startswith(f"{value.__name__}(")
    if inspect.isclass(value) and hasattr(value, "DESCRIPTOR"):
        return "a message of the schema, described there"
    return "" if generated else text.strip()
