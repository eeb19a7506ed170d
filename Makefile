# Everything runs in .venv, which the first target that needs it makes.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || echo python3)
VENV   := .venv
BIN    := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -n 2
# The oldest Triton that the kernels have to compile with: that of torch 2.11.
TRITON_OLDEST := build/triton-3.6.0

.PHONY: help demo test test-chaos test-compose lint audit bench clean

help:            ## List the targets
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/: .*##/:/' | column -ts:

$(VENV)/ready: pyproject.toml constraints.txt
	@echo "setting up $(VENV) with $(PYTHON) (a minute or two, once)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(VENV)/ready  ## Start both services, stream an answer, kill and replace the executor in the middle of it
	@$(BIN)/baton demo

test: $(VENV)/ready  ## Unit, fuzz and end-to-end tests (no GPU needed)
	$(PYTEST)

$(TRITON_OLDEST): $(VENV)/ready
	rm -rf $@.part
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $@.part triton==3.6.0
	mv $@.part $@

test-chaos: $(VENV)/ready $(TRITON_OLDEST)  ## Long runs that kill processes, a longer fuzz, and kernels by an older Triton
	$(BIN)/python -m pytest -m chaos --timeout=1500
	BATON_FUZZ=3000x60 $(BIN)/python -m pytest tests/scheduler/test_fuzz.py --timeout=1800
	PYTHONPATH=$(TRITON_OLDEST) $(PYTEST) tests/kernels/gpu/test_compile.py --timeout=900

test-compose: $(VENV)/ready  ## Bring compose.yaml up for real, kill the executor, take it down (needs a Docker engine)
	$(BIN)/python -m pytest -m compose --timeout=1800

lint: $(VENV)/ready  ## ruff and mypy over the whole tree
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

audit:           ## Look our pinned packages up in PyPI's vulnerability database (needs the internet)
	$(PYTHON) -m venv $(VENV)-audit && $(VENV)-audit/bin/pip install --quiet pip-audit==2.10.1
	$(VENV)-audit/bin/pip-audit --strict --disable-pip --no-deps --requirement constraints.txt

bench: $(VENV)/ready  ## The client's benchmark against both services on this machine
	$(BIN)/python benchmarks/bench_service.py

clean:           ## Remove the environment and caches
	rm -rf $(VENV) $(VENV)-audit .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info build
