# Two commands do everything on a fresh Debian 12 or 13: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TOOLS := $(VENV)/.tools
STAMP := $(VENV)/.installed
SOURCES := $(shell find src tools -type f -not -path '*/__pycache__/*') \
  meson.build pyproject.toml README.md LICENSE

.PHONY: build demo test test-fast lint format peers clean sanitize

build: $(STAMP)

# Packages are looked for first, so that a machine that has them needs no root.
$(TOOLS): pyproject.toml tools/setup-build
	tools/setup-build
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --group dev
	touch $@

# Installed, not editable: tests start many processes, and each import of an editable package
# would start a build. Ninja keeps its state in build/release, so this takes seconds.
$(STAMP): $(TOOLS) $(SOURCES)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip install --quiet --no-build-isolation \
	  -Cbuild-dir=build/release .
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
	MYPYPATH=src $(BIN)/stubtest --ignore-disjoint-bases \
	  --allowlist tools/stubtest-allowlist.txt --ignore-unused-allowlist $$(cd src && find vringd -name '*.pyi' | sed 's|/|.|g; s|\.pyi$$||')

format: build
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

sanitize:
	tools/test-sanitizers

clean:
	rm -rf build .venv .venv-asan .venv-tsan .pytest_cache .mypy_cache .ruff_cache .hypothesis
