# `make help` lists the targets: the text behind each `##`.
BIN := .venv/bin
PYTHON ?= python3
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-deep conformance lint bench soak mutations clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Make .venv with all packages and fetch the jars (PYTHON=python3 names the interpreter)
	@PYTHON="$(PYTHON)" tools/setup.sh

demo: setup ## Clicks become recommendations, live until Ctrl-C (ONCE=1: about a minute, then stop)
	@$(BIN)/penstock demo $(if $(ONCE),--once)

test: lint ## Run every check and the tests of every feature (PYTEST_ARGS="-k name" chooses tests)
	@tools/test.sh -m "not deep" $(PYTEST_ARGS)

test-deep: setup ## Run the tests that take long: the demo, the browser, things that are killed, every case of a rule
	@tools/browser.sh
	@tools/test.sh -m deep $(PYTEST_ARGS)

conformance: setup ## Run dbt's public adapter tests and write docs/conformance.md (about half an hour)
	@mkdir -p target
	@$(BIN)/python -m pytest tests/conformance --ignore=tests/conformance/test_sample.py \
		--junitxml=target/conformance.xml $(PYTEST_ARGS); code=$$?; \
		$(BIN)/python tests/conformance/report.py target/conformance.xml > docs/conformance.md; exit $$code

lint: setup ## Run ruff, mypy and the contracts of the layers
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: setup ## Measure Penstock beside a hand-written PySpark job
	@$(BIN)/python -m bench

soak: setup ## Run streams for a long time while things are killed (MINUTES=60)
	@$(BIN)/python -m bench.soak --minutes $(or $(MINUTES),60)

mutations: setup ## Break every demo model in every way, and see that its stream tests notice
	@PENSTOCK_ALL_MUTATIONS=1 $(BIN)/python -m pytest -q tests/integration/test_mutations.py

clean: ## Remove what was built; the jars stay in the user's cache
	@rm -rf .venv target logs dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find src tests bench orchestration -name __pycache__ -type d -prune -exec rm -rf {} +
