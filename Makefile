# make demo   the built-in sample, from nothing: made up, prepared, described
# make test   style, types, tests
# Both create .venv and install what they need first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Every package, build tools included, comes in the version that constraints.txt names.
PIP := PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: demo test clean

demo: $(VENV)/.demo
	$(BIN)/lrurec data synth --preset sample --out demo/events.csv --names demo/names.csv
	$(BIN)/lrurec prepare demo/events.csv --item-names demo/names.csv --out demo/dataset
	$(BIN)/lrurec data describe demo/dataset

test: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest $(PYTEST)

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) --editable .
	touch $@

$(VENV)/.test: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[train,test]'
	touch $(VENV)/.demo $@

clean:
	rm -rf $(VENV) demo
