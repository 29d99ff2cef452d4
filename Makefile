# Every target makes the environment it needs, in one step, and uses it again.
PYTHON ?= python3
VENV := .venv
unexport PYTHONDONTWRITEBYTECODE  # a process that keeps nothing compiles all of cascade at each start
BIN := $(VENV)/bin
UNUSED := '/(tests?|testing|pip|setuptools|mypy|mypyc|networkx|proxy|_inductor|_dynamo|distributed|onnx|physics)/'
PIP := $(BIN)/pip --disable-pip-version-check install --quiet --quiet --constraint constraints.txt

.PHONY: demo test check long bench docs package clean

demo: $(VENV)/demo.done  ## sort a shop's mail with two real local models, and say what that saves (fetches 1.6 GB once)
	$(BIN)/cascade demo $(ARGS)

test: $(VENV)/dev.done $(VENV)/tiny.done  ## the test suite (fetches a 98 MB model the first time)
	$(BIN)/python -m pytest --numprocesses 4 --dist worksteal $(ARGS)

check: $(VENV)/dev.done  ## lint, format, types, import rules, sizes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/sizes.py

long: $(VENV)/dev.done $(VENV)/demo.done  ## the slow suites: the real pair of models, 100,000 requests to a server, 20,000 calibrations of each guarantee
	$(BIN)/cascade models pull qwen2.5-coder-0.5b qwen2.5-coder-1.5b
	$(BIN)/python -m pytest -m "slow or long" --timeout 1800 --numprocesses 2 --dist loadgroup $(ARGS)
	PROPERTY_EXAMPLES=100 $(BIN)/python -m pytest --numprocesses 2 tests/property

bench: $(VENV)/dev.done  ## the numbers of the README and the design pages
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/traces.py
	$(BIN)/python benchmarks/needed_questions.py
	$(BIN)/python benchmarks/drift.py --quick
	$(BIN)/python benchmarks/validity.py --calibrations 500
	$(BIN)/python benchmarks/demo_figure.py --splits 3 --out $(VENV)/demo-ladder.svg
	$(BIN)/python benchmarks/paper/tables.py --splits 2 --steps 300
	$(BIN)/python benchmarks/paper/literal.py --seeds 1 --steps 200

docs: $(VENV)/dev.done  ## the user documentation and the reference of the Python API as a site, in site/
	$(BIN)/mkdocs build --quiet --strict

package: $(VENV)/dev.done $(VENV)/tiny.done  ## what is published, in dist/: built, measured, installed from nothing and used
	$(BIN)/python tools/distributions.py
	$(BIN)/python tools/install_size.py
	$(BIN)/python tools/try_wheel.py --from-nothing

$(VENV)/bin/pip:
	@echo "Making an environment in $(VENV): some seconds."
	$(PYTHON) -m venv $(VENV)

# The sizes are those on the disk, the times those of 2 cores and a fast network (measured in November 2026).
$(VENV)/demo.done: pyproject.toml constraints.txt | $(VENV)/bin/pip
	@echo "Installing cascade with its local models and the reader of logs into $(VENV): 730 MB, 1 to 2 minutes. pip prints nothing meanwhile."
	$(PIP) --editable ".[local,logs]"
	@touch $@

$(VENV)/dev.done: pyproject.toml constraints.txt Makefile | $(VENV)/bin/pip
	@echo "Installing cascade with all that its tests need, torch among it, into $(VENV): 2.2 GB, some minutes. pip prints nothing meanwhile."
	$(PIP) --no-compile --editable ".[local,logs,sql,math,train,server,dev,docs]"
	@$(BIN)/python -m compileall -qq -j 0 -x $(UNUSED) $(VENV)/lib || true  # pip compiles on one core, and everything
	@touch $@

$(VENV)/tiny.done: $(VENV)/dev.done
	$(BIN)/cascade models pull smollm2-135m
	@touch $@

clean:
	rm -rf $(VENV) site build dist
