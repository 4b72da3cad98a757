# Two commands from a fresh clone: `make demo` and `make test`. Each makes its own virtual environment first.
#   PYTHON=python3.12   the interpreter to start from        VENV=folder   where the environment goes
#   JOBS=4              test files at a time (each may start engines)  ARGS=...  passed on to pytest or the demo
#   GPU=1               use the torch and vllm (CUDA) that PYTHON has, instead of the CPU engine
SHELL := /bin/bash
PYTHON ?= python3
GPU ?=
JOBS ?= $(if $(GPU),1,2)
VENV ?= $(if $(GPU),.venv-gpu,.venv)
RUN := $(VENV)/bin/python
PYTEST := $(RUN) -m pytest --numprocesses $(JOBS) --dist loadfile
ARGS ?=
# Packages are compiled when first imported (see scripts/bootstrap.py): keep the result.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv demo gate test test-all check lint types contracts links dist clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

venv:  ## the virtual environment alone
	@$(PYTHON) scripts/bootstrap.py --venv "$(VENV)" $(if $(GPU),--gpu)

demo: venv  ## the whole story on a tiny model, from a gap to exact zero (GPU=1 on a GPU machine)
	@$(VENV)/bin/samebits demo $(if $(GPU),--gpu) $(ARGS)

gate: venv  ## the fast regression gate on a tiny model on CPU; exits as the gate does
	@$(VENV)/bin/samebits gate --tiny qwen3 $(ARGS)

test: venv  ## every test that is not slow
	@$(PYTEST) -m "not slow" $(ARGS)

test-all: venv  ## the slow ones too
	@$(PYTEST) $(ARGS)

check: lint types contracts  ## style, strict types, import contracts, then the tests with warnings as errors
	@$(PYTEST) -m "not slow" $(ARGS)

lint: venv  ## ruff: rules and format
	@$(RUN) -m ruff check . && $(RUN) -m ruff format --check .

links: venv
	@$(RUN) scripts/links.py

types: links  ## mypy, strict
	@$(RUN) -m mypy

contracts: links  ## which folder may import which
	@$(RUN) scripts/contracts.py

dist: venv  ## wheel and sdist, the wheel tried in a fresh environment
	@$(RUN) scripts/dist.py

clean:  ## what was built and cached; the virtual environment stays
	@rm -rf build dist .links *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
