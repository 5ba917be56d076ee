# `make quickstart` and `make test` need nothing but a Python of at least 3.11: they set a virtual
# environment up in the checkout first, and do nothing about it while it is up to date.

VENV ?= .venv
RUNS ?= runs
# What `make test` runs, and `make test-colab` of the core.
FAST = not slow and not nightly and not hf
# Tests run in so many processes; a file stays in one.
JOBS ?= 2
PYTEST = -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations=10
PY = $(VENV)/bin/python
RUN = $(PY) -m looped_lm.main

# Byte code is made on first import; making it for every file here would double the time.
PIP = --quiet --no-compile --disable-pip-version-check

# What stock Colab has; see test-colab.
COLAB_VENV ?= .venv-colab
CORE_TESTS = $(addprefix tests/,attention models nn objectives optim reliability test_corruption.py \
  test_golden.py test_jobs.py test_visibility.py train/test_step.py train/test_checkpoint.py)
COLAB_PINS = jax==0.7.2 jaxlib==0.7.2 flax==0.11.2 optax==0.2.8 orbax-checkpoint==0.12.4 grain==0.2.18

# The first Python that is new enough and can make environments. PYTHON=... overrules the search.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python; do \
  "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
    >/dev/null 2>&1 && { echo "$$python"; break; }; done)
NO_PYTHON = No Python of at least 3.11 that can make environments was found. Install one \
  (with its venv module), or name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)

# What exported folders are read with, beside what the tests need. HF_PINS=transformers==4.51.3 with
# an HF_VENV of its own tests the oldest version served.
HF_VENV ?= .venv-hf
HF_PINS ?=
# Any torch will do. This one is without CUDA, so a tenth of the size, where pip finds it.
HF_TORCH ?= torch==2.13.0+cpu

.PHONY: help setup quickstart check format test test-slow test-nightly test-all fuzz golden smoke \
  test-colab test-hf clean

help: ## Lists the targets.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# A stamp is written last, so an interrupted installation is taken up again.
$(VENV)/.quickstart: pyproject.toml
	@test -x $(PY) || test -n "$(PYTHON)" || { echo "$(NO_PYTHON)" >&2; exit 1; }
	@test -x $(PY) || { echo "Making $(VENV) with $(PYTHON)"; "$(PYTHON)" -m venv $(VENV); }
	@echo "Installing looped-lm into $(VENV) (some minutes the first time)"
	@$(PY) -m pip install $(PIP) --editable '.[quickstart]'
	@touch $@

$(VENV)/.setup: $(VENV)/.quickstart
	@echo "Installing the tools for tests and checks into $(VENV)"
	@$(PY) -m pip install $(PIP) --editable '.[dev]'
	@touch $@

setup: $(VENV)/.setup ## Makes or updates the environment in .venv.

quickstart: $(VENV)/.quickstart ## Trains a small looped model on real English.
	$(RUN) --config=configs/quickstart.py --workdir=$(RUNS)/quickstart

check: setup ## Format, lint, types, import directions, shell scripts.
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/pyright --pythonpath $(PY)
	$(VENV)/bin/lint-imports --no-logo
	$(VENV)/bin/shellcheck -x .ci/run launch/*.sh benchmarks/*.sh

format: setup ## Formats and mends what can be mended.
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

test: setup ## The fast tests.
	$(PY) $(PYTEST) -m "$(FAST)"

test-slow: setup ## The slow tests.
	$(PY) $(PYTEST) -m "slow and not nightly and not hf"

test-nightly: setup ## The longest tests, and more of kinds that the others have one of.
	$(PY) $(PYTEST) -m "nightly and not hf"

test-all: setup ## All tests but those of test-hf.
	$(PY) $(PYTEST) -m "not hf"

fuzz: setup ## Corpora, checkpoints and configs at random: 500 cases of each, others every time.
	FUZZ_CASES=$${FUZZ_CASES:-500} $(PY) $(PYTEST) tests/reliability -k fuzz

golden: setup ## The numbers of the reference implementations.
	JAX_DISABLE_MOST_OPTIMIZATIONS=0 $(PY) -m pytest -q tests/test_golden.py

smoke: setup ## The tiny quickstart from raw text to report, through the command line.
	@set -eu; dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	$(RUN) --config=configs/quickstart.py:tiny --workdir="$$dir/run" \
	  --config.data.prepared_dir="$$dir/prepared"; \
	for file in metrics.jsonl report.html checkpoints; do \
	  test -s "$$dir/run/$$file" || { echo "smoke: $$file is missing" >&2; exit 1; }; done; \
	echo "smoke: ok"

$(COLAB_VENV)/.setup: pyproject.toml
	@test -x $(COLAB_VENV)/bin/python || test -n "$(PYTHON)" || { echo "$(NO_PYTHON)" >&2; exit 1; }
	@test -x $(COLAB_VENV)/bin/python || "$(PYTHON)" -m venv $(COLAB_VENV)
	@$(COLAB_VENV)/bin/python -m pip install $(PIP) --editable '.[test]' $(COLAB_PINS)
	@touch $@

# Colab's jax is the oldest we serve, so this is also the test of the lower bounds.
test-colab: $(COLAB_VENV)/.setup ## Core tests and the notebook with the jax and flax of Colab.
	$(COLAB_VENV)/bin/python $(PYTEST) -m "$(FAST) or notebook" $(CORE_TESTS) tests/colab

$(HF_VENV)/.setup: pyproject.toml
	@test -x $(HF_VENV)/bin/python || test -n "$(PYTHON)" || { echo "$(NO_PYTHON)" >&2; exit 1; }
	@test -x $(HF_VENV)/bin/python || "$(PYTHON)" -m venv $(HF_VENV)
	@$(HF_VENV)/bin/python -m pip install $(PIP) '$(HF_TORCH)' 2>/dev/null || \
	  echo "$(HF_TORCH) is not to be had; any torch is taken"
	@$(HF_VENV)/bin/python -m pip install $(PIP) --editable '.[test,hf]' $(HF_PINS)
	@touch $@

test-hf: $(HF_VENV)/.setup ## Exported folders read by transformers, with PyTorch.
	LOOPED_LM_FUSED_TESTS=1 $(HF_VENV)/bin/python $(PYTEST) -m hf tests/export tests/benchmarks

clean: ## Removes the environments and the tools' caches; leaves runs alone.
	rm -rf $(VENV) $(COLAB_VENV) $(HF_VENV) *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
