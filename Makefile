# Each target sets up what it needs. Paths are relative and so may be in a folder with spaces in its name.
# Kept to what make 3.81 knows, which is the one on macOS.

SHELL := /bin/sh
MAKEFLAGS += --no-builtin-rules --no-print-directory
.DEFAULT_GOAL := help

BIN := .venv/bin
DEMO ?= jobs/demo.py
BENCH ?= bench.localbus
# More arguments for the program that a target runs, e.g. make test ARGS='-k session -x'
ARGS ?=

.PHONY: help
help: ## List the targets
	@echo "Usage: make TARGET [PYTHON=python3.12] [ARGS='...']"
	@echo
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  %-10s %s\n", $$1, $$2 }' Makefile

.PHONY: demo
demo: .venv ## Start localbus, send and receive with the Azure SDK, print what happened
	@echo "pairbus: running $(DEMO)"
	@$(BIN)/python $(DEMO) $(ARGS)

.PHONY: test
test: lint ## Lint, type check and run the tests
	@echo "pairbus: running the tests"
	@$(BIN)/python -m pytest $(ARGS)

.PHONY: lint
lint: .venv ## Check style, format and types (ruff, mypy strict)
	@echo "pairbus: checking style (ruff) and types (mypy)"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "pairbus: the files above are not formatted; run make fmt" >&2; exit 1; }
	@$(BIN)/mypy --no-error-summary

.PHONY: fmt
fmt: .venv ## Format the code and cure what ruff can cure by itself
	@echo "pairbus: formatting (ruff)"
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

.PHONY: fuzz
fuzz: .venv ## Run the long campaigns (tests marked campaign)
	@echo "pairbus: running the long campaigns"
	@$(BIN)/python -m pytest -m campaign $(ARGS)

.PHONY: sdk-test
sdk-test: .venv ## Try localbus with Microsoft's SDKs for other languages
	@echo "pairbus: running the tests with other languages' SDKs"
	@$(BIN)/python -m pytest -m sdks tests/sdks $(ARGS)

.PHONY: bench
bench: .venv ## Measure localbus: messages a second, CPU and memory
	@echo "pairbus: running $(BENCH)"
	@$(BIN)/python -m $(BENCH) $(ARGS)

.PHONY: java
java: .venv ## Say which Java (17 or newer) Spark would use; set one up in .venv if there is none
	@echo "pairbus: looking for Java"
	@$(BIN)/python tools/java_home.py $(ARGS)

.PHONY: install
install: .venv ## Set up .venv with the pinned dependencies (the other targets do so by themselves)
	@echo "pairbus: .venv is ready"

# Always asked, never in the way: it answers in a few hundredths of a second when there is nothing to do.
.PHONY: .venv
.venv:
	@python=$$(tools/find-python) && "$$python" tools/make_venv.py

.PHONY: clean
clean: ## Remove everything that make made, .venv included
	@echo "pairbus: removing .venv, caches and build results"
	@rm -rf .venv .venv-unfinished dist build .hypothesis .mypy_cache .pytest_cache .ruff_cache tests/sdks/.build
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
