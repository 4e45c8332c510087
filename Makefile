# make run     the runbook headless for MODEL on HW (k2.5 on a3)
# make test    the lint, and all tests but those of the three below
# make test-long  each model on each hardware, each recipe rehearsed, notebooks 06 to 09 (13 minutes); what strangers write, a minute of each kind (16 more, or FUZZ_SECONDS=0; none where CI=true)
# make test-tools  lm-eval and AISBench against services that fail (4 minutes)
# make test-engine  the real vLLM on this CPU, deployed in all layouts, and other people's clients (some 30 minutes)
# make test-recipes  every recipe that others publish, rehearsed one by one (40 minutes)
# make test-chaos  100 kills, full disks, bad links and clock jumps; CHAOS=20 for fewer (30 minutes at most)
# make lint    what a commit must pass; all five of lint-*
# make coverage  which lines of the pure rooms their tests reach (2 minutes)
# make mutants  which changes of the modules that changed no test notices (30 minutes at most)
# make lint-code  ruff on code and notebooks
# make lint-notebooks  no outputs, and the form that all notebooks have
# make lint-docs  links lead somewhere, generated parts are current
# make lint-types  the types, by mypy
# make lint-rooms  imports between the rooms of the package, by import-linter
# make strip   take the outputs out of the notebooks
# make readme  write the generated parts of README.md, README.zh-CN.md and docs/modules.md
# make i18n    bring new English texts into the catalogues of translations, and make notebooks/zh/
# make hooks   run the lint before each commit (pre-commit)
# make lab     JupyterLab on copies of the notebooks, in workspace/, which git ignores
# make site    the web pages, into build/website/html: notebooks executed in rehearsal, documents, references (5 minutes)
# make venv    .venv with everything that run and test need
# make engine  .engine with the real vLLM for this machine's CPU (2.5 GB; hardware cpu)
# make tools   .tools with lm-eval and AISBench, for notebook 07 (3 GB)
# make load-clients  .clients/load with aiperf, guidellm and lm-eval, for test-engine (4 GB)
# make bench   the benchmarks; fails where one does not keep its bounds
# make pins    constraints.txt, docs/website/requirements.txt and .github/tools/check.txt anew: versions and the hashes of their files
# make clean   remove .venv, .engine, .tools, .clients, .website, .uv, runs/, build/ and caches; workspace/ stays
# make help    these lines
PYTHON ?= python3
MODEL ?= k2.5
HW ?= a3
JOBS ?= 2
ENGINE ?= .engine
BIN := .venv/bin
# The notebooks that prove and tune a service take minutes; each other one is part of make test.
LONG_NOTEBOOKS := $(wildcard notebooks/0[6-9]*.ipynb)
# What goes wrong in it is chance: tests/notebook/test_drilling.py runs it with a seed.
DRAWN := notebooks/12_drills.ipynb
# Tests that need what make engine and make tools install.
APART := --ignore tests/deploy/test_real_engine.py --ignore tests/deploy/test_real_parser.py \
	--ignore tests/deploy/test_clients.py --ignore tests/prove/test_accuracy_tools.py

# The tests of the rooms that coverage looks at (pyproject.toml), which run in one process.
PURE := $(addprefix tests/,params catalog plan check bundle/test_scripts.py)

.PHONY: help run test test-long test-tools test-engine test-recipes test-chaos load-clients coverage mutants lint lint-code lint-notebooks lint-docs lint-types lint-rooms strip \
	readme i18n hooks lab site venv engine tools bench pins clean
help:
	@sed -n 's/^# make //p' Makefile | awk '{ name = $$1; $$1 = ""; printf "make %-15s%s\n", name, $$0 }'

# The stamp is newer than what it was made from, or it is made again.
.venv/.stamp: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0])'
	@echo 'The first start installs some 200 packages into .venv: 2 to 4 minutes. Later ones take seconds.'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/python -m compileall -q kimi_nb
	touch .venv/.stamp

# With BIN another environment is taken as it is: make run BIN=/path/to/bin.
venv: $(if $(filter .venv/bin,$(BIN)),.venv/.stamp)

run: venv
	$(BIN)/kimi-nb run --model $(MODEL) --hw $(HW) --jobs $(JOBS)

test: venv lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not long" $(APART) tests
	@# One at a time: the TCP ports of kernels that start together can collide.
	$(BIN)/python -m pytest --nbmake --nbmake-timeout=300 $(filter-out $(LONG_NOTEBOOKS) $(DRAWN),$(wildcard notebooks/*.ipynb))

# What would make "make test" longer than 15 minutes on two cores.
test-long: venv .website/.stamp
	$(BIN)/python -m pytest -n 2 --dist worksteal -m long $(APART) tests
	$(BIN)/python -m pytest --nbmake --nbmake-timeout=300 $(LONG_NOTEBOOKS)

# Apart from the others: it takes minutes, and what make tools has installed.
test-tools: venv tools
	$(BIN)/python -m pytest -n 2 tests/prove/test_accuracy_tools.py

# One of each kind is part of make test-long.
test-recipes: venv
	EVERY=1 $(BIN)/python -m pytest -n 2 tests/upstream/test_rehearsed.py

# Apart from the others: each of its engines takes both cores for minutes.
# LOAD_CLIENTS= leaves out aiperf, guidellm and lm-eval, which take minutes to install; their tests skip.
LOAD_CLIENTS ?= load-clients
test-engine: venv engine .clients/.stamp $(LOAD_CLIENTS)
	$(BIN)/python -m pytest tests/deploy/test_real_engine.py tests/deploy/test_real_parser.py tests/deploy/test_clients.py

# Other people's clients, which ask the real engine and the stand-in the same. An environment of its
# own: their requirements are not ours.
.clients/.stamp: tests/deploy/clients.txt
	$(PYTHON) -m venv .clients
	.clients/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r tests/deploy/clients.txt
	touch .clients/.stamp

# aiperf, guidellm and lm-eval, each in an environment of its own; what is complete is left alone.
load-clients: venv .clients/.stamp
	$(BIN)/python tests/testbed/load_tools.py .clients/load

# Apart from the others: processes are killed and disks are full. SEED=N for other disasters.
CHAOS ?= 100
test-chaos: venv
	$(BIN)/python tests/chaos/run.py --count $(CHAOS) $(if $(SEED),--seed $(SEED))

# Apart from make test: Python 3.11 has only the C tracer, with which these tests take twice the time.
# Newer ones count lines with sys.monitoring.
coverage: venv
	COVERAGE_CORE=$$($(BIN)/python -c 'import sys; print("sysmon" if sys.version_info >= (3, 12) else "ctrace")') \
		$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term:skip-covered $(PURE)

# Modules that changed since this branch left origin/main; with SINCE, since that commit; or those of
# MODULES. tests/mutants/ has the lists.
mutants: venv
	$(BIN)/python tests/mutants/run.py $(if $(SINCE),--since $(SINCE)) $(MODULES)

lint: lint-code lint-notebooks lint-docs lint-types lint-rooms

lint-code: venv
	$(BIN)/ruff check kimi_nb tests benchmarks notebooks docs/website
	$(BIN)/ruff format --check --quiet kimi_nb tests benchmarks docs/website

lint-notebooks: venv
	$(BIN)/nbstripout --keep-id --verify notebooks/*.ipynb notebooks/*/*.ipynb
	$(BIN)/python tests/habits/notebook_form.py notebooks/*.ipynb

lint-docs: venv
	$(BIN)/python tests/habits/links.py *.md docs/*.md docs/rules/*.md docs/rules/*/*.md notebooks/*.ipynb notebooks/*/*.ipynb
	PYTHONPATH="tests$${PYTHONPATH:+:$$PYTHONPATH}" $(BIN)/python tests/habits/readme.py --check

lint-types: venv
	$(BIN)/mypy

lint-rooms: venv
	$(BIN)/lint-imports --no-cache --no-logo

strip: venv
	$(BIN)/nbstripout --keep-id notebooks/*.ipynb notebooks/*/*.ipynb

readme: venv
	PYTHONPATH="tests$${PYTHONPATH:+:$$PYTHONPATH}" $(BIN)/python tests/habits/readme.py

i18n: venv
	PYTHONPATH="tests$${PYTHONPATH:+:$$PYTHONPATH}" $(BIN)/python tests/habits/catalogues.py

hooks: venv
	$(BIN)/pre-commit install

# The root of the server is the checkout: links of the notebooks lead to docs/. On accelerator nodes
# people often are root, which Jupyter takes only when told so.
lab: venv
	$(BIN)/python -m kimi_nb.notebook.workspace
	$(BIN)/jupyter lab --ip 127.0.0.1 $(if $(filter 0,$(shell id -u)),--allow-root) \
		--ServerApp.root_dir="$(CURDIR)" --LabApp.default_url=/lab/tree/workspace/00_start.ipynb

# Sphinx and what it needs, in an environment of its own: the notebooks need none of it.
.website/.stamp: docs/website/requirements.txt
	$(PYTHON) -m venv .website
	.website/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r docs/website/requirements.txt
	touch .website/.stamp

site: venv .website/.stamp
	PYTHONPATH="docs:$(CURDIR)" .website/bin/python -m website --bin $(BIN)

# Beside the notebooks' environment, not into it: the two want other versions of the same packages.
engine: venv
	$(BIN)/python -m kimi_nb.service.cpu_engine "$(ENGINE)"

# Each in an environment of its own; what cannot be installed says why, and notebook 07 repeats it.
tools: venv
	$(BIN)/python -m kimi_nb.prove.accuracy.evaluators .tools

# All of them, also where one fails.
bench: venv
	$(BIN)/python benchmarks

# The versions that are there stay; make pins UPGRADE=--upgrade takes the newest.
pins:
	$(PYTHON) -m venv .uv
	.uv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r .github/tools/uv.txt
	.uv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
		--no-header $(UPGRADE) --extra test --output-file constraints.txt pyproject.toml
	.uv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
		--no-header $(UPGRADE) --constraint constraints.txt \
		--output-file docs/website/requirements.txt docs/website/requirements.in
	.uv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
		--no-header $(UPGRADE) --constraint constraints.txt \
		--output-file .github/tools/check.txt pyproject.toml .github/tools/check.in

clean:
	rm -rf .venv .engine .tools .clients .website .uv runs build .mypy_cache .ruff_cache .pytest_cache .coverage
