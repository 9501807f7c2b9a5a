# Two commands do everything on a fresh Debian 12 or 13: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: build demo test test-fast lint format peers clean sanitize

build: $(STAMP)

# Packages are looked for first, so that a machine that has them needs no root.
$(STAMP): pyproject.toml tools/setup-build meson.build
	tools/setup-build
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --group dev
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip install --quiet --no-build-isolation \
	  -Cbuild-dir=build/release --editable .
	touch $@

peers:
	tools/setup-peers

demo: build peers
	$(BIN)/vringd demo

test: build peers
	$(BIN)/python -m pytest tests

test-fast: build
	$(BIN)/python -m pytest tests/unit tests/protocol

lint: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cython-lint src
	$(BIN)/mypy

format: build
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

sanitize: build
	tools/test-sanitizers

clean:
	rm -rf build .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
