# Tutti. Each target sets up what it needs, ends with one line of figures and is non-zero when something fell short.
PYSPARK ?= 4.2.0
VENV := $(if $(filter 4.2.0,$(PYSPARK)),.venv,.venv-pyspark-$(PYSPARK))
READY := $(VENV)/.ready
SHELL := bash

.PHONY: help setup lock

help:
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | column -ts $$'\t'

setup: $(READY) ## the environment, in .venv (PYSPARK=4.3.0: a second one beside it)

$(READY): requirements.lock pyproject.toml tools/setup.sh
	@tools/setup.sh $(VENV) $(PYSPARK)
	@touch $@

lock: ## pin what pyproject.toml asks for, with hashes
	@test -x .lock-tool/bin/uv || { python3 -m venv .lock-tool && .lock-tool/bin/pip install --quiet uv; }
	@tools/lock.sh .lock-tool/bin/uv
