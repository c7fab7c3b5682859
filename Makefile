# `make demo` and `make test` need Python 3.10 or newer, make, and a network the first time.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# A worker process per physical core, up to four. All tests of a file share a worker and its fixtures.
PARALLEL := -n auto --maxprocesses 4 --dist loadfile

.PHONY: help demo federation-demo private-demo test live slow ci check format wheel clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

demo: $(VENV)/.run ## Two silos, one generator, a report: under two minutes
	$(BIN)/silosynth demo

federation-demo: $(VENV)/.federation ## A coordinator and three silos on one machine, an officer, certificates: under five minutes
	$(BIN)/python examples/federation_demo.py

private-demo: $(VENV)/.federation ## The same where silos let nothing leave without noise: epsilon 1 in all
	$(BIN)/python examples/federation_demo.py --private

test: $(VENV)/.dev ## Quick tests: one process each, no sockets
	$(BIN)/python -m pytest $(PARALLEL)

live: $(VENV)/.dev ## Tests with real processes, sockets, databases, browsers and kills
	$(BIN)/python -m pytest $(PARALLEL) -m "live and not slow"

slow: $(VENV)/.dev ## Tests that take minutes, live or not
	$(BIN)/python -m pytest -m slow --timeout 1800

ci: $(VENV)/.dev ## Quick and live tests in one go, as .ci/run has them
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow"

check: $(VENV)/.dev ## Style, types, and which folder may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev ## Rewrite the sources in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(VENV)/.run ## Build dist/*.whl
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

clean: ## Remove the virtual environment and all caches
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# Both stamps share one environment; the install is editable, so only a changed list of packages runs pip again.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "silosynth needs Python 3.10 or newer, not " + sys.version.split()[0] + ": make PYTHON=python3.11 …")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.federation: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) --editable '.[flare,psi]'
	@touch $@ $(VENV)/.run

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.run $(VENV)/.federation
