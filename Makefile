# Two commands do everything from a fresh clone: `make run` and `make test`.
# Each makes its own virtual environment when none is there. Needed: Python 3.11 or newer, make, a C compiler.

PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= engine,dev
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Of the tests, what a plain `pytest` runs too; in three processes, for much of it waits. OMP: a core a process.
TESTS := not slow and not gpu and not models and not latency and not shared
TOGETHER := -n 3 --dist worksteal
# Compiled once, though the machine may say not to keep what is compiled: the tests start llmbench hundreds of times.
test: export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help run test lint type check format install clean

help:  ## what there is to make
	@sed -n 's/^\([a-z]*\):.*  ## /  make \1|/p' Makefile | column -t -s '|'

run: $(INSTALLED)  ## replay scenarios/quickstart.yaml against the bundled engine and print the summary
	$(BIN)/llmbench run scenarios/quickstart.yaml

test: $(INSTALLED)  ## the default tests (not the slow ones, nor those that need a GPU or a download)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(TOGETHER) -m "$(TESTS) and not alone"
	$(BIN)/python -m pytest -m "$(TESTS) and alone"

lint: $(INSTALLED)  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: $(INSTALLED)  ## mypy --strict
	$(BIN)/mypy

check: lint type test  ## all three

format: $(INSTALLED)  ## lay the code out
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

install: $(INSTALLED)  ## only set up

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "llmbench needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Choose one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "$(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2; \
	  rm -rf $(VENV); exit 1; }

$(INSTALLED): $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

clean:  ## remove the virtual environment and the caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
