# Each target installs what it needs. Paths are relative, so the clone's path may contain spaces.
# Limited to the features of make 3.81, which macOS has.

SHELL := /bin/sh
MAKEFLAGS += --no-builtin-rules --no-print-directory
.DEFAULT_GOAL := help

# Container images set it. Each of hundreds of Python processes would then compile its imports again: 1.5 s for pandas
# alone, and half of the tests' time.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
DEMO ?= jobs.demo
BENCH ?= bench
WORKERS ?= 4
# The environment for Spark: its Java, and the loopback address.
SPARK := home=$$($(BIN)/python tools/java_home.py --home) && JAVA_HOME="$$home" SPARK_LOCAL_IP=127.0.0.1
# For the short-lived JVMs of tests, which do not benefit from the optimising compiler and share two cores.
BRIEF := SPARK_SUBMIT_OPTS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC $$SPARK_SUBMIT_OPTS"
# Further arguments for the program that a target runs, e.g. make test ARGS='-k session -x'
ARGS ?=

.PHONY: help
help: ## List the targets
	@echo "Usage: make TARGET [PYTHON=python3.12] [ARGS='...']"
	@echo
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  %-14s %s\n", $$1, $$2 }' Makefile

.PHONY: demo
demo: .delta ## Show an outage: kill one of two namespaces, keep sending, deliver with Spark, count every message
	@echo "pairbus: running $(DEMO)"
	@$(SPARK) $(BIN)/python -m $(DEMO) $(ARGS)

.PHONY: notebook
notebook: .delta ## Run notebooks/after_the_outage.ipynb on the demo's ledger, into build/demo
	@echo "pairbus: running the notebook (PAIRBUS_LEDGER=... for another ledger)"
	@mkdir -p build/demo
	@$(SPARK) $(BIN)/jupyter-execute --NbClientApp.log_level=ERROR --output=../build/demo/after_the_outage \
		notebooks/after_the_outage.ipynb
	@echo "pairbus: open build/demo/after_the_outage.ipynb, with VS Code or Jupyter"

.PHONY: demo-localbus
demo-localbus: .venv ## Show localbus with the Azure SDK: queues, sessions, topics, dead letters, faults, a kill
	@echo "pairbus: running jobs/demo_localbus.py"
	@$(BIN)/python jobs/demo_localbus.py $(ARGS)

.PHONY: test
test: lint .delta ## Lint, type check and run the tests
	@echo "pairbus: running the tests, $(WORKERS) files at a time (WORKERS=0: one at a time)"
	@$(SPARK) $(BRIEF) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

.PHONY: lint
lint: .venv ## Check style, format and types (ruff, mypy strict)
	@echo "pairbus: checking style (ruff) and types (mypy)"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . \
		|| { echo "pairbus: the files above are not formatted; run make fmt" >&2; exit 1; }
	@$(BIN)/mypy --no-error-summary

.PHONY: fmt
fmt: .venv ## Format the code and apply ruff's automatic fixes
	@echo "pairbus: formatting (ruff)"
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

.PHONY: fuzz
fuzz: .delta ## Run the long campaigns, and every property-based test with random input
	@echo "pairbus: running the long campaigns"
	@$(SPARK) PAIRBUS_HYPOTHESIS=random $(BIN)/python -m pytest -m "campaign or hypothesis" --timeout=7200 $(ARGS)

.PHONY: sdk-test
sdk-test: .venv ## Run localbus against Microsoft's SDKs for other languages
	@echo "pairbus: running the tests with other languages' SDKs"
	@$(BIN)/python -m pytest -m sdks --timeout=1800 tests/sdks $(ARGS)

# What pins private names of the SDKs; see src/pairbus/sending/sdk/__init__.py.
PINS := $(addprefix tests/integration/sending/test_,sdk.py silent_tls.py tracing.py credentials.py event_hub_producer.py) tests/unit/sending

.PHONY: sdk-next
sdk-next: .venv ## Run the tests that pin private names of Microsoft's SDKs on the newest of them, in build/sdk-next
	@echo "pairbus: installing the newest azure-servicebus and azure-eventhub into build/sdk-next"
	@rm -rf build/sdk-next && $(BIN)/python -m venv --without-pip build/sdk-next
	@$(BIN)/python -m pip --quiet --python build/sdk-next/bin/python install azure-servicebus azure-eventhub
	@build/sdk-next/bin/python tools/sdk_next.py "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
	@echo "pairbus: running the tests that pin private names"
	@build/sdk-next/bin/python -m pytest $(PINS) $(ARGS)

.PHONY: cluster-test
cluster-test: .delta ## Run the syphon on a Spark cluster of two workers and kill its processes (Linux)
	@echo "pairbus: running the tests on a cluster (some minutes)"
	@$(SPARK) $(BIN)/python -m pytest -s -m cluster --timeout=1800 tests/cluster $(ARGS)

.PHONY: bench
bench: .delta ## Measure everything (ARGS=--quick: a short run), or one part (BENCH=bench.sender)
	@echo "pairbus: running $(BENCH)"
	@$(SPARK) $(BIN)/python -m $(BENCH) $(ARGS)

.PHONY: wheelhouse
wheelhouse: .venv ## Build the wheels that a Databricks cluster lacks into build/wheelhouse
	@echo "pairbus: filling build/wheelhouse"
	@$(BIN)/python tools/wheelhouse.py $(ARGS)

.PHONY: environment
environment: .venv ## Pack the Python environment of a Spark cluster's executors into build/environment.tar.gz
	@echo "pairbus: packing build/environment.tar.gz"
	@$(BIN)/python tools/environment_archive.py $(ARGS)

.PHONY: java
java: .venv ## Show which Java (17 or newer) Spark will use; install one into .venv if there is none
	@echo "pairbus: looking for Java"
	@$(BIN)/python tools/java_home.py $(ARGS)

.PHONY: install
install: .venv ## Set up .venv with the pinned dependencies (the other targets do this when needed)
	@echo "pairbus: .venv is ready"

# Runs before every target; takes a few hundredths of a second if .venv is up to date.
.PHONY: .venv
.venv:
	@python=$$(tools/find-python) && "$$python" tools/make_venv.py

# Delta's jars for Spark, downloaded once into .venv.
.PHONY: .delta
.delta: .venv
	@$(SPARK) $(BIN)/python tools/delta_jars.py

.PHONY: clean
clean: ## Remove everything that make created, including .venv
	@echo "pairbus: removing .venv, caches and build results"
	@rm -rf .venv .venv-unfinished dist build .hypothesis .mypy_cache .pytest_cache .ruff_cache tests/sdks/.build
	@rm -rf spark-warehouse notebooks/spark-warehouse metastore_db derby.log
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
