# Two commands matter: `make demo` shows what palmette does, `make test` shows that it works.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
ENGINES := adapters/palmette_qdrant adapters/palmette_postgres
ADAPTERS := adapters/langchain_palmette adapters/llama_index $(ENGINES)
SOURCES := pyproject.toml constraints.txt
MINUTES ?= 30
SEED ?= $(shell date +%s)

.PHONY: help demo smoke test test-all processors soak lint types docs bench results dist install fix clean

help:            ## show the targets
	@grep -hE '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "palmette needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(SOURCES) | $(BIN)/python
	$(PIP) install -q --no-compile --progress-bar on -c constraints.txt -e '.[demo]' $(ADAPTERS:%=-e %)
	@touch $@

$(VENV)/.dev: $(SOURCES) | $(BIN)/python
	$(PIP) install -q --no-compile --progress-bar on -c constraints.txt -e '.[dev]' $(ENGINES:%=-e %)
	@touch $@ $(VENV)/.demo

install: $(VENV)/.dev    ## make the environment, with everything pinned as in CI

demo: $(VENV)/.demo      ## train, index and ask: this Python's own documentation (5 min, then under 1)
	$(BIN)/palmette demo

smoke: $(VENV)/.dev      ## every method once, in both frameworks
	PYTHONPATH=tests $(BIN)/python tests/smoke.py

test: $(VENV)/.dev       ## run every test
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

test-all: $(VENV)/.dev   ## every test; thousands of kills, damages and failing calls (hours)
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m ''

processors: $(VENV)/.dev ## the record and the equations as other processors, and other numbers of threads, round
	@for rounding in "ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=1" "ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=2" \
	"ATEN_CPU_CAPABILITY=avx2 OMP_NUM_THREADS=1" "ATEN_CPU_CAPABILITY=avx2 OMP_NUM_THREADS=2" \
	"ATEN_CPU_CAPABILITY=default OPENBLAS_CORETYPE=Prescott NUMBA_CPU_NAME=generic MKL_CBWR=COMPATIBLE"; do echo "$$rounding"; \
	env $$rounding $(BIN)/python -m pytest -q -n auto --dist loadfile tests/regression tests/methods tests/docs/test_formulas.py || exit 1; done

soak: $(VENV)/.dev       ## random histories of an index for MINUTES=30, on seeds it prints (SEED=N repeats one)
	@end=$$(($$(date +%s) + 60 * $(MINUTES))); seed=$(SEED); while [ $$(date +%s) -lt $$end ]; do echo "seed $$seed"; \
	$(BIN)/python -m pytest -q -x -m exhaustive --hypothesis-seed=$$seed tests/fuzz/test_machine.py || exit 1; \
	seed=$$((seed + 1)); done

lint: $(VENV)/.dev       ## style and import directions
	$(BIN)/ruff check plugin adapters tests benchmarks notebooks docs
	$(BIN)/ruff format --check plugin adapters tests benchmarks notebooks docs
	$(BIN)/lint-imports

types: $(VENV)/.dev      ## mypy, strict
	$(BIN)/mypy -p palmette -p langchain_palmette -p llama_index.retrievers.palmette -p palmette_qdrant -p palmette_postgres

docs: $(VENV)/.dev       ## build the site into site/, every warning an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/.dev      ## what is measured, not asserted
	rm -rf build/bench
	$(BIN)/python benchmarks/serving.py --out build/bench/speed.md

results: $(VENV)/.dev    ## every measured figure again (PALMETTE_DATA=FOLDER, a day; QUICK=1: ten minutes)
	$(BIN)/python benchmarks/run.py

dist: $(VENV)/.dev       ## wheels and source archives of the four distributions, into dist/
	rm -rf dist
	for folder in . $(ADAPTERS); do (cd $$folder && $(abspath $(BIN))/python -m hatchling build -d $(CURDIR)/dist) || exit 1; done

fix: $(VENV)/.dev        ## let the formatter and linter mend what they can
	$(BIN)/ruff format plugin adapters tests benchmarks notebooks docs
	$(BIN)/ruff check --fix plugin adapters tests benchmarks notebooks docs

clean:           ## remove the environment and caches (never your indexes)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
