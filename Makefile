# Two commands do all the set-up: `make serve` and `make test`.
PYTHON ?= python3
PORT ?= 8000
ARGS ?=
SEED ?= 1
VENV := .venv
BIN := $(VENV)/bin
# a file at a time, in the order of tests/conftest.py: what takes longest does not come last
TWO := -n 2 --dist loadfile --no-loadscope-reorder

# images often set it; each start of a server would compile five hundred modules again
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help serve test test-fast test-slow test-attach test-clients test-fleet lint types contracts unit sim sim-disaggregated bench fuzz docs site prometheus format clean

help: ## Show this help
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

serve: $(VENV)/.core ## Install, fetch the default model, serve it (PORT=8000 ARGS=...)
	@exec $(BIN)/phasescope serve --port $(PORT) $(ARGS)

test: $(VENV)/.dev ## Install, lint, type-check, check imports and docs, run the tests
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory -j2 unit types contracts site

lint: $(VENV)/.dev ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev ## mypy, strict
	$(BIN)/mypy

contracts: $(VENV)/.dev ## Allowed imports between packages
	$(BIN)/lint-imports

test-fast: $(VENV)/.dev ## The tests that start no server and compute little, in under two minutes
	$(BIN)/python -m pytest $(TWO) -m "not server and not long"

unit: $(VENV)/.dev ## pytest, a file at a time in each of two processes; what fails is run once more, alone
	$(BIN)/python -m pytest $(TWO) -m "not slow" || { [ $$? -eq 1 ] && \
	echo "Run again, alone. A test that passes now has raced with the load of the machine: mend it." && \
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none; }

test-slow: $(VENV)/.dev ## What `make test` leaves out: its slowest tests, and most examples of its property tests
	PHASESCOPE_ALL_EXAMPLES=1 $(BIN)/python -m pytest $(TWO) -m "slow or sampled"

sim: $(VENV)/.core ## 10,000 simulated scenarios with every fault, invariants checked at each step
	$(BIN)/phasescope drill --sim chaos --count 10000

sim-disaggregated: $(VENV)/.core ## 10,000 simulated worlds of prefill and decode apart, a fault in every state
	$(BIN)/python -m benchmarks.disaggregated.simulated --count 10000

bench: $(VENV)/.dev ## Measure the server on this machine (see benchmarks/README.md)
	$(BIN)/python -m benchmarks.serving

fuzz: $(VENV)/.dev ## 2,000 generated requests against a real server, nothing may break (SEED=1)
	$(BIN)/python -m benchmarks.fuzz.api --cases 2000 --seed $(SEED)
	$(BIN)/python -m benchmarks.fuzz.http --cases 2000

test-attach: $(VENV)/.dev ## Contract tests against the newest two vLLMs and SGLangs, in environments made on demand
	$(BIN)/python -m tests_engines
	$(BIN)/python -m pytest tests_engines/on_sglang

test-clients: $(VENV)/.dev ## Contract tests with clients and routers of others, in environments made on demand
	$(BIN)/python -m pytest -c tests_clients/pytest.ini --rootdir . tests_clients

test-fleet: $(VENV)/.dev ## A fleet on a real Ray Serve, in an environment made on demand
	$(BIN)/python -m pytest -c tests_fleet/pytest.ini --rootdir . tests_fleet

docs: $(VENV)/.dev ## Write the generated references and build the site in build/site
	$(BIN)/python -m docs.generate
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

site: $(VENV)/.dev ## Build the site; no link may lead nowhere
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

prometheus: ## Install Debian's Prometheus and Alertmanager, which some tests want (needs root)
	@command -v promtool >/dev/null && command -v amtool >/dev/null || { apt-get update -qq && \
		apt-get install -y -qq --no-install-recommends prometheus prometheus-alertmanager; }

format: $(VENV)/.dev ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove the environment and all caches (fetched models stay)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build/site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch first and alone: with it in place at the pinned version nothing asks for another build
$(VENV)/.core: pyproject.toml constraints.txt
	@echo "== Python environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=python3.x")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[serve]'
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	@touch $@
