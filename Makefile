# The workshop's commands. `make lab` and `make test` are all that a learner and a developer need; `make help` lists the
# rest. Everything is installed into .venv and into the caches of uv, pip and ep_lib, nothing anywhere else.
#
#   PYTHON=python3.12     which Python makes the environment (default: the first of python3, 3.13, 3.12, 3.11 that fits)
#   NOTEBOOKS=00,01       which notebooks `make site` executes (default: all)
#   REPOSITORY=owner/name   on GitHub: `make site` links each notebook to Codespaces, Binder and Colab
#   LAB=0                 `make lab` stops before it starts JupyterLab
#   CUDA=cuda12|cuda13|   which GPU packages come along (default: what the driver offers; empty: none)
#   TORCH_INDEX=address   one more package index; PyTorch's index of CPU-only builds saves gigabytes (docs/learners.md)
#   CONSTRAINTS=file      which releases: the lock (default), or .ci/constraints.in for the newest; with a VENV of its own
#   PIP_FLAGS=...         more words for the installer: those that uv and pip both know are quickest

SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV ?= .venv
LAB ?= 1
TORCH_INDEX ?=
PIP_FLAGS ?=
CONSTRAINTS ?= .ci/constraints.txt
# One process more than there are cores: tests that start processes wait for them. (nproc believes OMP_NUM_THREADS.)
PYTEST_FLAGS ?= -n $(shell expr $$(env -u OMP_NUM_THREADS nproc) + 1) --dist worksteal

ifndef PYTHON
PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && exit; done; echo python3)
endif
ifndef CUDA
CUDA := $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\)\..*/\1/p' | \
	sed -n -e 's/^12$$/cuda12/p' -e 's/^1[3-9]$$/cuda13/p')
endif

comma := ,
PHASE := @sh .ci/phase.sh
PY := $(VENV)/bin/python
# The lock's torch is for CUDA 13. For CUDA 12 the newest one that is for it is taken, with what comes along: what is for
# CUDA 12 has no pins.
ifeq ($(CUDA),cuda12)
PINS := $(VENV)/.pins-cuda12
NIXL := nixl-cu12
else
PINS := $(CONSTRAINTS)
NIXL := nixl
endif
INSTALL := "$(PY)" .ci/install.py --constraint "$(PINS)" \
	$(if $(TORCH_INDEX),--extra-index-url "$(TORCH_INDEX)") $(PIP_FLAGS)
# By all cores, where pip takes one. Ours too: processes that the library starts write none, and there are hundreds of
# them. Some packages carry files that are no Python of this version: pip says nothing of them either.
BYTECODE = sh -c '"$(PY)" -m compileall -qq -j 0 ep_lib "$(VENV)/lib" || true'
# Wrong answers that the grader is tested with stay as people write them.
CPP_FILES = find ep_lib tutorial_kernels exercises solutions tests benchmarks extras -path tests/grader_answers -prune -o \
	\( -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.hpp' -o -name '*.h' \) -print

# A stamp a set of packages, remade when what should be installed changes. The first one holds the path of the checkout:
# an environment that moved with its folder, or lost its Python, is made anew, since its scripts name the old place.
VENV_MADE := $(VENV)/.made
$(shell [ ! -e "$(VENV_MADE)" ] || { [ -x "$(PY)" ] && [ "$$(cat "$(VENV_MADE)")" = "$(CURDIR)" ]; } || rm -rf "$(VENV)")
CORE_INSTALLED := $(VENV)/.installed
LAB_INSTALLED := $(VENV)/.installed-lab$(if $(CUDA),-$(CUDA))
TEST_INSTALLED := $(VENV)/.installed-test$(if $(CUDA),-$(CUDA))
SITE_INSTALLED := $(VENV)/.installed-site
TEST_BYTECODE := $(TEST_INSTALLED)-bytecode
DEMO_SHOWN := $(VENV)/.demo-shown

.PHONY: help lab demo site pictures test extended quick nightly prove mutants coverage sanitize lock matrix lint .formats .types .documents .emulator format check-machine clean distclean
# Two steps that need one core each, side by side.
BOTH = @$(MAKE) --no-print-directory --jobs 2

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

lab: $(CORE_INSTALLED)  ## set up, look at the machine, run the demo (the first time), open the notebooks
	$(BOTH) $(LAB_INSTALLED) .emulator
	$(PHASE) "looking at this machine (ep-lib doctor)" "$(PY)" -m ep_lib doctor
	@[ ! -e "$(DEMO_SHOWN)" ] || echo "The demo has run here before; \`make demo\` shows it again."
	@$(MAKE) --no-print-directory "$(DEMO_SHOWN)"
ifeq ($(LAB),0)
	@echo "Ready. \`make lab\` opens the notebooks (LAB=0 stopped before that)."
else
	"$(PY)" -m ep_lib lab
endif

# Who comes for the notebooks every day waits for it once.
$(DEMO_SHOWN): | $(LAB_INSTALLED)
	$(PHASE) "training a small model, its experts on 4 and 8 ranks (ep-lib demo)" "$(PY)" -m ep_lib demo
	@touch "$@"

demo: $(LAB_INSTALLED)  ## a small mixture-of-experts model, its experts spread over ranks
	"$(PY)" -m ep_lib demo

site: $(SITE_INSTALLED)  ## executed notebooks, docs, the API and pages of runs as a static site in build/site/html (minutes; NOTEBOOKS=00,01: only some)
	"$(PY)" docs/site/build.py $(if $(NOTEBOOKS),--notebooks "$(NOTEBOOKS)") $(if $(REPOSITORY),--repository "$(REPOSITORY)")

pictures: $(LAB_INSTALLED)  ## README's picture and animation again, from a run (needs Chromium)
	"$(PY)" docs/site/pictures.py

# One thread a process: the tests fill the cores, and NumPy's threads would spin beside them.
test extended quick nightly coverage matrix: export OPENBLAS_NUM_THREADS = 1
test extended quick nightly coverage matrix: export OMP_NUM_THREADS = 1
# pytest takes seconds to rewrite the tests' assertions: their bytecode is kept for all workers, whatever the shell says.
test lint extended quick nightly coverage matrix: export PYTHONDONTWRITEBYTECODE =

test: $(CORE_INSTALLED)  ## lint, types and the tests, compile checks and notebooks included
	$(BOTH) $(TEST_INSTALLED) .emulator
	$(BOTH) --output-sync=target .types $(TEST_BYTECODE) .formats .documents
	$(PHASE) "running the tests" "$(PY)" -m pytest $(PYTEST_FLAGS) -m "not extended" --ignore tests/documents

extended: $(TEST_INSTALLED)  ## the tests that `make test` leaves out: more seeds, launchers, broken files and wrong answers of the same kind; CI runs as many as its time allows
	"$(PY)" -m pytest $(PYTEST_FLAGS) $(MORE_FLAGS) -m extended

quick: $(TEST_INSTALLED)  ## while working: ruff and the quick tests (not: types, C++ formats, notebooks, grader, mistakes, whole commands)
	"$(PY)" -m ruff check .
	"$(PY)" -m pytest $(PYTEST_FLAGS) -q -m "not slow and not extended"

nightly: $(TEST_INSTALLED)  ## right kernels through 1,000 schedules of the checker on every fabric, thousands of random inputs, 50 rounds of each fault, every notebook in a browser, the emulator by clang++ (about an hour)
	"$(PY)" -m pytest $(PYTEST_FLAGS) -m extended
	"$(PY)" -m pytest $(PYTEST_FLAGS) --seeds 1000 --rounds 50 $(addprefix tests/*/test_,$(addsuffix .py,right_kernels pcie \
		hierarchical dispatch_combine low_latency happens_before flat killed_processes rank_faults browser jit_gxx \
		grader_answers bounce_buffer weak_memory others_kernels notebooks puzzles))

prove: $(TEST_INSTALLED)  ## every schedule of every kernel in its smallest shape, on every fabric and memory, and a mistake in each (at most an hour)
	"$(PY)" benchmarks/prove.py --json benchmarks/results/prove.json && "$(PY)" benchmarks/prove_docs.py

mutants: $(TEST_INSTALLED)  ## how many wrong answers the hidden tests let through: about 100 mutants of each solution (a quarter of an hour)
	"$(PY)" benchmarks/mutants.py

coverage: $(TEST_INSTALLED)  ## lines and branches of Python and lines of the emulator's C++ that the tests run (needs g++; half an hour)
	"$(PY)" benchmarks/covered.py $(PYTEST_FLAGS)

# What libasan is asked: Python keeps memory on purpose, and the emulator catches the faults of kernels itself.
SANITIZER_OPTIONS := detect_leaks=0:allow_user_segv_handler=1:handle_segv=0:handle_sigbus=0:handle_abort=0:handle_sigfpe=0:handle_sigill=0

sanitize: $(TEST_INSTALLED)  ## the emulator's C++ under AddressSanitizer and UBSan, over a part of the tests (needs g++; minutes)
	EP_LIB_CXX=g++ EP_LIB_SANITIZE=1 ASAN_OPTIONS="$(SANITIZER_OPTIONS)" UBSAN_OPTIONS=print_stacktrace=1 \
		LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" \
		"$(PY)" -m pytest -q -m "not slow" -k "not for_gpus" $(addprefix tests/*/test_,$(addsuffix .py,emulator_runtime network checker flat \
		cuda_people_write hostile_by_hand proxy peer_copy dispatch_combine exhaustive))

lock: $(TEST_INSTALLED)  ## the newest releases that the ranges of pyproject.toml allow become what `make` installs, and the tests run on them
	"$(PY)" .ci/install.py lock .ci/constraints.txt
	$(MAKE) --no-print-directory test

matrix: $(TEST_INSTALLED)  ## the oldest and the newest dependencies, smoke-tested for every Python here, and the tests with the newest of everything
	"$(PY)" .ci/matrix.py $(MATRIX_FLAGS)

lint: .formats .types .documents  ## formats, types, and the documents: what they name exists, what they show is what was measured

# Two steps: mypy takes longest, and has a core to itself while the other one does all else that comes before the tests.
.formats: $(TEST_INSTALLED)
	"$(PY)" -m ruff check .
	"$(PY)" -m ruff format --check .
	@$(CPP_FILES) | tr '\n' '\0' | xargs -0 -r "$(VENV)/bin/clang-format" --dry-run -Werror

.documents: $(TEST_INSTALLED)
	"$(PY)" -m pytest -q -m "not extended" tests/documents

.types: $(TEST_INSTALLED)
	"$(PY)" -m mypy

# The emulator's runtime and headers, which every test and notebook waits for, compiled while pip installs the rest. If
# that fails, `doctor` or the first test says why.
.emulator: $(CORE_INSTALLED)
	@PYTHONPATH=. sh .ci/phase.sh "compiling the emulator (once)" "$(PY)" -c \
		"from ep_lib import Kernel; Kernel.from_source('__global__ void k() {}', 'k').compile()" 2>&1 | cat

format: $(TEST_INSTALLED)  ## rewrite the sources in the house style
	"$(PY)" -m ruff check --fix .
	"$(PY)" -m ruff format .
	@$(CPP_FILES) | tr '\n' '\0' | xargs -0 -r "$(VENV)/bin/clang-format" -i

check-machine:
	@sh .ci/preflight.sh "$(PYTHON)"

$(VENV_MADE): | check-machine
	$(PHASE) "making an environment in $(VENV)" "$(PYTHON)" -m venv "$(VENV)"
	@echo "$(CURDIR)" > "$@"

$(VENV)/.pins-cuda12: $(CONSTRAINTS) $(VENV_MADE)
	@sed '/^\(torch\|triton\|cuda-bindings\)==/d' "$(CONSTRAINTS)" > "$@"

# The library alone, which is enough to compile the emulator.
$(CORE_INSTALLED): $(VENV_MADE) pyproject.toml $(PINS) | check-machine
	$(PHASE) "installing uv, which installs the rest, and the library" $(INSTALL) --editable .
	@touch "$@"

$(LAB_INSTALLED): $(CORE_INSTALLED) pyproject.toml $(PINS) | check-machine
ifeq ($(CUDA)$(TORCH_INDEX),)
	@echo "No NVIDIA driver here. Should torch bring gigabytes of CUDA: stop, and see TORCH_INDEX in docs/learners.md."
endif
	$(PHASE) "installing JupyterLab, torch, MPI, NIXL and NVRTC (390 MB to download, the first time)" $(INSTALL) --editable '.[lab,mpi,$(NIXL)$(if $(CUDA),$(comma)$(CUDA))]'
	$(PHASE) "compiling Python's bytecode" $(BYTECODE)
	@touch "$@"

# Without a GPU's packages the tests take CuPy and NVRTC alone, to compile every kernel for GPUs that are not there.
$(TEST_INSTALLED): $(CORE_INSTALLED) pyproject.toml $(PINS) | check-machine
	$(PHASE) "installing the workshop and what tests it (500 MB to download, the first time)" $(INSTALL) --editable '.[lab,mpi,$(NIXL),site,test,$(or $(CUDA),nvrtc)]'
	@touch "$@"

$(SITE_INSTALLED): $(LAB_INSTALLED)
	$(INSTALL) --editable '.[lab,site]'
	@touch "$@"

# Collecting the tests imports what they need, torch included, and leaves the bytecode of that alone: a quarter of all that
# is installed. What is wrong with a test, the run after it says.
$(TEST_BYTECODE): $(TEST_INSTALLED)
	@"$(PY)" -m compileall -qq ep_lib
	@"$(PY)" -m pytest --collect-only -q > /dev/null 2>&1 || true
	@touch "$@"

clean:  ## remove what the tools left; the environment and compiled kernels stay
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean  ## remove the environment as well
	rm -rf "$(VENV)"
