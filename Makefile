# make demo   the built-in sample, from nothing: made up, prepared, trained on, recommended from, served
#             (make demo SERVE=0 stops before that)
# make test   style, types, tests
# Both create .venv and install what they need first.

PYTHON ?= python3
SERVE ?= 1
PORT ?= 8000
VENV := .venv
BIN := $(VENV)/bin
# Every package, build tools included, comes in the version that constraints.txt names.
PIP := PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: demo test clean

demo: $(VENV)/.demo
	$(BIN)/lrurec data synth --preset sample --out demo/events.csv --names demo/names.csv
	$(BIN)/lrurec prepare demo/events.csv --item-names demo/names.csv --out demo/dataset
	$(BIN)/lrurec data describe demo/dataset
	rm -rf demo/run
	$(BIN)/lrurec train demo/dataset --out demo/run \
	  --set training.steps=300 --set training.validate_every=100 --set training.max_length=100
	$(BIN)/lrurec evaluate demo/run --baselines
	$(BIN)/lrurec recommend demo/run --user 1
	rm -rf demo/artifact demo/store
	$(BIN)/lrurec export demo/run --out demo/artifact
	$(BIN)/lrurec store import demo/store --artifact demo/artifact demo/dataset
	@if [ "$(SERVE)" = 0 ]; then echo "next      $(BIN)/lrurec serve demo/artifact --store demo/store"; \
	else exec $(BIN)/lrurec serve demo/artifact --store demo/store --port $(PORT); fi

# Threads that wait do not spin, as in `lrurec` itself: the other process wants the core.
test: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_WAIT_POLICY=PASSIVE $(BIN)/pytest --numprocesses 2 --dist loadfile $(PYTEST)

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[train,serve]'
	touch $@

$(VENV)/.test: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[train,reproduce,serve,test]'
	touch $(VENV)/.demo $@

clean:
	rm -rf $(VENV) demo
