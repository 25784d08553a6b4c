# Everything runs from a clone with Python 3.11+, make and git: each target makes what it needs by itself.

PYTHON ?= python3
SERVICES_DATABASE_URL ?= postgresql://postgres@127.0.0.1:5432/callqueue
SERVICES_RABBITMQ_URL ?= amqp://guest:guest@127.0.0.1:5672//
SERVICES_REDIS_URL ?= redis://127.0.0.1:6379/9

# How many processes run the tests, each with servers or a database of its own; 0 runs them in one, without pytest-xdist.
# Tests wait for a third of their time: one process more than cores keeps two cores busy. Files go in order: by the number
# of their tests, those with two that take minutes (the model, take and its reference) would begin last, and be alone.
PROCESSES ?= 3
PYTEST_OPTIONS = -n $(PROCESSES) --dist loadfile --no-loadscope-reorder $(ARGS)
# The marks of the tests, and what they mean, are in pyproject.toml.
ALL_TESTS := -m "not clocks and not needs_pooler"

# Django 6 needs Python 3.12; the newest that is there is taken, a version of pyenv will do.
DJANGO6 ?= 6.0.10
DJANGO6_PYTHON ?= $(shell for python in python3.14 $$HOME/.pyenv/versions/3.14*/bin/python python3.13 python3.12 \
	$$HOME/.pyenv/versions/3.1[23]*/bin/python; \
	do $$python -c "" 2>/dev/null && echo $$python && break; done)

CELERY ?= 5.5.3
UV ?= 0.13.9

BIN := .venv/bin
# Without it each process would compile the package again: of the tests, who rewrite their assertions, and each worker.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := -m pip --disable-pip-version-check -qq install

.DEFAULT_GOAL := help
.PHONY: help demo run test test-slow test-without-ojs test-services test-pooler test-clocks test-django6 test-celery55 test-all \
	check bench bench-scale chaos chaos-services soak mutants conformance functions lock release secrets clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1: /p' $(MAKEFILE_LIST) | awk -F': ' '{ printf "make %-15s %s\n", $$1, $$2 }'

demo: .venv/run.stamp ## run the main job to its end against a strict third party, in under a minute
	@$(BIN)/python -m project.demo

run: .venv/run.stamp ## bring the whole stack up and leave it running, with the admin (PORT=8000)
	@$(BIN)/python -m project.run

test: .venv/dev.stamp ## run all but the slow tests with embedded servers (ARGS="-k word" for some of them, PROCESSES=3)
	@$(BIN)/pytest $(PYTEST_OPTIONS)

test-slow: .venv/dev.stamp ## run the tests that make test leaves out: flows with restarts and leases, wide variants
	@$(BIN)/pytest -m "slow and not smoke" $(PYTEST_OPTIONS)

test-without-ojs: .venv/dev.stamp ## run make test in a project without the Open Job Spec
	@$(BIN)/pytest --without-ojs $(PYTEST_OPTIONS)

test-services: .venv/dev.stamp ## run what is slow or depends on the server or the broker on PostgreSQL with RabbitMQ
	@$(BIN)/python -m project.reachable "$(SERVICES_DATABASE_URL)" "$(SERVICES_RABBITMQ_URL)"
	@DATABASE_URL="$(SERVICES_DATABASE_URL)" CELERY_BROKER_URL="$(SERVICES_RABBITMQ_URL)" \
		$(BIN)/pytest -m "slow or (server or broker) and not (direct or needs_pooler)" $(PYTEST_OPTIONS)

test-pooler: .venv/dev.stamp ## run the engine's tests behind a PgBouncer in transaction mode (needs pgbouncer)
	@$(BIN)/pytest --pooler -m "needs_pooler or pooler and not (session or slow)" $(PYTEST_OPTIONS)

test-clocks: .venv/dev.stamp ## run the flows in processes whose clocks are an hour off (needs libfaketime)
	@$(BIN)/pytest -m clocks $(ARGS)

test-django6: .venv-django6/dev.stamp ## run the tests that touch Django with Django 6 (needs Python 3.12, DJANGO6_PYTHON=...)
	@.venv-django6/bin/pytest -m django $(PYTEST_OPTIONS)

test-celery55: .venv-celery55/dev.stamp ## run the tests that touch Celery with the oldest version allowed
	@.venv-celery55/bin/pytest -m celery $(PYTEST_OPTIONS)

test-all: .venv/dev.stamp .venv-django6/dev.stamp ## run everything on every server, broker and version, as before a release
	@$(MAKE) --no-print-directory check test test-slow test-without-ojs
	@INTERLEAVINGS=wide $(BIN)/pytest $(ALL_TESTS) --timeout 1800 $(PYTEST_OPTIONS) tests/interleavings
	@MODEL_EXAMPLES=2000 $(BIN)/pytest tests/model -k seed_of_the_day
	@FLOWS_FRESH_WORKERS=20 $(BIN)/pytest -m slow --timeout 600 tests/flows/test_direct.py -k fresh_worker
	@$(BIN)/python -m project.reachable "$(SERVICES_DATABASE_URL)" "$(SERVICES_RABBITMQ_URL)" "$(SERVICES_REDIS_URL)"
	@for broker in "$(SERVICES_RABBITMQ_URL)" "$(SERVICES_REDIS_URL)"; do \
		DATABASE_URL="$(SERVICES_DATABASE_URL)" CELERY_BROKER_URL="$$broker" \
			$(BIN)/pytest $(ALL_TESTS) $(PYTEST_OPTIONS) || exit; \
	done
	@$(BIN)/pytest --pooler -m "(pooler or needs_pooler) and not session" $(PYTEST_OPTIONS)
	@$(BIN)/pytest --pooler -m "not (pooler or needs_pooler or session)" $(PYTEST_OPTIONS) tests/steps tests/races
	@.venv-django6/bin/pytest $(ALL_TESTS) $(PYTEST_OPTIONS)
	@$(MAKE) --no-print-directory test-celery55 test-clocks conformance demo chaos chaos-services release

check: .venv/dev.stamp ## check format, style, types, layers, settings, migrations and documentation
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy --no-error-summary
	@# It prints a page on success; on failure all of it is wanted.
	$(BIN)/lint-imports --no-logo > .venv/lint-imports.txt || { cat .venv/lint-imports.txt; exit 1; }
	$(BIN)/python manage.py check
	@# Without a database it warns that it cannot compare with the migrations that were run there.
	$(BIN)/python -W ignore::RuntimeWarning manage.py makemigrations --check --dry-run
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

chaos: .venv/dev.stamp ## let faults strike under load, then audit (SEED=1 MINUTES=0.8, about 1.5 minutes in all)
	@$(BIN)/python -m trials.chaos $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

chaos-services: .venv/dev.stamp ## the same on PostgreSQL with RabbitMQ, and again with Redis (SERVICES_..._URL)
	@$(BIN)/python -m project.reachable "$(SERVICES_DATABASE_URL)" "$(SERVICES_RABBITMQ_URL)" "$(SERVICES_REDIS_URL)"
	@for broker in "$(SERVICES_RABBITMQ_URL)" "$(SERVICES_REDIS_URL)"; do \
		DATABASE_URL="$(SERVICES_DATABASE_URL)" CELERY_BROKER_URL="$$broker" \
			$(BIN)/python -m trials.chaos --delivery broker $(if $(SEED),--seed $(SEED)) \
				$(if $(MINUTES),--minutes $(MINUTES)) $(ARGS) || exit; \
	done

conformance: .venv/dev.stamp ## run the Open Job Spec's public cases against a live server (SUITES=DIR, ARGS=--strict; 5 minutes)
	@$(BIN)/python -m project.conformance $(if $(SUITES),--suites $(SUITES)) $(ARGS)

bench: .venv/dev.stamp ## measure the speed against its bounds, side by side with the bare way
	@$(BIN)/python -m bench

bench-scale: .venv/dev.stamp ## measure each operation on a large system beside a small one (ARGS=--quick for a tenth of the size)
	@$(BIN)/python -m bench.scale $(ARGS)

soak: .venv/dev.stamp ## churn beside a backlog of 100,000 and look for growth (MINUTES=10, and 12 around them)
	@$(BIN)/python -m trials.soak $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

mutants: .venv/dev.stamp ## plant faults in a copy of the tree, one at a time, and list those that no test catches (ARGS="RULE ..." for some)
	@$(BIN)/python -m trials.mutants $(ARGS)

functions: .venv/dev.stamp ## write the copy of the database's functions that a migration installs (REPLACE=1 in place of the last)
	@$(BIN)/python -m project.functions $(if $(REPLACE),--replace)

release: .venv/dev.stamp ## build the package into dist/, check it, and follow the README with it in an empty project
	@$(BIN)/python $(INSTALL) uv==$(UV)
	@$(BIN)/python -m project.release

lock: .venv/run.stamp ## write requirements.lock, the packages of the image with their hashes, as requirements.txt pins them
	@$(BIN)/python $(INSTALL) uv==$(UV)
	@$(BIN)/uv pip compile --quiet --custom-compile-command "make lock" --no-annotate --generate-hashes \
		--python-version 3.13 --python-platform linux --extra binary --extra http --group image \
		--constraints requirements.txt pyproject.toml --output-file requirements.lock

secrets: ## make the passwords that docker-compose.yml reads from secrets/; those that exist are kept
	@mkdir -p -m 700 secrets
	@for name in postgres_password database_password rabbitmq_password secret_key; do \
		test -s secrets/$$name || $(PYTHON) -c 'import secrets; print(secrets.token_urlsafe(50))' > secrets/$$name; \
		chmod 444 secrets/$$name; \
	done
	@echo "secrets/ has a file for each password. Keep a copy of it in a safe place."

clean: ## stop what a killed run left behind; delete virtual environments, data and caches
	@! test -e .venv/run.stamp || $(BIN)/python -m project.services
	rm -rf .run .venv .venv-django6 .venv-celery55 build dist site *.egg-info .hypothesis .*_cache
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

.venv-celery55/dev.stamp: requirements.txt requirements-dev.txt
	@echo "Setting up .venv-celery55 ..."
	@$(PYTHON) -m venv .venv-celery55
	@.venv-celery55/bin/python $(INSTALL) -r requirements-dev.txt
	@.venv-celery55/bin/python $(INSTALL) celery==$(CELERY)
	@touch $@
