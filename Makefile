# GNU make. `make help` lists the targets.

VENV        = .venv
PYTHON      = python3
PIP_ARGS    =
INSTALL     = 1
JOBS        = 2
PARITY_ARGS =
PYTEST_ARGS =
PART        = 1/1
BENCH_ARGS  =
MUTANTS_ARGS =
LESSONS     =
# parity_tests/tests/contract/test_annotations.py checks annotations with jaxtyping's import hook, in a process of its own. This puts
# every test under the hook, which doubles their time: HOOK=--jaxtyping-packages=attn_np,attn_jax,attn_torch,beartype.beartype
HOOK        =

# Hundreds of processes of the tests import these packages: they are compiled once.
unexport PYTHONDONTWRITEBYTECODE

SHELL := /bin/sh
.DEFAULT_GOAL := help
.NOTPARALLEL:

ifeq ($(INSTALL),0)
RUN := "$(PYTHON)"
# Works in an environment where the project itself is not installed.
ATTN_PARITY := "$(PYTHON)" -m parity_tests
else
BIN := $(VENV)/bin
RUN := "$(BIN)/python"
ATTN_PARITY := "$(BIN)/attn-parity"
endif

# The torch that requirements.lock pins.
TORCH = 2.13.0
# What torch's CUDA build, the default on Linux, draws in. Not pinned: the CPU build needs none of it, and pip adds
# what the torch it finds asks for.
CUDA = cuda-bindings cuda-pathfinder cuda-toolkit triton nvidia-cublas nvidia-cuda-cupti nvidia-cuda-nvrtc \
       nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile nvidia-curand nvidia-cusolver \
       nvidia-cusparse nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvjitlink nvidia-nvshmem-cu13 nvidia-nvtx

##@ Verify
.PHONY: parity
parity: env  ## run the parity check (PARITY_ARGS=...)
	$(ATTN_PARITY) run $(PARITY_ARGS)

# Tests marked `compile` run in a second call, in one process: inductor's workers and xdist's would compete for the same
# cores. It has no hook: torch.compile can't trace what that wraps.
# pytest's exit status 5 (nothing selected) is a failure of the first call only; both calls always run.
.PHONY: test
test: env  ## run the tests (JOBS=2 processes, PYTEST_ARGS=...)
	@status=0; \
	set -x; \
	$(RUN) -m pytest -n $(JOBS) --dist loadgroup -m "not compile and not peers and not course" $(HOOK) $(PYTEST_ARGS) || status=$$?; \
	compiled=0; $(RUN) -m pytest -n $(JOBS) -m compile $(PYTEST_ARGS) || compiled=$$?; \
	{ set +x; } 2>/dev/null; \
	if [ $$compiled -eq 5 ]; then echo "No test marked 'compile' was selected."; \
	elif [ $$compiled -ne 0 ]; then status=$$compiled; fi; \
	echo "Left out: tests against other libraries; 'make peers' runs them. The lessons and three long pages: 'make course'."; \
	exit $$status

.PHONY: compiled
compiled: env  ## cells of the tables of transforms that `make test` leaves out (PART=1/6: the first of six parts)
	$(RUN) -m pytest -n $(JOBS) -m compile --left-out --part $(PART) \
	    $(addprefix parity_tests/tests/transforms/test_,transforms_torch.py transforms_functions.py dynamic_functions.py compile.py) \
	    parity_tests/tests/contract/test_decoding.py
	$(RUN) -m pytest -n $(JOBS) --dist loadgroup -m "not compile" --left-out --part $(PART) \
	    parity_tests/tests/transforms

SAMPLED = $(addprefix parity_tests/tests/,kernels weights tool parallel variants contract \
    house/test_docs.py house/test_pages.py mutation/test_mutants.py)
LONGEST = $(addprefix parity_tests/tests/,tool/test_decoding_causes.py mutation/test_ast_mutants.py)
.PHONY: sampled
sampled: env  ## numbers, sizes, names and mistakes that `make test` leaves out (PART=1/6: the first of six parts)
	$(RUN) -m pytest -n $(JOBS) --dist loadgroup -m "not compile and not peers and not course" --left-out --part $(PART) \
	    $(SAMPLED) $(LONGEST:%=--ignore=%)

# Each line says how far it is. In no other target and not in .ci/run.
.PHONY: sweeps
sweeps: env  ## what takes hours: mistakes in ports, whole models and caches, ordinary sizes, right candidates
	$(RUN) -m pytest -n $(JOBS) --dist loadgroup -m "not compile" --left-out $(LONGEST)
	$(RUN) -m pytest -n $(JOBS) --everything parity_tests/tests/tool/test_untested.py
	$(RUN) -m parity_tests.tests.tool.realistic
	$(RUN) -m parity_tests.tests.tool.more_mistakes
	$(RUN) -m parity_tests.tests.tool.decoding_realistic
	$(RUN) -m parity_tests.tests.tool.whole_mistakes
	$(RUN) -m parity_tests.peers.foreign
	for tree in numpy torch jax; do $(RUN) -m parity_tests.tests.kernels.sizes $$tree --cases 5000 || exit; done
	$(RUN) -m parity_tests.tests.kernels.planted_sweep
	for dtype in float64 float32 bfloat16 float16; do \
	    $(RUN) -m parity_tests.tests.kernels.planted_sweep --right 5000 --dtype $$dtype || exit; done
	$(ATTN_PARITY) soak --ports 20000

.PHONY: course
course: env  ## run every lesson of the course as printed, its notebook with NumPy alone, and three long pages
	$(RUN) -m pytest -n $(JOBS) -m course $(PYTEST_ARGS)

.PHONY: peers
peers: env  ## hold layers against transformers, Keras, Equinox, peft and torchao, and a part of what repeats (PART=1/6, PYTEST_ARGS=...)
	$(RUN) -m pytest -n $(JOBS) -m peers $(PYTEST_ARGS)
	$(RUN) -m pytest -n $(JOBS) -m peers --left-out --part $(PART) $(PYTEST_ARGS) \
	    $(addprefix parity_tests/tests/,tool/test_peers.py tool/test_modules_transformers.py kernels/test_drop_in.py \
	    weights/test_absent_fields.py) || test $$? -eq 5

.PHONY: mutants
mutants: env  ## plant known mistakes and careless edits, and count how many are seen (MUTANTS_ARGS=--short: a minute)
	$(RUN) -m parity_tests.tests.mutation $(MUTANTS_ARGS)

.PHONY: bench
bench: env  ## time and weigh the trees beside others (BENCH_ARGS=--quick: a hint in two minutes)
	$(RUN) -m benchmarks $(BENCH_ARGS)

# An environment of its own: Triton and flash-linear-attention, whose kernels run in Triton's interpreter.
KERNELS_VENV = .venv-kernels
KERNELS_ARGS = --write docs/kernels.md
.PHONY: kernels
kernels: env  ## judge kernels of other packages on this machine's CPU (KERNELS_ARGS="--only splash")
	@test -x "$(KERNELS_VENV)/bin/python" || $(RUN) -m venv "$(KERNELS_VENV)"
	"$(KERNELS_VENV)/bin/python" -m pip install --quiet $(PIP_ARGS) -r requirements.lock
	"$(KERNELS_VENV)/bin/python" -m pip install --quiet $(PIP_ARGS) --no-deps \
	    triton flash-linear-attention fla-core einops
	JAX_PLATFORMS=cpu TRITON_INTERPRET=1 PYTHONPATH=. \
	    "$(KERNELS_VENV)/bin/python" -m parity_tests.kernels.real $(KERNELS_ARGS)

.PHONY: lint
lint: env  ## check style and layout (ruff)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

.PHONY: types
types: env  ## check types (basedpyright)
	$(RUN) -m basedpyright --pythonpath "$$($(RUN) -c 'import sys; print(sys.executable)')"

.PHONY: docs
docs: env  ## build the documentation into docs/_build/html
	$(RUN) -m sphinx -W --keep-going -b html docs docs/_build/html

.PHONY: pages
pages: env  ## the site as a folder to publish, docs/_build/site: at most 20 MB, looked at in Chromium where there is one
	rm -rf docs/_build/site
	$(RUN) -m sphinx -W --keep-going -b html -d docs/_build/doctrees docs docs/_build/site
	$(RUN) -m pytest -m course parity_tests/tests/house/test_site.py

.PHONY: slides
slides: env  ## lessons as slides in docs/_build/slides, each one HTML file without a network (LESSONS="01 zh/04")
	$(RUN) docs/_ext/slides.py $(LESSONS)

##@ Maintain
.PHONY: pictures
pictures: env  ## draw the lessons' pictures and mark blocks that need more than NumPy (LESSONS="01 07")
	$(RUN) docs/_ext/course.py $(LESSONS)

.PHONY: sync
sync: env  ## regenerate the committed files that are generated
	$(RUN) -m parity_tests.sync
	$(RUN) -m parity_tests.tests.transforms.tables

.PHONY: format
format: env  ## apply ruff's fixes and layout
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

.PHONY: lock
lock: env  ## compile requirements.lock from pyproject.toml (LOCK_ARGS=--upgrade takes newer releases)
	@{ \
	echo "# Pins for Python 3.11 to 3.14 on every platform, compiled from pyproject.toml by:"; \
	echo "#"; \
	echo "#     make lock                        keeps what is pinned here where it still fits"; \
	echo "#     make lock LOCK_ARGS=--upgrade    takes the newest releases"; \
	echo "#"; \
	echo "# which runs"; \
	echo "#"; \
	echo "#     uv pip compile --universal --python-version 3.11 --extra dev pyproject.toml"; \
	echo "#"; \
	echo "# with torch held at $(TORCH) and without the CUDA packages of torch's GPU build: on a machine"; \
	echo "# whose index offers that build, pip adds those by itself. No hashes: torch's builds differ by platform."; \
	} > requirements.lock.header
	@cp requirements.lock requirements.lock.new 2>/dev/null || : > requirements.lock.new
	echo "torch==$(TORCH)" | $(RUN) -m uv pip compile --quiet --universal --python-version 3.11 --extra dev \
	    --constraints - --no-header $(CUDA:%=--no-emit-package %) $(LOCK_ARGS) \
	    --output-file requirements.lock.new pyproject.toml
	@if grep -nE '^(nvidia|cuda|triton)' requirements.lock.new; then \
	echo "make lock: the packages above belong to torch's CUDA build; add them to CUDA in the Makefile." >&2; exit 1; fi
	@sed '/^# The following packages were excluded/,$$d' requirements.lock.new | cat requirements.lock.header - > requirements.lock
	@rm -f requirements.lock.header requirements.lock.new

.PHONY: clean
clean:  ## remove caches and built files (the environment stays)
	rm -rf docs/_build build dist .pytest_cache .ruff_cache .hypothesis
	find attn_np attn_jax attn_torch parity_tests benchmarks examples docs -name __pycache__ -type d -prune \
	    -exec rm -rf {} + 2>/dev/null || true

##@ Environment
# The stamp holds what was installed from, so that a change of either file, and nothing else, installs again.
# The check is in the shell, not in make's timestamps: a fresh clone has arbitrary ones, and $(VENV) may hold spaces.
.PHONY: env venv
venv: env
env:  ## make the environment VENV from requirements.lock when needed (INSTALL=0: use PYTHON's own)
	@"$(PYTHON)" -c 'import sys' 2>/dev/null || { \
	    echo "make: '$(PYTHON)' does not run; give a Python 3.11 or newer, for example: make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "make: attn-parity needs Python 3.11 or newer, but '$(PYTHON)' is $$("$(PYTHON)" -V 2>&1);" \
	         "give another, for example: make PYTHON=python3.12" >&2; exit 1; }
ifneq ($(INSTALL),0)
	@set -e; \
	version() { "$$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }; \
	want=$$(cat requirements.lock pyproject.toml | cksum); \
	if [ ! -x "$(BIN)/python" ]; then \
	    echo "Making $(VENV) with $$("$(PYTHON)" -V)"; \
	    had=$$([ -e "$(VENV)" ] && echo yes || true); \
	    "$(PYTHON)" -m venv "$(VENV)" || { [ -n "$$had" ] || rm -rf "$(VENV)"; \
	        echo "make: '$(PYTHON) -m venv' failed. On Debian and Ubuntu: apt install python3-venv. Or use an" \
	             "environment of your own: make INSTALL=0 PYTHON=/path/to/its/python" >&2; exit 1; }; \
	elif [ "$(origin PYTHON)" != file ] && [ "$$(version "$(PYTHON)")" != "$$(version "$(BIN)/python")" ]; then \
	    echo "make: $(VENV) has Python $$(version "$(BIN)/python"), but PYTHON=$(PYTHON) is" \
	         "$$(version "$(PYTHON)"); remove $(VENV) or give another VENV=" >&2; exit 1; \
	fi; \
	if [ "$$(cat "$(VENV)/attn-parity.stamp" 2>/dev/null)" != "$$want" ]; then \
	    echo "Installing requirements.lock into $(VENV)"; \
	    "$(BIN)/python" -m pip install --quiet $(PIP_ARGS) -r requirements.lock; \
	    "$(BIN)/python" -m pip install --quiet $(PIP_ARGS) --no-deps --no-build-isolation -e .; \
	    echo "$$want" > "$(VENV)/attn-parity.stamp"; \
	fi
endif

.PHONY: help
help:  ## list the targets
	@awk 'BEGIN { FS = ":.*## " } /^##@/ { printf "\n%s\n", substr($$0, 5) } \
	    /^[a-z]+:.*## / { sub(/:.*/, "", $$1); printf "  make %-8s %s\n", $$1, $$2 }' Makefile
	@printf '\nVariables: VENV=$(VENV) PYTHON=$(PYTHON) PIP_ARGS= INSTALL=1 JOBS=$(JOBS) PARITY_ARGS= PYTEST_ARGS= PART=$(PART) MUTANTS_ARGS= BENCH_ARGS=\n'
