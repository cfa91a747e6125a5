# Run `make` for the list of targets. Every target sets up what it needs.
#
# To use your own environment (another torch build, conda, ...) and keep its versions:
#     make test VENV=$CONDA_PREFIX CONSTRAINTS=
# The same setup without make:
#     python3 -m venv .venv && .venv/bin/pip install -c constraints.txt -e '.[dev]'
# pip reads its usual settings: on Linux, set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU wheels
# (see .github/workflows/test.yml) to install torch without CUDA.

PYTHON      ?= python3
VENV        ?= .venv
CONSTRAINTS ?= constraints.txt
WORKERS     ?= auto
ARGS        ?=
NANOGPT     ?=
REPOSITORY  ?=
SOLUTIONS   ?=

BIN   := $(VENV)/bin
STAMP := $(VENV)/.attnlab-installed

# With one thread per process, many small tests and models do not compete for the cores.
ONE_THREAD = OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1}
PYTEST = $(ONE_THREAD) $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 --dist worksteal

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## show this list
	@awk 'BEGIN {FS = ":.*## "; print "make TARGET [ARGS=\"...\"] [PYTHON=python3.12] [VENV=directory]\n"} \
	    /^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

# Reinstall if the environment belongs to another checkout, or if this directory was moved.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif

.PHONY: setup
setup: $(STAMP) ## create .venv and install attnlab with the versions of constraints.txt

$(STAMP): pyproject.toml $(CONSTRAINTS)
	@py=$(PYTHON); if [ -x $(BIN)/python ]; then py=$(BIN)/python; fi; \
	command -v "$$py" >/dev/null || \
	    { echo "attnlab: '$$py' was not found; choose a Python 3.10 to 3.13 with make setup PYTHON=/path/to/python"; exit 1; }; \
	"$$py" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || \
	    { echo "attnlab: needs Python 3.10 to 3.13, but '$$py' is $$("$$py" -V 2>&1); choose another with make setup PYTHON=python3.12 (and VENV=directory if $(VENV) exists)"; exit 1; }
	@echo "attnlab: installing into $(VENV) (once; a minute or two, most of it for torch)"
	@[ -x $(BIN)/python ] || { $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet --upgrade pip; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null
	@$(BIN)/python -m pip install --quiet $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) -e '.[dev]'
	@echo '$(CURDIR)' > $@
	@echo "attnlab: ready ($$($(BIN)/python -V), torch $$($(BIN)/python -c 'from importlib.metadata import version; print(version("torch"))'))"

.PHONY: train
train: setup ## train the default model, or another one: ARGS="attn=unscaled seed=1"
	@$(BIN)/python train.py $(ARGS)

.PHONY: test
test: setup ## run the tests except the long ones; one file: ARGS=tests/test_model.py
	$(PYTEST) -m "not long" $(ARGS)

.PHONY: test-fast
test-fast: setup ## run the tests except the slow and the long ones
	$(PYTEST) -m "not slow and not long" $(ARGS)

.PHONY: test-all
test-all: setup ## run all tests, including the long ones
	$(PYTEST) --hypothesis-profile=search $(ARGS)

.PHONY: test-cluster
test-cluster: setup ## start a Slurm on this machine and test sweeps and requeued jobs on it; needs root and slurm-wlm, munge
	@if [ "$$(id -u)" != 0 ] || ! command -v slurmctld munged >/dev/null; then \
	    echo "attnlab: not run; it needs root and: apt-get install --no-install-recommends slurm-wlm munge"; \
	else OMP_NUM_THREADS=1 bash tests/cluster/slurm.sh run $(BIN)/python -m pytest -v tests/cluster $(ARGS); fi

.PHONY: lint
lint: setup ## check style, types, and imports (ruff, mypy, import-linter) without changing files
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy src train.py
	@if [ -x $(BIN)/lint-imports ]; then $(BIN)/lint-imports --no-logo; \
	else echo "attnlab: imports are not checked; import-linter needs Python 3.11"; fi

.PHONY: format
format: setup ## format the code and apply ruff's fixes
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

.PHONY: board
board: setup ## show all runs in TensorBoard
	$(BIN)/python -m tensorboard.main --logdir outputs $(ARGS)

.PHONY: reproduce
reproduce: setup ## reproduce the claims and print their verdicts; options: ARGS=--help
	@$(BIN)/python -m attnlab reproduce $(ARGS)

.PHONY: bench
bench: setup ## measure speed and memory (about an hour); NANOGPT=checkout compares with nanoGPT
	@set -e; for f in step startup shares attention sampling sweeps scale; do \
	    echo "benchmarks/$$f.py"; NANOGPT=$(NANOGPT) $(BIN)/python benchmarks/$$f.py >/dev/null; done
	@echo "benchmarks/fast.py"; NANOGPT=$(NANOGPT) $(BIN)/python benchmarks/fast.py --ablation >/dev/null
	@$(BIN)/python benchmarks/results.py

.PHONY: bench-gpu
bench-gpu: setup ## measure training on a GPU (less than 8 minutes)
	@NANOGPT=$(NANOGPT) $(BIN)/python benchmarks/gpu.py
	@$(BIN)/python benchmarks/results.py

.PHONY: docs
docs: setup ## build the site in build/site/html: chapters, guides, claims, API; offline
	@$(ONE_THREAD) ATTNLAB_REPOSITORY="$(REPOSITORY)" $(BIN)/python docs/build.py $(ARGS)

.PHONY: notebooks
notebooks: setup ## write the executed course notebooks and a wheel to build/notebooks; SOLUTIONS=1 adds solutions, REPOSITORY=OWNER/attnlab links to it
	@rm -rf build/notebooks
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation -w build/notebooks .
	@$(ONE_THREAD) ATTNLAB_REPOSITORY="$(REPOSITORY)" $(BIN)/python docs/notebooks.py build/notebooks $(if $(SOLUTIONS),--solutions)

.PHONY: slides
slides: setup ## write the slides of a class of two hours to build/slides.html
	@$(ONE_THREAD) $(BIN)/python docs/slides.py build/slides.html

.PHONY: offline
offline: setup ## write wheels of attnlab and of all it needs to build/offline, for machines without network
	@$(BIN)/python -m pip wheel --quiet $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) -w build/offline $(ARGS) .
	@echo "attnlab: on a machine with the same system and Python: pip install --no-index --find-links build/offline attnlab"

.PHONY: clean
clean: ## remove caches and builds; keeps outputs/ and the environment
	rm -rf build dist .import_linter_cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests experiments benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
