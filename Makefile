# One verb for each thing a person does; CI calls the same ones.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
BIN := .venv/bin
PY := $(BIN)/python
MEMBERS := libs/common libs/sdk libs/cli libs/verify libs/streams libs/connect libs/lab libs/spark spark-jobs services/broker services/controller services/coordinator services/admin services/connect
STAMP := .venv/.headrace-setup
STAGE = @tools/stage.sh
PYTEST = $(BIN)/pytest
# Files in the order of conftest.py, the longest first; by itself xdist begins with those that have the most tests.
BY_FILE = --dist loadfile --no-loadscope-reorder
# Where the machine's Python keeps no bytecode, each process of each cluster would compile our modules anew at its start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help checks imports chart manifests setup setup-spark pyspark lock proto proto-check fmt lint types arch unit sim integration spark chaos exits chaos-groups chaos-held chaos-transactions chaos-streams chaos-connect connect-long versions tls-long access-long browser e2e-oidc chaos-compaction chaos-short spark-chaos e2e-kubernetes test run run-spark up down status bench bench-peer bench-spark connect-differential kafka-import images sbom lock-age lock-audit ci measure clean

help: ## Say what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## Make the environment in .venv from requirements.lock

$(STAMP): requirements.lock requirements-bootstrap.txt $(wildcard libs/*/pyproject.toml services/*/pyproject.toml spark-jobs/pyproject.toml) tools/setup.sh
	@tools/setup.sh $(MEMBERS)
	@touch $(STAMP)

setup-spark: setup ## Spark into it, and a Java for Spark where there is none (apt, as root)
	@tools/setup_spark.sh --install

pyspark: setup
	@tools/setup_spark.sh --packages

lock: setup ## Resolve dependencies anew into requirements.lock and its siblings for Spark and taps
	tools/lock.sh --upgrade

proto: setup ## Generate code: messages, and the admin client for threads
	tools/proto.sh

proto-check: setup ## Fail if generated code differs from what it is made of
	$(STAGE) proto tools/proto.sh --check

fmt: setup ## Format
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

lint: setup ## Format and lint, checked
	$(STAGE) format $(BIN)/ruff format --check .
	$(STAGE) lint $(BIN)/ruff check .

types: pyspark ## mypy, strict
	$(STAGE) types $(BIN)/mypy

arch: setup ## The layers (import-linter)
	$(STAGE) layers $(BIN)/lint-imports --no-cache

# pytest keeps the bytecode that it makes of a file of tests; without this each worker of each stage would make it anew.
imports: pyspark ## Import each file of tests, once
	$(STAGE) imports $(PYTEST) --collect-only -q libs services spark-jobs tests | sed -E '/^[^ ]+: [0-9]+$$/d; /^$$/d'

# Three workers on two cores: two of them wait for answers, timers and processes for a fifth of the time.
unit: pyspark ## Dialogue tests and properties
	$(STAGE) unit $(PYTEST) -n 3 -m "not integration and not chaos and not spark and not chart and not kubernetes" \
		libs services spark-jobs tests

chart: setup ## The Helm chart: lint, renders against our rules, network policies, typos in values
	@tools/helm.sh > /dev/null
	$(STAGE) chart $(PYTEST) -n 2 -m "chart and not kubernetes" tests/deploy

manifests: setup ## Render the chart with its defaults into deploy/k8s/headrace.yaml, and copy what it shows of deploy/monitoring
	tools/manifests.sh

sim: setup ## Clusters in the lab from seeds: SEEDS=200, SEED=7 replays one, KIND=replication|compaction|groups|transactions|work|streams|whole
	$(STAGE) simulation $(PY) -m tests.lab KIND=$(or $(KIND),$(WORLD)) SEED=$(SEED) SEEDS=$(SEEDS) FROM=$(FROM) \
		MUTANT=$(MUTANT) MUTANTS=$(MUTANTS) STARTS=$(STARTS) SEEDS_MAX=$(SEEDS_MAX)

# Four workers here, and three for chaos: these tests wait for sessions, leases and processes more than they compute.
integration: setup ## Real etcd, RocksDB, gRPC and processes
	$(STAGE) integration $(PYTEST) -n 4 $(BY_FILE) -m "integration and not spark" --timeout 300 libs services tests

spark: setup-spark ## The connector and the jobs in a Spark session, against real clusters
	@JAVA_HOME="$$($(PY) -m headrace_cli.spark.java)" tools/stage.sh spark $(PYTEST) -n 2 $(BY_FILE) -m spark --timeout 300 libs spark-jobs tests

chaos-short: setup ## The same under faults, as CI runs it
	$(STAGE) chaos $(PYTEST) -n 3 $(BY_FILE) -m "chaos and not spark" --timeout 600 libs services tests

chaos: setup ## Every fault, with figures, then chaos-held (40 min, root); SEED=N repeats a run, ONLY="cuts damage" picks some
	PYTHONPATH=. $(PY) tests/chaos/replication/chaos_long.py $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))
	$(if $(ONLY),,@$(MAKE) --no-print-directory chaos-held $(if $(SEED),SEED=$(SEED)))

chaos-held: setup ## All kinds of clients in a storm; kill -9 of everything 20 times; headrace up killed in its midst (20 min); SEED=N
	CHAOS_SEED=$(or $(SEED),$$(date +%s)) HELD_LONG=1 $(PYTEST) -m chaos -s tests/chaos/held

exits: setup ## 1,000 ends of programs in all states of their clients (EXITS=N)
	HEADRACE_EXITS=$(or $(EXITS),1000) $(PYTEST) libs/sdk/tests/cluster/test_exits.py

chaos-groups: setup ## Members and coordinators killed at random for 60 s, each protocol, brokers and controller too
	GROUPS_SECONDS=60 GROUPS_ALL=1 $(PYTEST) -m integration --timeout 600 -s tests/integration/groups/test_churn.py

chaos-transactions: setup ## Copies, histories and units under kills, and each step of a transaction hurt (30 min); SEED=N
	CHAOS_SEED=$(or $(SEED),$$(date +%s)) TRANSACTIONS_LONG=1 $(PYTEST) -m chaos -s tests/chaos/transactions
	TRANSACTION_STEPS=all $(PYTEST) -m integration tests/integration/transactions/test_steps.py

chaos-streams: setup ## Workers of Streams hurt at each step of a commit, full disks, both guarantees (45 min, root); SEED=N
	CHAOS_SEED=$(or $(SEED),$$(date +%s)) STREAMS_LONG=1 $(PYTEST) -m chaos -s tests/chaos/streams

chaos-connect: setup ## A database through a topic into a copy and a log, hurt at each step of a commit; 10,000,000 rows read under kills (55 min); SEED=N, MUTANT=unchecked
	CHAOS_SEED=$(or $(SEED),$$(date +%s)) CONNECT_SECONDS=600 CONNECT_ROWS=10000000 CONNECT_MUTANT=$(MUTANT) $(PYTEST) -m chaos -s tests/chaos/connect

connect-long: setup ## What tests of connectors leave out: sql-source on MariaDB killed and cut at each step, lake-sink and lake_follow on one lake for long (10 min)
	CONNECT_LONG=1 $(PYTEST) -s tests/integration/connect/test_sql_source_mariadb.py tests/integration/connect/test_lake_follow.py \
		-k "suite_of_all_sources or both_run"

versions: setup ## Workers of Streams and Connect of this version and another share their work; a client of the other while it is closed: OTHER=DIR, a checkout of the other
	$(if $(OTHER),,$(error OTHER=DIR names a checkout of another version))
	OTHER=$(OTHER) $(PYTEST) -m integration tests/compat/test_*_versions.py

tls-long: setup ## Certificates swapped under 100 handshakes at a time, for a minute; another CA, one of etcd too, and certificates of 30 s, beneath a cluster under load
	TLS_LONG=1 $(PYTEST) -s libs/common/tests/runtime/test_tls_server.py tests/integration/tls/test_tls_cluster.py -k "swapped or another_ca"

access-long: setup ## 200 open streams of each kind of credential, all taken back, a controller dies too; tokens, keys of issuers, passwords and the node token changed under load; a fuzz for a minute, SEED=N
	REVOCATION_LONG=1 MIGRATION_LONG=1 FUZZ_LONG=1 FUZZ_SEED=$(or $(SEED),$$(date +%s)) $(PYTEST) -m integration -s --timeout 600 \
		tests/integration/access/test_revocation.py tests/integration/access/test_migration.py tests/integration/access/test_fuzz.py

browser: setup ## A real browser, Chromium (apt, as root): our login page, and pages of others at every port of a cluster (1 min)
	@at="$$(tools/setup_browser.sh)" && HEADRACE_BROWSER="$$at" $(PYTEST) -m integration tests/integration/access/test_real_browser.py

e2e-oidc: setup ## headrace login --oidc at the certified OIDC provider, from npm, by its own pages, and its tokens changed (1 min; needs Node)
	@at="$$(tools/oidc_provider.sh)" && HEADRACE_OIDC_PROVIDER="$$at" $(PYTEST) -m integration tests/integration/access/test_certified_provider.py

chaos-compaction: setup ## Compaction and retention in a hurry under all faults, and brokers broken on purpose (15 min); SEED=N, ONLY="every"
	PYTHONPATH=. $(PY) tests/chaos/compaction/compaction_long.py $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

spark-chaos: setup-spark ## Spark's drivers, its Python, brokers and coordinators killed while streams are copied (30 min); SEED=N, ONLY="storm points"
	JAVA_HOME="$$($(PY) -m headrace_cli.spark.java)" $(PY) -m tests.chaos.spark.spark_long \
		$(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

e2e-kubernetes: setup ## The chart on the cluster that KUBECONFIG names, under load and faults (40 min): IMAGE_TAG=, PREVIOUS_TAG=, SEED=N, ONLY="install broker"
	$(if $(ONLY),,$(PYTEST) -m kubernetes tests/kubernetes)
	$(PY) -m tests.kubernetes.kubernetes_long $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY)) $(ARGS)

# mypy is one process for a minute: what starts no cluster runs beside it, and both cores are busy.
checks: pyspark ## What is looked at without a cluster: types, and beside them format, lint, layers, generated code, imports, the chart
	@$(MAKE) --no-print-directory -j 2 types lint arch proto-check imports chart

test: setup-spark checks unit sim integration spark chaos-short ## Everything

run: ## A local cluster with real data flowing end to end, Spark included where there is a Java; ARGS=--fresh starts anew
	@echo "Headrace: a cluster on this machine, real departures through it, and the proof that none is lost."
	@$(MAKE) --no-print-directory setup
	@HEADRACE_DEMO_GET_SPARK=tools/setup_spark.sh $(BIN)/headrace demo $(ARGS)

run-spark: setup-spark ## The same, with Spark at its end for certain; on the cluster that runs, or a new one
	@$(BIN)/headrace demo --spark $(ARGS)

up: setup ## A local cluster; ARGS as for headrace up
	$(BIN)/headrace up $(ARGS)

down: setup ## Stop it
	$(BIN)/headrace down $(ARGS)

status: setup ## How it is
	$(BIN)/headrace status $(ARGS)

bench: setup ## Benchmarks, ratios in one run; ONLY=name runs one, FULL=1 the gigabytes
	$(PY) -m bench $(if $(ONLY),--only $(ONLY)) $(if $(FULL),--full)

bench-peer: setup ## Beside a real Kafka on this machine, interleaved (needs Java 17 and Maven); ONLY=, RUNS=, FULL=1 adds the long ones
	$(PY) -m bench --peer $(if $(ONLY),--only $(ONLY)) $(if $(RUNS),--runs $(RUNS)) $(if $(FULL),--full)

connect-differential: setup ## Whether Kafka's own Connect answers as tests have it, and a real worker so too (3 min; needs Java 17 and Maven); ARGS=--keep keeps its answers
	$(PY) -m services.connect.tests.differential.record $(ARGS)
	$(PY) -m services.connect.tests.differential.live

kafka-import: setup ## The connector kafka-import on a real Kafka, both killed meanwhile (5 min; needs Java 17 and Maven)
	HEADRACE_REAL_KAFKA=1 $(PYTEST) -s tests/integration/connect/test_kafka_import_real.py

bench-spark: setup-spark ## The Spark connector beside Spark's Kafka source on a real Kafka, Parquet, rate (8 min; ARGS=--no-peer: without Maven)
	@JAVA_HOME="$$($(PY) -m headrace_cli.spark.java)" $(PY) -m bench.spark $(if $(ONLY),--only $(ONLY)) $(ARGS)

images: ## The images, with plain docker: TAG=, ONLY="broker admin", REF=<commit>; prints their sizes
	@tools/images.sh

sbom: ## What Python packages each image has, as CycloneDX, into sbom/; an image has its own in /usr/share/doc/headrace
	@python3 tools/sbom.py --all sbom

lock-age: ## Fail if something locked is older than a year without a reason (requirements.old); offline
	@python3 tools/dates.py check

lock-audit: setup lock-age ## The same, and known holes of what is locked, by pip-audit and its index
	.venv/bin/uv tool run pip-audit --requirement requirements.lock --require-hashes --disable-pip

ci: test ## What CI runs

measure: setup ## Measure the source: lines, functions, large modules, import cycles; COMMIT=name for another
	$(PY) tools/measure.py $(COMMIT)

clean: ## Remove the environment and caches; data directories stay
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
