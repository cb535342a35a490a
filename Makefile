# make demo and make test do all the set-up themselves.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
RUN_DIR ?= runs
WORKERS ?= 2

.PHONY: install demo test lint docs bench fuzz soak results benchmark clean
.DELETE_ON_ERROR:

install: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt setup.py $(wildcard native/*)
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "fedsgm needs Python 3.11 or newer; run make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(PIP) install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/.dev: .venv/.installed
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: .venv/.installed
	$(BIN)/fedsgm run neyman-pearson --rule hard --query all --seeds 3 --out $(RUN_DIR)/neyman-pearson-hard
	$(BIN)/fedsgm run neyman-pearson --rule soft --beta 100 --query all --seeds 3 --out $(RUN_DIR)/neyman-pearson-soft

test: .venv/.dev
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The site, in build/site: warnings are errors, and its links are checked.
.venv/.docs: .venv/.installed
	$(PIP) install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

docs: .venv/.docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/site
	$(BIN)/python docs/check_links.py build/site
	@echo "The site: build/site/index.html"

# Each prints ratios measured side by side; make bench QUICK=--quick takes fewer repetitions.
BENCHMARKS := neyman_pearson networks large_models peers scaling cartpole wire topk fit_speed unequal torch_loop offload compile_time federation flower private_adult robust secure watch

bench: .venv/.dev
	for name in $(BENCHMARKS); do echo "\n== $$name"; $(BIN)/python benchmarks/$$name.py $(QUICK) || exit 1; done

fuzz: .venv/.dev
	$(BIN)/python benchmarks/fuzz_wire.py
	$(BIN)/python benchmarks/fuzz_files.py $(QUICK)

# Thousands of rounds of a federation over FLARE, with 3 clients and with 10: hours on 2 cores.
soak: .venv/.dev
	$(BIN)/python benchmarks/soak.py

# The paper's figures and its table, all seeds: hours on 2 cores. What reproductions/ has is not run again.
results: .venv/.installed
	$(BIN)/fedsgm reproduce all --page docs/results.md

# Problems with natural clients x rivals tuned alike: an hour or more on 2 cores. What benchmarks-run/ has is not run again.
benchmark: .venv/.dev
	$(BIN)/fedsgm benchmark run all --resume --workers $(WORKERS) --out benchmarks-run
	$(BIN)/fedsgm benchmark report benchmarks-run --page docs/benchmark.md

clean:
	rm -rf .venv build dist src/*.egg-info src/fedsgm/base/_native*
