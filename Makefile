# Every target builds .venv if it is missing or older than the files that define it. `test` also builds .venv-grpc, with the
# last Flower whose nodes speak gRPC, `docs` builds .venv-docs with the documentation's tools, `newest` .venv-newest with the
# newest Flower, and `release` .venv-release with the tools of a release; all take their other packages from .venv.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
BIN := .venv/bin
KEY := $(shell cat pyproject.toml constraints.txt | sha256sum | cut -c1-16)
STAMP := .venv/.built-$(KEY)
GRPC_KEY := $(shell cat pyproject.toml constraints.txt constraints-grpc.txt | sha256sum | cut -c1-16)
GRPC_STAMP := .venv-grpc/.built-$(GRPC_KEY)
DOCS_KEY := $(shell cat pyproject.toml constraints.txt constraints-docs.txt | sha256sum | cut -c1-16)
DOCS_STAMP := .venv-docs/.built-$(DOCS_KEY)
# Tests of behaviour that may differ between versions of Flower; they run with both.
BOTH_FLOWERS := tests/conformance tests/sim/test_inprocess.py
# The cores that this process may use; `taskset` or a container can reduce them. OMP_NUM_THREADS, which nproc heeds, is not
# their number.
CORES := $(shell env -u OMP_NUM_THREADS nproc)
# The tests of a file share fixtures, so whole files are distributed to the workers; each worker has one thread.
ON_ALL_CORES := --numprocesses $(CORES) --dist loadfile
# Each worker imports all files that it is given, which takes longer than the tests of some.
WITH_SLOW_TESTS = $(shell grep -rl --include='test_*.py' --exclude-dir=processes 'mark\.slow' tests)
# Fleets wait for half of their time.
FLEETS_ON_ALL_CORES := --numprocesses $(shell echo $$(($(CORES) * 3 / 2))) --dist loadfile
# The slow tests of fleets, those that take longest first: were they to start last, all cores but one would wait for them.
LONGEST := $(addprefix tests/processes/,test_faults.py test_generations.py test_first_fleet.py)
SLOW_FLEETS := $(LONGEST) $(filter-out $(LONGEST),$(wildcard tests/processes/test_*.py))
PACKAGES := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'

# An environment beside .venv: its folder, and what pip installs into it.
define beside
	rm -rf $(1)
	$(BIN)/python -m venv --without-pip $(1)
	printf '%s\n' "$$($(BIN)/python $(PACKAGES))" "$(CURDIR)" > "$$($(1)/bin/python $(PACKAGES))/after.pth"
	$(BIN)/pip --python $(1) install --disable-pip-version-check --quiet --no-compile $(2)
endef

export FLWR_TELEMETRY_ENABLED := 0
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION := 1
export FLWR_DISABLE_UPDATE_CHECK := 1
# Tests start hundreds of processes; bytecode that is not written is compiled in each of them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run check test test-all test-more quick-tests fuzz lint lint-style lint-types package bench gpu results docs newest release env env-grpc config clean
.DEFAULT_GOAL := run

run: $(STAMP)  ## ten devices learn from made-up texts alone, together and with private words; writes a report
	$(BIN)/python -m fedapps run quickstart

check: lint-style  ## lint, types, and the quick tests that start no process and need no data
	env -u FEDAPPS_DATA $(MAKE) --no-print-directory --jobs 2 lint-types quick-tests QUICK="not slow and not processes and not subprocesses"

# A fleet that gets no processor time loses its nodes. Therefore tests that start fleets run after all others.
test: lint-style $(GRPC_STAMP)  ## the gate, in eight minutes: lint, types, architecture and all tests but the slow ones
	$(MAKE) --no-print-directory --jobs 2 lint-types quick-tests
	.venv-grpc/bin/python -m pytest -m "not slow and not processes" $(BOTH_FLOWERS) $(ON_ALL_CORES)
	$(BIN)/python -m pytest -m "processes and not slow" tests/processes $(ON_ALL_CORES)

QUICK := not slow and not processes
quick-tests: export OMP_NUM_THREADS := 1
quick-tests: $(STAMP)
	$(BIN)/python -m pytest -m "$(QUICK)" $(ON_ALL_CORES)

test-more: export OMP_NUM_THREADS := 1
test-more: $(STAMP) $(GRPC_STAMP)  ## the slow tests, which `test` leaves out
	$(BIN)/python -m pytest -m "slow and not processes" $(WITH_SLOW_TESTS) $(ON_ALL_CORES)
	$(BIN)/python -m pytest -m "slow and processes" $(SLOW_FLEETS) tests/conformance $(FLEETS_ON_ALL_CORES) --no-loadscope-reorder
	.venv-grpc/bin/python -m pytest -m processes tests/processes/test_federation.py tests/processes/test_late_replies.py -k "not example" $(ON_ALL_CORES)

test-all: test  ## all tests
	$(MAKE) --no-print-directory test-more

fuzz: $(STAMP)  ## property tests with MORE=50 times as many examples as in `test`, newly drawn; ARGS="-k images" chooses
	MORE=$(or $(MORE),50) nice -n 19 $(BIN)/python -m pytest -m hypothesis --hypothesis-profile fuzz --timeout 0 $(ARGS)

lint: lint-style lint-types

lint-style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Tools that read the package without importing it get it as a wheel has it: with the folders that stand beside fedapps/ here.
package:
	rm -rf build/package
	mkdir -p build/package/fedapps
	ln -s ../../benchmarks build/package/
	ln -s $(addprefix ../../../,$(filter-out %/__pycache__,$(wildcard fedapps/*)) strategies clients tasks sim) build/package/fedapps/

lint-types: $(STAMP) package
	$(BIN)/mypy
	cd build/package && $(CURDIR)/$(BIN)/lint-imports --config $(CURDIR)/pyproject.toml

bench: $(STAMP)  ## repeat experiments: ONLY="lqr*,quickstart" chooses, ARGS=--list shows all, ARGS=--again repeats
	$(BIN)/python -m benchmarks run $(if $(ONLY),--only "$(ONLY)") $(ARGS)

gpu: $(STAMP)  ## check all tasks on a GPU and measure them, in minutes; says so where there is none; ARGS="--device cpu"
	$(BIN)/python -m benchmarks.gpu $(ARGS)

results: $(STAMP)  ## write the results of experiments into the pages
	$(BIN)/python -m benchmarks tables

docs: $(DOCS_STAMP) package  ## build the documentation site in build/site; a warning fails
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --strict --quiet

# What Flower's newest release asks for is installed with it; nothing holds its version back.
newest: $(STAMP)  ## the tests of `test` that run with several versions of Flower, with the newest that pip can find
	$(call beside,.venv-newest,--ignore-installed --no-deps flwr)
	$(BIN)/pip --python .venv-newest install --disable-pip-version-check --quiet --no-compile 'flwr[simulation]'
	.venv-newest/bin/python -c 'from importlib.metadata import version; print("flwr", version("flwr"))'
	.venv-newest/bin/python -m pytest -m "not slow and not processes" $(BOTH_FLOWERS) $(ON_ALL_CORES)
	.venv-newest/bin/python -m pytest -m "processes and not slow" tests/processes/test_federation.py

# The wheel is built from the source distribution, so both have the same files.
release: $(STAMP)  ## build and test what goes to the package index, and print the command that uploads it
	$(call beside,.venv-release,build twine)
	rm -rf dist fedapps.egg-info
	.venv-release/bin/python -m build --outdir dist
	.venv-release/bin/python -m twine check --strict dist/*
	WHEEL="$$(echo dist/*.whl)" $(BIN)/python -m pytest tests/conformance/test_wheel.py \
		tests/conformance/test_foreign_folders.py::test_an_installed_wheel_in_their_folder
	@grep -q "^## $$(ls dist/*.whl | cut -d- -f2) (20" CHANGELOG.md || echo "CHANGELOG.md: give the version its date"
	@echo "to upload: .venv-release/bin/python -m twine upload $$(echo dist/*)"

env: $(STAMP)

env-grpc: $(GRPC_STAMP)

config: $(STAMP)  ## write the defaults of all keys into pyproject.toml
	$(BIN)/python -m fedapps.config.keys

# pip would compile every module of every package, which takes as long as all the rest; Python compiles what is imported.
$(STAMP): pyproject.toml constraints.txt
	rm -rf .venv
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --disable-pip-version-check --quiet --no-compile -c constraints.txt -e '.[dev]'
	touch $(STAMP)

$(GRPC_STAMP): $(STAMP) constraints-grpc.txt
	$(call beside,.venv-grpc,-c constraints-grpc.txt flwr)
	touch $(GRPC_STAMP)

$(DOCS_STAMP): $(STAMP) constraints-docs.txt
	$(call beside,.venv-docs,-r constraints-docs.txt)
	touch $(DOCS_STAMP)

clean:
	rm -rf .venv .venv-grpc .venv-docs .venv-newest .venv-release runs build dist ./*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
