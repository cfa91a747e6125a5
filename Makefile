# Every target sets up what it needs, once. `make` lists the targets.
#
# Your own environment (another build of torch, conda):  make test VENV=$CONDA_PREFIX CONSTRAINTS=
# Without make:  python3 -m venv .venv && .venv/bin/pip install -c constraints.txt -e attncheck -e '.[dev]'
# torch without CUDA, 0.2 GB instead of 3:  export PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu

PYTHON      ?= python3
VENV        ?= .venv
CONSTRAINTS ?= constraints.txt
ARGS        ?=

BIN    := $(VENV)/bin
STAMP  := $(VENV)/.attnlab-installed
# OMP: as train.py sets it for itself, see src/attnlab/openmp.py
PYTEST = OMP_NUM_THREADS=1 GOMP_SPINCOUNT=$${GOMP_SPINCOUNT:-10000} $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

.PHONY: help setup train test test-all lint lab board notebooks docs bench bench-gpu
.DELETE_ON_ERROR:

help: ## show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' Makefile

setup: $(STAMP) ## create .venv with attnlab and the versions of constraints.txt; PYTHON=python3.12

$(STAMP): pyproject.toml attncheck/pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || \
	    { echo "attnlab needs Python 3.10 to 3.13: make setup PYTHON=/path/to/python3.12"; exit 1; }
	@echo "installing into $(VENV), once; some minutes, most of them for torch"
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) -e attncheck -e '.[dev]'
	@touch $@

train: setup ## train the default model, or another: ARGS="preset=micro attn=unscaled"
	@$(BIN)/python train.py $(ARGS)

test: setup ## run the tests, except the slow ones; one file: ARGS=tests/attention
	$(PYTEST) $(ARGS)

test-all: setup ## run all tests
	$(PYTEST) -m "slow or not slow" $(ARGS)

lint: setup ## check style, types and imports
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	@[ ! -x $(BIN)/lint-imports ] || $(BIN)/lint-imports --no-logo
	$(BIN)/python scripts/lint_style.py

lab: ## check and test the lab in a browser and the HTML pages; needs Node 20 or later
	cd lab && npm install --no-package-lock --no-audit --no-fund --silent
	cd lab && npm run --silent lint
	cd lab && npm test --silent

board: setup ## show all runs in TensorBoard; another port: ARGS="--port 6007"
	@$(BIN)/attnlab board outputs $(ARGS)

notebooks: setup ## write the course and exercises to build/notebooks; SOLUTIONS=1: for teachers
	$(BIN)/python scripts/notebooks.py build/notebooks $(if $(SOLUTIONS),--solutions)

docs: notebooks ## build the site in build/site; runs the chapters, 4 to 8 CPU minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W -E -q -j 2 -c docs . build/site $(ARGS)

bench: setup ## measure training on this machine
	$(BIN)/python benchmarks/bench.py $(ARGS)

bench-gpu: setup ## measure training on a GPU, 8 minutes
	$(BIN)/python benchmarks/gpu.py $(ARGS)
