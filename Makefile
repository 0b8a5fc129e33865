# make demo | test | bench | docs: each makes .venv first if it is not there
# Tests on real data run where COTERIE_DATA names the folder with the prepared files, and are skipped elsewhere.
PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt

# the tests start some hundred processes, and each would compile the package again
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint unit deploy bench docs clean

demo: $(VENV)/installed
	$(VENV)/bin/coterie demo

# side by side: the tests of real processes spend most of their time waiting, and must not share a process that forks
test: $(VENV)/installed-dev
	$(MAKE) --no-print-directory --jobs 3 deploy unit lint

lint: $(VENV)/installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache --no-logo

unit: $(VENV)/installed-dev
	$(VENV)/bin/pytest --no-loadscope-reorder --ignore tests/deploy

deploy: $(VENV)/installed-dev
	$(VENV)/bin/pytest tests/deploy

docs: $(VENV)/installed-dev
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

bench: $(VENV)/installed-dev
	$(VENV)/bin/python -m benchmarks

$(VENV)/installed: pyproject.toml constraints.txt setup.py src/coterie/kernel/build.py $(wildcard src/coterie/kernel/*.cpp src/coterie/kernel/*.hpp)
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch setuptools wheel
	$(PIP) --no-build-isolation --editable .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) --no-build-isolation --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist runs site src/*.egg-info
