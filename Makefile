# Everything runs from a clone with Python 3.11+, make and git: each target makes what it needs by itself.

PYTHON ?= python3
SERVICES_DATABASE_URL ?= postgresql://postgres@127.0.0.1:5432/callqueue
SERVICES_RABBITMQ_URL ?= amqp://guest:guest@127.0.0.1:5672//
SERVICES_REDIS_URL ?= redis://127.0.0.1:6379/9

# Django 6 needs Python 3.12; a version of pyenv will do.
DJANGO6 ?= 6.0.10
DJANGO6_PYTHON ?= $(shell for python in python3.13 python3.12 $$HOME/.pyenv/versions/3.1[23]*/bin/python; \
	do $$python -c "" 2>/dev/null && echo $$python && break; done)

BIN := .venv/bin
INSTALL := -m pip --disable-pip-version-check -qq install

.DEFAULT_GOAL := help
.PHONY: help demo run test test-services test-django6 check bench chaos chaos-services soak conformance test-clocks test-pooler clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1: /p' $(MAKEFILE_LIST) | awk -F': ' '{ printf "make %-15s %s\n", $$1, $$2 }'

demo: .venv/run.stamp ## run the main job to its end against a strict third party, in under a minute
	@$(BIN)/python -m project.demo

run: .venv/run.stamp ## bring the whole stack up and leave it running, with the admin (PORT=8000)
	@$(BIN)/python -m project.run

test: .venv/dev.stamp ## run the tests with embedded servers (ARGS="-k word" for some of them)
	@$(BIN)/pytest $(ARGS)

test-services: .venv/dev.stamp ## run the tests on PostgreSQL with RabbitMQ, and again with Redis (SERVICES_..._URL)
	@$(BIN)/python -m project.reachable "$(SERVICES_DATABASE_URL)" "$(SERVICES_RABBITMQ_URL)" "$(SERVICES_REDIS_URL)"
	@for broker in "$(SERVICES_RABBITMQ_URL)" "$(SERVICES_REDIS_URL)"; do \
		DATABASE_URL="$(SERVICES_DATABASE_URL)" CELERY_BROKER_URL="$$broker" $(BIN)/pytest $(ARGS) || exit; \
	done

test-pooler: .venv/dev.stamp ## run the engine's tests behind a PgBouncer in transaction mode (needs pgbouncer)
	@$(BIN)/pytest --pooler -m "not clocks" $(ARGS) tests/steps tests/races tests/edges/test_admin.py \
		tests/contracts/test_sql.py tests/flows/test_running.py tests/flows/test_limits_at_work.py

test-clocks: .venv/dev.stamp ## run the stories in processes whose clocks are an hour off (needs libfaketime)
	@$(BIN)/pytest -m clocks $(ARGS) tests/flows/clocks

test-django6: .venv-django6/dev.stamp ## run the tests with Django 6 and Python 3.12 or newer (DJANGO6_PYTHON=...)
	@.venv-django6/bin/pytest $(ARGS)

check: .venv/dev.stamp ## check format, style, types, layers, settings and migrations
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy --no-error-summary
	@# It prints a page on success; on failure all of it is wanted.
	$(BIN)/lint-imports --no-logo > .venv/lint-imports.txt || { cat .venv/lint-imports.txt; exit 1; }
	$(BIN)/python manage.py check
	@# Without a database it warns that it cannot compare with the migrations that were run there.
	$(BIN)/python -W ignore::RuntimeWarning manage.py makemigrations --check --dry-run

chaos: .venv/dev.stamp ## let faults strike under load, then audit (SEED=1 MINUTES=0.8, about 1.5 minutes in all)
	@$(BIN)/python -m trials.chaos $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

chaos-services: .venv/dev.stamp ## the same on PostgreSQL with RabbitMQ, and again with Redis (SERVICES_..._URL)
	@$(BIN)/python -m project.reachable "$(SERVICES_DATABASE_URL)" "$(SERVICES_RABBITMQ_URL)" "$(SERVICES_REDIS_URL)"
	@for broker in "$(SERVICES_RABBITMQ_URL)" "$(SERVICES_REDIS_URL)"; do \
		DATABASE_URL="$(SERVICES_DATABASE_URL)" CELERY_BROKER_URL="$$broker" \
			$(BIN)/python -m trials.chaos $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS) || exit; \
	done

conformance: .venv/dev.stamp ## run the Open Job Spec's public cases against a live server (SUITES=DIR, ARGS=--strict; 5 minutes)
	@$(BIN)/python -m project.conformance $(if $(SUITES),--suites $(SUITES)) $(ARGS)

bench: .venv/dev.stamp ## measure the speed against its bounds, side by side with the bare way
	@$(BIN)/python -m bench

soak: .venv/dev.stamp ## churn beside a backlog of 100,000 and look for growth (MINUTES=10, and 12 around them)
	@$(BIN)/python -m trials.soak $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

clean: ## stop what a killed run left behind; delete virtual environments, data and caches
	@! test -e .venv/run.stamp || $(BIN)/python -m project.services
	rm -rf .run .venv .venv-django6 build *.egg-info .hypothesis .*_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/run.stamp: requirements.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed: make PYTHON=...")'
	@echo "Setting up .venv ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python $(INSTALL) -r requirements.txt
	@touch $@

.venv/dev.stamp: .venv/run.stamp requirements-dev.txt
	@$(BIN)/python $(INSTALL) -r requirements-dev.txt
	@touch $@

.venv-django6/dev.stamp: requirements.txt requirements-dev.txt
	@test -n "$(DJANGO6_PYTHON)" || { echo "Python 3.12 or newer is needed: make $@ DJANGO6_PYTHON=..."; exit 1; }
	@echo "Setting up .venv-django6 ..."
	@$(DJANGO6_PYTHON) -m venv .venv-django6
	@.venv-django6/bin/python $(INSTALL) -r requirements-dev.txt
	@.venv-django6/bin/python $(INSTALL) Django==$(DJANGO6)
	@touch $@
