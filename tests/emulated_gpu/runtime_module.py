"""Translates CuPy's module of CUDA's runtime from its source, as CuPy's build does; runs in the folder of that source.

The module in the wheel has NVIDIA's runtime linked into it; this one looks for libcudart.so.12.
"""

import Cython
from Cython.Compiler.Main import CompilationOptions, compile_single, default_options

MODULE = "cupy_backends.cuda.api.runtime"

options = CompilationOptions(
    default_options,
    cplus=True,
    language_level=3,
    include_path=["."],
    compiler_directives={
        "embedsignature": True,
        "c_api_binop_methods": True,
        "binding": False,
        "freethreading_compatible": True,
    },
    compile_time_env={
        "CUPY_USE_CUDA_PYTHON": False,
        "CUPY_CUFFT_STATIC": False,
        "CUPY_CYTHON_VERSION": Cython.__version__,
        "CUPY_CUDA_VERSION": 12090,
        "CUPY_HIP_VERSION": 0,
    },
)
raise SystemExit(compile_single(MODULE.replace(".", "/") + ".pyx", options, MODULE).num_errors)
