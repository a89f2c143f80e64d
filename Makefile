# Everything happens inside .venv; `make train` and `make test` are all a newcomer needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CODE := src tests examples scripts benchmarks
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help install dev train test check format torture schema pages bench bench-quick clean

help:
	@echo "make train     install AxiomRL into .venv and solve CartPole with PPO"
	@echo "make test      install the development extras and run the whole test suite"
	@echo "make check     format, lint, types and import layers"
	@echo "make pages     write the generated files anew: config keys, algorithms, tables of results, type stubs"
	@echo "make bench     speed beside other libraries, each in a virtual environment under .bench (hours)"
	@echo "make bench-quick  the same against Stable-Baselines3 alone, in a few minutes"
	@echo "make torture   kill-and-resume tests and fuzzed files in full counts (about an hour)"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "AxiomRL needs Python 3.11 or newer; run: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv $(VENV)

# Stamps remember what was installed from which files, so that a second call is instant.
$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

install: $(VENV)/.installed

dev: $(VENV)/.installed-dev

train: install
	$(BIN)/axiomrl train

# One torch thread per worker: more would wait for each other.
test: dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup --cov --cov-report=term

check: dev
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: dev
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

schema: install
	$(BIN)/python scripts/make_config_schema.py

pages: dev schema
	$(BIN)/python scripts/make_results_table.py
	$(BIN)/python scripts/make_algorithm_pages.py
	$(BIN)/python scripts/make_agent_stubs.py

torture: dev
	$(BIN)/python -m pytest -m torture tests/faults tests/fuzz -v

# BENCH passes options on, e.g. make bench BENCH="--cases ppo-cartpole --rounds 3".
bench: dev
	$(BIN)/python -m benchmarks $(BENCH)

bench-quick: dev
	$(BIN)/python -m benchmarks --quick $(BENCH)

clean:
	rm -rf $(VENV) .bench .mypy_cache .ruff_cache .pytest_cache .import_linter_cache dist build
