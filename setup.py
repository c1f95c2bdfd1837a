"""Packaging: ops/, proto/ and tools/, which are next to netbuilder/ in the checkout, are installed inside it."""

import ast
import runpy
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent
PACKAGES = ["ops", "proto", "tools"]

RUFF = "ruff>=0.17,<0.18"  # its formatting changes from one minor version to the next
TEST = [
    "hypothesis>=6.100",
    "mypy>=1.15,<3",
    "onnxruntime>=1.18",
    "pytest>=9.0",
    "pytest-xdist>=3.6",
    RUFF,
    "types-cffi",
    "types-protobuf>=4.25",
]
TRAIN = ["pyyaml>=6", "rich>=13", "tomli>=2; python_version < '3.11'", "tqdm>=4.60"]
REDIS = ["redis>=5"]
PLOT = ["matplotlib>=3.8", "tensorboardX>=2.6"]
DATA = ["lmdb>=1.4", "opencv-python-headless>=4.10", "pillow>=10", "simplejpeg>=1.8"]
HUB = ["huggingface_hub>=1.0"]
ONNX = ["onnx>=1.16"]
SITE = ["mkdocs-material>=9.7", "mkdocstrings[python]>=1", RUFF]  # which formats signatures
SERVE = ["fastapi>=0.110", "uvicorn>=0.29"]
TORCH = ["torch>=2.0"]
MPI = ["mpi4py>=4", "mpich>=4.2"]
# What Caffe2's own tests import; the last NumPy and SciPy that serve tests of their age.
CAFFE2_TESTS = [
    "future",
    "mock",
    "networkx>=3",
    "numpy<2.3",
    "pytest-timeout>=2.3",
    "scipy>=1.13,<1.14",
    "six",
    "tabulate",
]
NAMES = runpy.run_path(str(ROOT / "proto" / "extras.py"))
GPU = NAMES["gpu_requirements"]


def version() -> str:
    """The version that netbuilder/__init__.py states."""
    for node in ast.parse((ROOT / "netbuilder" / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__version__":
            return ast.literal_eval(node.value)
    raise RuntimeError("netbuilder/__init__.py: no line sets __version__")


def packages() -> list[str]:
    """Every package under its installed name."""
    found = find_packages(str(ROOT), include=["netbuilder", "netbuilder.*"])
    for package in PACKAGES:
        found.append(f"netbuilder.{package}")
        found.extend(f"netbuilder.{package}.{name}" for name in find_packages(str(ROOT / package)))
    return found


setup(
    name=NAMES["DISTRIBUTION"],
    version=version(),
    description="Neural nets as protobuf graphs: differentiated, replicated over devices, planned and run",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=packages(),
    package_dir={"netbuilder": "netbuilder", **{f"netbuilder.{package}": package for package in PACKAGES}},
    package_data={"": ["py.typed", "*.pyi", "*.proto", "*.h", "*.gz", "*.json", "*.md", "*.txt", "*.js", "*.css"]},
    include_package_data=False,
    zip_safe=False,
    install_requires=[
        "numpy>=2.0",
        "protobuf>=4.25",
        "cffi>=1.15",
        "threadpoolctl>=3.1",
        # LLVM, which compiles elementwise operators and updates for the CPU at hand; without it NumPy computes them.
        "llvmlite>=0.50",
        # The last release for CPUs without a SYCL runtime; elsewhere the NumPy kernels serve.
        "onednn-cpu-gomp==2023.2.0; sys_platform == 'linux' and platform_machine == 'x86_64'",
    ],
    extras_require={
        "caffe2-tests": TEST + TRAIN + DATA + ONNX + CAFFE2_TESTS,
        "data": DATA,
        "draw": ["pydot>=1.4.2"],
        "dev": TEST + TRAIN + DATA + ONNX + MPI + PLOT + REDIS + SERVE + HUB,
        "gpu": GPU(12),
        "gpu-cuda13": GPU(13),
        "hub": HUB,
        "mpi": MPI,
        "onnx": ONNX,
        "plot": PLOT,
        "redis": REDIS,
        "serve": SERVE,
        "site": SITE + ONNX,
        "test": TEST + TRAIN + DATA + ONNX + MPI + PLOT + REDIS + SERVE + HUB,
        "torch": TORCH,
        "train": TRAIN,
    },
    entry_points={
        "console_scripts": [
            f"netbuilder-{name} = netbuilder.tools.{module}:main"
            for name, (module, _) in runpy.run_path(str(ROOT / "netbuilder" / "__main__.py"))["COMMANDS"].items()
        ]
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
