# make demo | test | bench | docs: each makes .venv first if it is not there
PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt
SHARED_DATA := ../shared/data/prepare.py
export COTERIE_DATA ?= $(if $(wildcard $(SHARED_DATA)),$(CURDIR)/.data,)

.PHONY: demo test lint unit bench docs data clean

demo: $(VENV)/installed
	$(VENV)/bin/coterie demo

test: lint unit

lint: $(VENV)/installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

unit: $(VENV)/installed-dev data
	$(VENV)/bin/pytest --ignore tests/deploy
	$(VENV)/bin/pytest tests/deploy

docs: $(VENV)/installed-dev
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

bench: $(VENV)/installed-dev
	$(VENV)/bin/python -m benchmarks

# real data, where the folder with them is there; tests that need them are skipped elsewhere
data: $(VENV)/installed-dev
	@if [ -f $(SHARED_DATA) ] && [ ! -f .data/ready ]; then \
		$(VENV)/bin/python $(SHARED_DATA) .data && touch .data/ready; fi

$(VENV)/installed: pyproject.toml constraints.txt setup.py $(wildcard src/coterie/kernel/*.cpp src/coterie/kernel/*.hpp)
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch setuptools wheel
	$(PIP) --no-build-isolation --editable .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) --no-build-isolation --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist runs src/*.egg-info
