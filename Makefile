# In a fresh clone, make demo installs everything and trains a model; make test installs everything and runs the tests.
PYTHON ?= python3
BIN := .venv/bin
ifneq ($(wildcard ../shared/data),)
export TRELLIS_DATA ?= $(abspath ../shared/data)
endif
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# TORCH_INDEX: a package index with CPU builds of torch, which is then installed from there first (see README, Install)
TORCH = $(if $(TORCH_INDEX),$(BIN)/python -m pip install --quiet --constraint constraints.txt --index-url $(TORCH_INDEX) torch)

.PHONY: help demo bundled test lint docs wheel fuzz bench mutants clean

help:
	@sed -n '1p' Makefile; echo "also: make lint, make docs (the site), make wheel, make bench, make fuzz SECONDS=600 SEED=1, make mutants (do the tests notice small bugs?), make bundled (the model called demo), make clean"; \
	echo "make demo TORCH_INDEX=URL installs torch from that package index: a CPU build needs 3 GB less"

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	$(TORCH)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	@touch $@

.venv/developed: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,explore,guidance,parquet,widget]"
	@touch $@

.venv/documented: .venv/developed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,docs]"
	@touch $@

.venv/peers: .venv/developed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,explore,guidance,parquet,peers,widget]"
	@touch $@

demo: .venv/installed
	@rm -rf runs/demo
	$(BIN)/trellis train examples/demo.toml --run runs/demo
	$(BIN)/python examples/demo.py runs/demo

bundled: .venv/installed
	@rm -rf runs/bundled
	$(BIN)/trellis train examples/bundled.toml --run runs/bundled --quiet
	$(BIN)/python -c "import trellis; trellis.load('runs/bundled').save('src/trellis/models/demo.safetensors', half=True)"

lint: .venv/developed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# the tests include doctests, the examples of the pages and the short tutorials; make docs runs all tutorials
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile
	OMP_NUM_THREADS=1 $(BIN)/python -m fuzz all --seconds 45

# the site, with every tutorial: docs/_build/html/index.html. Warnings, broken links and unreachable pages are errors.
docs: .venv/documented
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -b html -W --keep-going docs docs/_build/html
	$(BIN)/python docs/check.py docs/_build/html

# the wheel and the source distribution, which the test installs and tries in an environment without optional packages
wheel: .venv/developed
	rm -rf build dist
	$(BIN)/python -c "from setuptools import build_meta; build_meta.build_sdist('dist')" > /dev/null
	$(BIN)/python -c "from setuptools import build_meta; build_meta.build_wheel('dist')" > /dev/null
	$(BIN)/python -m pytest tests/test_packaging.py

# SECONDS of random input, shared by all targets (see docs/stability.md)
SECONDS ?= 600
SEED ?= 0
fuzz: .venv/developed
	OMP_NUM_THREADS=1 $(BIN)/python -m fuzz all --seconds $(SECONDS) --seed $(SEED)

mutants: .venv/developed
	$(BIN)/python -m mutants

bench: .venv/peers
	$(BIN)/python -m benchmarks all

clean:
	rm -rf .venv runs build dist docs/_build docs/tutorials docs/reference/generated .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
