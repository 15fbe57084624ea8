# Tutti. Each target sets up what it needs, ends with one line of figures and is non-zero when something fell short.
# PYSPARK=4.3.0 on any of them works in an environment of its own beside .venv. PYTHON=... chooses the interpreter.
SHELL := bash
PYSPARK ?= 4.2.0
MINUTES ?= 10
SECONDS ?= 60
SEED ?= 1
JOBS ?= 2
VENV := $(if $(filter 4.2.0,$(PYSPARK)),.venv,.venv-pyspark-$(PYSPARK))
READY := $(VENV)/.ready
RUN := $(VENV)/bin
CLASSES := $(VENV)/spark-classes.jsa
# tests/conftest.py marks the tests of these folders as fast, but those with a marker for slow or real things.
FAST := $(addprefix tests/,architecture unit property transcripts sim)
# Tests of the log sync some hundred thousand times; in memory no disk sets their pace. A container has 64 MB there.
MEMORY = $(shell [ "$$(df --output=avail -BG /dev/shm 2>/dev/null | tail -n 1 | tr -dc 0-9)" -ge 4 ] 2>/dev/null && echo /dev/shm)
SOURCES := find . -name '*.py' -not -path './.*'
RELEASE := check docs wheels test mutants sim soak spark-soak connect-soak
# Container images often set it. Without bytecode every worker of pytest rewrites the assertions of all tests again, and every process
# that a test starts compiles all its modules again: collecting the tests takes twice as long.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast test-rest check dist wheels bench bench-laws bench-peers bench-quick soak spark-soak connect-soak release-check sim mutants storm figures docs java lab lock clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1~\2/p' Makefile | sed -e :a -e 's/^\([^~]\{1,22\}\)~/\1 ~/;ta' -e 's/~//'

setup: $(READY) ## the environment, in .venv

demo: java $(READY) ## the main job on real input, start to end, checked
	@$(RUN)/tutti demo $(ARGS)

ifeq ($(strip $(ARGS)),)
test: java test-fast ## every test but the long runs, JOBS at once: test-fast, then test-rest (ARGS=...: one run of pytest)
	@$(MAKE) --no-print-directory test-rest
else
test: java $(READY) lab $(CLASSES)
	@$(RUN)/python -m pytest -n $(JOBS) $(ARGS)
endif

# Some fast tests wait for a timeout, so one worker more than JOBS keeps the processors busy.
test-fast: $(READY) ## unit, property, transcript and architecture tests and a smoke of the simulator, in under three minutes
	@PYTEST_DEBUG_TEMPROOT=$(MEMORY) $(RUN)/python -m pytest -n $$(($(JOBS) + 1)) -m fast $(FAST) $(ARGS)

test-rest: java $(READY) lab $(CLASSES) ## the other tests: real gateways, Spark, Kafka, faults, long simulations
	@$(RUN)/python -m pytest -n $(JOBS) -m 'not fast and not soak' $(ARGS)

check: $(READY) ## lint, format, types, import contracts
	@$(RUN)/ruff check --quiet .
	@$(RUN)/ruff format --check --quiet . || { echo 'check: not formatted; run $(RUN)/ruff format .' >&2; exit 1; }
	@$(RUN)/mypy --no-error-summary --num-workers $(JOBS) .
	@out=$$($(RUN)/lint-imports --no-logo 2>&1) || { echo "$$out"; exit 1; }; \
	 printf 'check: %s Python files, %s lines, clean; %s\n' "$$($(SOURCES) | wc -l)" "$$($(SOURCES) | xargs cat | wc -l)" \
	    "$$(tail -n 1 <<<"$$out")"

dist: $(READY) ## wheel and sdist into dist/, installed into a fresh environment and imported there
	@tools/dist.sh $(RUN)/python

wheels: dist ## the wheel on every supported Python at hand, each in a fresh environment (PYTHONS=...: more interpreters)
	@mkdir -p build; set -o pipefail; $(RUN)/python -m tools.wheels $(PYTHONS) | tee build/wheels.txt

bench: $(READY) java ## every benchmark, with the machine's own limits beside it (ARGS=--quick: small volumes, one round)
	@$(RUN)/python -m benchmarks $(ARGS)

bench-laws: $(READY) java ## how cost grows with members, sizes, producers, topics, readers, the log, hours (ARGS=--quick, or names)
	@$(RUN)/python -m benchmarks.laws $(ARGS)

bench-peers: $(READY) java ## Tutti beside Kafka, NATS JetStream and JGroups, in turns; servers and clients apart; 30 minutes, Go for NATS
	@$(RUN)/python -m benchmarks.peers $(ARGS)

bench-quick: $(READY) ## ratios to what the machine does beside those recorded last: 1 where one got worse, 3 where noise hides it; under three minutes
	@$(RUN)/python -m benchmarks.guard $(ARGS)

soak: $(READY) lab ## a real group under load, every kind of fault mixed for MINUTES, the contract checked from outside
	@$(RUN)/python -m tests.faults.soak --minutes $(MINUTES) $(ARGS)

spark-soak: $(READY) java ## every process of a Spark query killed at every step of a micro-batch, for MINUTES; the result is always that without kills
	@$(RUN)/python -m pytest -q -m soak tests/integration/spark tests/integration/backfill
	@SPARK_SCALA_VERSION=2.13 $(RUN)/python -m tests.faults.spark.soak --minutes $(MINUTES) $(ARGS)

connect-soak: $(READY) java lab ## all long tests but Spark's: connectors, spool and archive killed again and again, faults of a group, what deployments need
	@$(RUN)/python -m pytest -q -m soak tests --ignore=tests/integration/spark --ignore=tests/integration/backfill $(ARGS)

release-check: MINUTES = 60
release-check: SECONDS = 600
release-check: $(READY) ## what a release must pass: version, change log, fixtures, then every test and long run; each soak takes MINUTES
	@$(RUN)/python -m tools.release_check
	@began=$$(date +%s); for part in $(RELEASE); do \
	    printf 'release-check: make %s\n' $$part; \
	    $(MAKE) --no-print-directory $$part MINUTES=$(MINUTES) SECONDS=$(SECONDS) ARGS= || \
	        { echo "release-check: make $$part failed" >&2; exit 1; }; \
	done; printf 'release-check: %s passed in %s minutes; %s\n' '$(RELEASE)' $$((($$(date +%s) - began) / 60)) "$$(cat build/wheels.txt)"

sim: $(READY) ## the real stack under seeded faults for SECONDS of CPU from SEED on, every promise checked
	@$(RUN)/python -m tests.sim --seconds $(SECONDS) --seed $(SEED) $(ARGS)

storm: $(READY) ## lose messages between 3 to 100 members: requests and repairs for each loss; a minute of CPU
	@$(RUN)/python -m tests.sim.storm $(ARGS)

mutants: $(READY) ## break the protocol rule by rule: the simulator, or a named test, finds each
	@$(RUN)/python -m tests.sim.mutants --jobs $(JOBS) $(ARGS)

figures: $(READY) ## messages a frame, pauses of ordering at each change of the group, the cost of a step, as tables; five minutes of CPU, ARGS=--quick for less
	@$(RUN)/python -m tests.sim.figures $(ARGS)

docs: $(READY) ## pages and test vectors that are made from the code, then the site of all pages in build/site, every link checked
	@$(RUN)/python -m tutti_gateway.cli.reference
	@$(RUN)/python -m tutti_gateway.core.diagrams > docs/explanation/protocol.md
	@$(RUN)/python -m tools.vectors
	@NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs --color build $(ARGS)
	@printf 'docs: %s pages in build/site\n' "$$(find build/site -name '*.html' | wc -l)"

java:
	@tools/java.sh

lab: $(READY)
	@$(if $(findstring not lab,$(ARGS)),true,tools/lab.sh $(RUN)/python)

lock: ## pin what pyproject.toml asks for, with hashes (UPGRADE=1: the newest of everything)
	@test -x .venv-lock/bin/uv || { python3 -m venv .venv-lock && .venv-lock/bin/pip install --quiet uv; }
	@tools/lock.sh .venv-lock/bin/uv

clean: ## caches and build output; environments and data directories stay
	@rm -rf build dist metastore_db spark-warehouse .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -path './.venv*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
	@printf 'clean: %s left in the checkout without its environments\n' "$$(du -sh --exclude='./.venv*' . | cut -f1)"

$(CLASSES): $(READY) | java
	@$(RUN)/python -m tests.support.spark_classes $@

$(READY): requirements.lock pyproject.toml tools/setup.sh tutti/batching/_append.c
	@tools/setup.sh $(VENV) $(PYSPARK)
	@touch $@
