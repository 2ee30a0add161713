# Every target builds .venv if it is missing or older than the files that define it. `test` also builds .venv-http, which
# has a newer Flower, and `docs` builds .venv-docs with the documentation's tools; both take all other packages from .venv.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
BIN := .venv/bin
KEY := $(shell cat pyproject.toml constraints.txt | sha256sum | cut -c1-16)
STAMP := .venv/.built-$(KEY)
HTTP_KEY := $(shell cat pyproject.toml constraints.txt constraints-http.txt | sha256sum | cut -c1-16)
HTTP_STAMP := .venv-http/.built-$(HTTP_KEY)
DOCS_KEY := $(shell cat pyproject.toml constraints.txt constraints-docs.txt | sha256sum | cut -c1-16)
DOCS_STAMP := .venv-docs/.built-$(DOCS_KEY)
# Tests of behaviour that may differ between versions of Flower; they run with both.
BOTH_FLOWERS := tests/conformance tests/sim/test_inprocess.py
# The cores that this process may use; `taskset` or a container can reduce them.
CORES := $(shell nproc)
# The tests of a file share fixtures, so whole files are distributed to the workers; each worker has one thread.
ON_ALL_CORES := --numprocesses $(CORES) --dist loadfile
PACKAGES := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
SQUEEZENET = $(FEDAPPS_DATA)/weights/squeezenet1_1_imagenet_notop.npz
GLOVE = $(FEDAPPS_DATA)/text/glove/glove.6B.50d.subset.txt.xz
TOP_K_10 = fedavg(run.compression=top-k,run.compression-share=0.1)
TOP_K_1 = fedavg(run.compression=top-k,run.compression-share=0.01)

export FLWR_TELEMETRY_ENABLED := 0
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION := 1
export FLWR_DISABLE_UPDATE_CHECK := 1
# Tests start hundreds of processes; bytecode that is not written is compiled in each of them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run check test test-all test-more quick-tests fuzz lint lint-style lint-types bench docs env config clean
.DEFAULT_GOAL := run

run: $(STAMP)  ## ten devices learn from made-up texts alone, together and with private words; writes a report
	$(BIN)/python -m fedapps run quickstart

check: lint-style  ## lint, types, and the quick tests that start no process and need no data
	env -u FEDAPPS_DATA $(MAKE) --no-print-directory --jobs 2 lint-types quick-tests QUICK="not slow and not processes and not subprocesses"

# A fleet that gets no processor time loses its nodes. Therefore tests that start fleets run after all others.
test: lint-style $(HTTP_STAMP)  ## the gate, in eight minutes: lint, types, architecture and all tests but the slow ones
	$(MAKE) --no-print-directory --jobs 2 lint-types quick-tests
	.venv-http/bin/python -m pytest -m "not slow and not processes" $(BOTH_FLOWERS) $(ON_ALL_CORES)
	$(BIN)/python -m pytest -m "processes and not slow" tests/processes
	.venv-http/bin/python -m pytest -m "processes and not slow" tests/processes/test_http.py

QUICK := not slow and not processes
quick-tests: export OMP_NUM_THREADS := 1
quick-tests: $(STAMP)
	$(BIN)/python -m pytest -m "$(QUICK)" $(ON_ALL_CORES)

test-more: export OMP_NUM_THREADS := 1
test-more: $(STAMP) $(HTTP_STAMP)  ## the slow tests, which `test` leaves out
	$(BIN)/python -m pytest -m "slow and not processes" $(ON_ALL_CORES)
	.venv-http/bin/python -m pytest -m "slow and not processes" $(BOTH_FLOWERS) $(ON_ALL_CORES)
	$(BIN)/python -m pytest -m "slow and processes" tests/processes

test-all: test  ## all tests
	$(MAKE) --no-print-directory test-more

fuzz: $(STAMP)  ## property tests with fifty times as many examples as in `test`, newly drawn
	nice -n 19 $(BIN)/python -m pytest -m hypothesis --hypothesis-profile fuzz --timeout 0

lint: lint-style lint-types

lint-style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The tools read the package as a wheel has it: with the folders that stand beside fedapps/ here in it.
lint-types: $(STAMP)
	rm -rf build/package
	mkdir -p build/package/fedapps
	ln -s ../../benchmarks build/package/
	ln -s $(addprefix ../../../,$(filter-out %/__pycache__,$(wildcard fedapps/*)) strategies clients tasks sim) build/package/fedapps/
	$(BIN)/mypy
	cd build/package && $(CURDIR)/$(BIN)/lint-imports --config $(CURDIR)/pyproject.toml

VLN = --set data-dir=$(FEDAPPS_DATA)/vln --output-dir runs/fedvln
# A snapshot in the newest comparison of a recipe: recipe, run, method, file. {method} and {seed} are those of each run.
SNAPSHOT = "$$(ls -dt runs/fedvln/compare-fedvln-$(1)-* | head -1)/$(2)/checkpoints/$(3)/$(4).safetensors"
SPEAKER = $(call SNAPSHOT,speaker,centralized-0,centralized,best)

bench: $(STAMP)  ## hours: fleets beside Flower's own and under faults, the papers' tables at full size
	$(BIN)/python -m benchmarks.overhead --nodes 4 --rounds 10 --megabytes 0.01,10 --pairs 3
	$(BIN)/python -m benchmarks.worker_start --pairs 10
	$(BIN)/python -m benchmarks.soak --nodes 20 --rounds 30
	rm -f bench.json
	$(BIN)/python -m benchmarks.engine --clients 1000 --widths 100 --pairs 5 --goal "0.6 beyond the loop" --json bench.json
	$(BIN)/python -m benchmarks.engine --clients 100 --widths 2530 --pairs 3 --goal "60 per client" --json bench.json
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.aggregation --megabytes 80 --pairs 5 --goal "ratio 0.94" --json bench.json
	$(BIN)/python -m benchmarks.aggregation --megabytes 80 --pairs 5 --goal "ratio 0.58" --json bench.json
	$(BIN)/python -m benchmarks.growth --nodes 1000 10000 100000 --parameters 10000 100000 1000000 10000000 --rounds 10000 \
		--plot docs/growth.png
	$(BIN)/python -m benchmarks.node_batch --recipe lqr --set methods=sfl --set rounds=4 --node-batch 3 --pairs 5 --goal "ratio 0.25" --json bench.json
	$(BIN)/python -m benchmarks.node_batch --recipe lqr --set num-nodes=20 --set methods=sfl --set rounds=4 --node-batch 20 --pairs 5 --goal "ratio 0.25" --json bench.json
	$(BIN)/python -m benchmarks.node_batch --recipe social-methods --set methods=fedavg --set num-nodes=12 --set rounds=10 \
		--set plateau-patience=0 --set "social.participants=a;b;c;d;e;f;g;h;i;j;k;l" --set social.source=simulated --pairs 3 --goal "ratio 0.56" --json bench.json
	$(BIN)/python -m fedapps compare fedapps/recipes/quickstart.toml --seeds 5
	$(BIN)/python -m fedapps compare fedapps/recipes/quickstart.toml --seeds 5 --set text.alpha=1
	$(BIN)/python -m fedapps compare fedapps/recipes/lqr.toml --methods "local,cloud,sfl,spfl,spfl(rate-scale=0.2),apfl,apfl(power=0.5)" --seeds 10
	$(BIN)/python -m fedapps compare fedapps/recipes/lane-swap.toml --seeds 5
	$(BIN)/python -m fedapps compare fedapps/recipes/lane-swap.toml --methods "sfl,spfl,spfl(rate-scale=0.2),apfl" --seeds 5 \
		--set driving.sessions-train=5 --set collect-after=0 --set rounds=30 --set evaluate-every=30
	$(BIN)/python -m fedapps tune fedapps/recipes/lane-swap.toml --methods local,fedavg,spfl,apfl --trials 6 --first-seed 100 \
		--set-trials collect-after=0
	$(BIN)/python -m fedapps compare fedapps/recipes/lane-swap-tuned.toml --seeds 3
	$(BIN)/python -m fedapps compare fedapps/recipes/three-cars.toml --seeds 5
ifdef FEDAPPS_DATA
	$(BIN)/python -m benchmarks.node_batch --recipe social-methods --set methods=fedavg --set num-nodes=12 --set rounds=20 \
		--set plateau-patience=0 --set "social.participants=a;b;c;d;e;f;g;h;i;j;k;l" --pairs 3 --goal "ratio 0.56" --json bench.json \
		--set data-dir=$(FEDAPPS_DATA)/socnav1
	$(BIN)/python -m fedapps compare fedapps/recipes/fedvln-r2r.toml --seeds 3 --set rounds=100 --set data-dir=$(FEDAPPS_DATA)/vln
	$(BIN)/python -m fedapps compare fedapps/recipes/fedvln-ablation.toml --seeds 1 $(VLN)
	$(BIN)/python -m fedapps compare fedapps/recipes/fedvln-ablation.toml --seeds 1 $(VLN) --vary fraction-train=0.033,0.066,0.13,0.2
	$(BIN)/python -m fedapps compare fedapps/recipes/fedvln-r2r.toml --methods fedavg --seeds 1 $(VLN) --set epochs=12 --set rounds=75 --set evaluate-every=5
	$(BIN)/python -m fedapps compare fedapps/recipes/fedvln-r2r.toml --seeds 3 $(VLN) --set evaluate-every=10
	$(BIN)/python -m fedapps compare fedapps/recipes/fedvln-speaker.toml --methods fedavg --seeds 1 $(VLN) --set rounds=60 --set evaluate-every=10
	$(BIN)/python -m fedapps compare fedapps/recipes/fedvln-speaker.toml --methods fedavg --seeds 1 $(VLN) \
		--set rounds=150 --set epochs=5 --set evaluate-every=10
	$(BIN)/python -m fedapps compare fedapps/recipes/fedvln-speaker.toml --methods centralized --seeds 1 $(VLN) \
		--set rounds=150 --set centralized.steps=83 --set evaluate-every=10
	$(BIN)/python -m fedapps compare fedapps/recipes/fedvln-preexploration.toml --seeds 3 $(VLN) --methods untrained,env-based,fed-lan,fed-lan-seen \
		--set vln.agent-file=$(call SNAPSHOT,r2r,fedavg-{seed},fedavg,best) --set vln.speaker-file=$(SPEAKER)
	$(BIN)/python -m fedapps compare fedapps/recipes/fedvln-augmented.toml --seeds 3 $(VLN) \
		--set vln.agent-file=$(call SNAPSHOT,r2r,{method}-{seed},{method},best) --set vln.speaker-file=$(SPEAKER)
	$(BIN)/python -m fedapps compare fedapps/recipes/fedvln-preexploration.toml --seeds 3 $(VLN) --set target=0.495 \
		--set vln.agent-file=$(call SNAPSHOT,augmented,fedavg-0,fedavg,round-000150) --set vln.speaker-file=$(SPEAKER)
	$(BIN)/python -m fedapps compare fedapps/recipes/fedvln-preexploration.toml --seeds 3 $(VLN) --set target=0.495 \
		--set vln.agent-file=$(call SNAPSHOT,augmented,fedavg-{seed},fedavg,round-000150) --set vln.speaker-file=$(SPEAKER)
	$(BIN)/python -m fedapps compare fedapps/recipes/fedvln-augmented.toml --methods fedavg --seeds 1 --first-seed 1 $(VLN) \
		--set vln.augmented-weight=0.2 --set vln.agent-file=$(call SNAPSHOT,r2r,fedavg-{seed},fedavg,best) --set vln.speaker-file=$(SPEAKER)
	$(BIN)/python -m fedapps compare fedapps/recipes/fedvln-r2r.toml --seeds 2 --first-seed 1 $(VLN) --set rounds=150 \
		--set vln.feature-dropout=0.4 --set vln.agent-file=$(call SNAPSHOT,r2r,{method}-{seed},{method},best)
	$(BIN)/python -m fedapps audit fedapps/recipes/fedvln-r2r.toml --batch-sizes 1,2,4,8,16,64 --sentences 64 \
		--set data-dir=$(FEDAPPS_DATA)/vln
	$(BIN)/python -m benchmarks.text_step --data-dir $(FEDAPPS_DATA)/text/agnews --goal 0.028 --json bench.json
	$(BIN)/python -m benchmarks.text_step --data-dir $(FEDAPPS_DATA)/text/sst2 --dataset sst2 --json bench.json
	$(BIN)/python -m fedapps compare fedapps/recipes/human-trials.toml --seeds 5 --set data-dir=$(FEDAPPS_DATA)/driving
	$(BIN)/python -m fedapps tune fedapps/recipes/human-trials.toml --methods local,fedavg,spfl,apfl --trials 8 \
		--set data-dir=$(FEDAPPS_DATA)/driving
	$(BIN)/python -m fedapps compare fedapps/recipes/human-trials-tuned.toml --seeds 10 --set data-dir=$(FEDAPPS_DATA)/driving
	$(BIN)/python -m fedapps compare fedapps/recipes/social-centralised.toml --seeds 3 --set data-dir=$(FEDAPPS_DATA)/socnav1
	$(BIN)/python -m fedapps compare fedapps/recipes/social-methods.toml --seeds 3 --set data-dir=$(FEDAPPS_DATA)/socnav1
	$(BIN)/python -m fedapps compare fedapps/recipes/social-sizes.toml --set data-dir=$(FEDAPPS_DATA)/socnav1
	$(BIN)/python -m fedapps compare fedapps/recipes/social-grid.toml --seeds 3 --set data-dir=$(FEDAPPS_DATA)/socnav1
	$(BIN)/python -m fedapps compare fedapps/recipes/social-lambda.toml --seeds 3 --set data-dir=$(FEDAPPS_DATA)/socnav1
	$(BIN)/python -m fedapps compare fedapps/recipes/social-relational.toml --seeds 5 --set data-dir=$(FEDAPPS_DATA)/socnav1
	$(BIN)/python -m fedapps tune fedapps/recipes/social-elastic.toml --trials 8 --set data-dir=$(FEDAPPS_DATA)/socnav1 \
		--methods "fedavg,fedprox,fedcurv,ewc,elastic-transfer,elastic-transfer(own-past=0,others-now=0)"
	$(BIN)/python -m fedapps tune fedapps/recipes/social-relational.toml --trials 8 --set data-dir=$(FEDAPPS_DATA)/socnav1
	$(BIN)/python -m fedapps compare fedapps/recipes/social-tuned.toml --seeds 10 --set data-dir=$(FEDAPPS_DATA)/socnav1
	$(BIN)/python -m fedapps compare fedapps/recipes/social-tuned.toml --methods "fedavg(run.learning-rate=0.001029)" --seeds 6 \
		--set data-dir=$(FEDAPPS_DATA)/socnav1
	$(BIN)/python -m fedapps compare fedapps/recipes/social-relational-tuned.toml --seeds 10 --set data-dir=$(FEDAPPS_DATA)/socnav1
	$(BIN)/python -m fedapps compare fedapps/recipes/fedvocab-small.toml --seeds 3 --set data-dir=$(FEDAPPS_DATA)/text/agnews \
		--set text.glove=$(GLOVE) --set text.vocabulary=file
	$(BIN)/python -m fedapps compare fedapps/recipes/fedvocab-small.toml --seeds 3 --set data-dir=$(FEDAPPS_DATA)/text/sst2 \
		--set text.dataset=sst2 --set target=0.7 --set text.glove=$(GLOVE) --set text.vocabulary=file
	$(BIN)/python -m fedapps compare fedapps/recipes/fedvocab-small.toml --methods "fedavg,fedvocab,fedvocab(adapt-epochs=0)" --seeds 1 \
		--vary text.alpha=1,100 --set rounds=20 --set evaluate-every=20 --set data-dir=$(FEDAPPS_DATA)/text/agnews --set text.glove=$(GLOVE) --set text.vocabulary=file
	$(BIN)/python -m fedapps compare fedapps/recipes/fedvocab-small.toml --seeds 2 --set data-dir=$(FEDAPPS_DATA)/text/agnews \
		--methods "fedavg,fedavg(run.compression=bf16),fedavg(run.compression=int8),$(TOP_K_10),$(TOP_K_1)" \
		--set text.glove=$(GLOVE) --set text.vocabulary=file
	$(BIN)/python -m fedapps compare fedapps/recipes/fedvocab-variants.toml --seeds 5 --set data-dir=$(FEDAPPS_DATA)/text/agnews \
		--set text.glove=$(GLOVE) --set text.vocabulary=file
	$(BIN)/python -m fedapps compare fedapps/recipes/fedvocab-variants.toml --seeds 3 --set data-dir=$(FEDAPPS_DATA)/text/sst2 \
		--set text.dataset=sst2 --set target=0.7 --set text.glove=$(GLOVE) --set text.vocabulary=file
	$(BIN)/python -m fedapps tune fedapps/recipes/fedvocab-variants.toml --trials 6 \
		--methods "local,fedavg(run.epochs=2),fedavg(run.epochs=2,logit-adjustment=1),fedvocab,fedvocab(stateless=true,logit-adjustment=1)" \
		--set data-dir=$(FEDAPPS_DATA)/text/agnews --set text.glove=$(GLOVE) --set text.vocabulary=file
	$(BIN)/python -m fedapps compare fedapps/recipes/fedvocab-tuned.toml --seeds 4 --set data-dir=$(FEDAPPS_DATA)/text/agnews \
		--set text.glove=$(GLOVE) --set text.vocabulary=file
	$(BIN)/python -m fedapps compare fedapps/recipes/fedvocab-variants.toml --methods fedvocab --seeds 2 \
		--vary text.unknown=drawn,mean,zeros --set data-dir=$(FEDAPPS_DATA)/text/agnews --set text.glove=$(GLOVE) --set text.vocabulary=file
	$(BIN)/python -m fedapps audit fedapps/recipes/fedvocab-small.toml --attack subspace,sparse,rows --batch-sizes 1,2,4,8,16,64 \
		--set data-dir=$(FEDAPPS_DATA)/text/agnews --set text.glove=$(GLOVE)
	$(BIN)/python -m fedapps audit fedapps/recipes/fedvocab-small.toml --attack subspace,sparse,sparse-prior,frequency \
		--methods fedvocab --attackers public,foreign --on update --batch-sizes 1,4 --sentences 64 --set compression=int8 \
		--set data-dir=$(FEDAPPS_DATA)/text/agnews --set text.glove=$(GLOVE)
	$(BIN)/python -m fedapps audit fedapps/recipes/fedvocab-small.toml --attack subspace,rows --batch-sizes 1,2,4,8,16,64 \
		--set data-dir=$(FEDAPPS_DATA)/text/agnews --set text.embedding-width=300
	$(BIN)/python -m fedapps audit fedapps/recipes/fedvocab-small.toml --attack dlg,tag --on gradient --batch-sizes 1,2,4 \
		--sentences 8 --restarts 2 --set data-dir=$(FEDAPPS_DATA)/text/agnews --set text.glove=$(GLOVE)
	$(BIN)/python -m fedapps audit fedapps/recipes/fedvocab-small.toml --attack dlg --on gradient --batch-sizes 8,16,64 \
		--methods fedvocab --sentences 64 --set data-dir=$(FEDAPPS_DATA)/text/agnews --set text.glove=$(GLOVE)
	$(BIN)/python -m fedapps audit fedapps/recipes/fedvocab-small.toml --attack dlg,tag --on gradient --batch-sizes 1 \
		--sentences 4 --restarts 2 --set data-dir=$(FEDAPPS_DATA)/text/agnews --set text.embedding-width=300
	$(BIN)/python -m benchmarks.defences --recipe fedvocab-small --seeds 3 --jobs 0 --json defences.json \
		--set rounds=20 --set evaluate-every=20 --set data-dir=$(FEDAPPS_DATA)/text/agnews --set text.glove=$(GLOVE)
	$(BIN)/python -m benchmarks.defences --recipe fedvocab-small --accuracies defences.json --per-update 1 --plot docs/defences.png \
		--set rounds=20 --set evaluate-every=20 --set data-dir=$(FEDAPPS_DATA)/text/agnews --set text.glove=$(GLOVE)
	$(BIN)/python -m fedapps compare fedapps/recipes/fedvpr-nordland.toml --seeds 3 --set data-dir=$(FEDAPPS_DATA)/vpr/nordland \
		--set vpr.weights=$(SQUEEZENET)
	$(BIN)/python -m fedapps compare fedapps/recipes/fedvpr-nordland.toml --seeds 2 --set data-dir=$(FEDAPPS_DATA)/vpr/nordland \
		--methods "fedavg,fedavg(run.compression=bf16),fedavg(run.compression=int8),$(TOP_K_10),$(TOP_K_1)" \
		--set vpr.weights=$(SQUEEZENET) --set vpr.height=32 --set vpr.width=64 --set evaluate-every=15
	$(BIN)/python -m fedapps tune fedapps/recipes/fedvpr-nordland.toml --methods fedavg,fedadam,fedadagrad,fedvc --trials 5 \
		--set data-dir=$(FEDAPPS_DATA)/vpr/nordland --set vpr.weights=$(SQUEEZENET) --set vpr.height=32 --set vpr.width=64 \
		--set evaluate-every=15 --set-trials vpr.validation-clients=4 --set-trials num-nodes=20
	$(BIN)/python -m fedapps compare fedapps/recipes/fedvpr-nordland-tuned.toml --seeds 3 \
		--set data-dir=$(FEDAPPS_DATA)/vpr/nordland --set vpr.weights=$(SQUEEZENET)
	$(BIN)/python -m fedapps compare fedapps/recipes/fedvpr-streets.toml --seeds 3 --set vpr.weights=$(SQUEEZENET)
	$(BIN)/python -m fedapps compare fedapps/recipes/fedvpr-streets.toml --methods "fedavg,fedvc,fedvc(draws=without-replacement)" \
		--seeds 3 --set evaluate-every=20 --set vpr.weights=$(SQUEEZENET)
	$(BIN)/python -m fedapps compare fedapps/recipes/fedvpr-splits.toml --seeds 2 --set vpr.weights=$(SQUEEZENET)
	for recipe in optimizers hierarchy steps augmentation mining pooling resolution; do \
		$(BIN)/python -m fedapps compare fedapps/recipes/fedvpr-$$recipe.toml --seeds 1 --set vpr.weights=$(SQUEEZENET); done
	$(BIN)/python -m benchmarks.byzantine --recipe fedvocab-small --seeds 3 --jobs 0 --set data-dir=$(FEDAPPS_DATA)/text/agnews \
		--set text.glove=$(GLOVE) --set text.vocabulary=file --set num-nodes=12 --set fraction-train=1.0 \
		--set weighting=uniform --set steps=8 --set rounds=15 --set evaluate-every=15
	$(BIN)/python -m benchmarks.byzantine --recipe social-methods --seeds 3 --jobs 0 --set data-dir=$(FEDAPPS_DATA)/socnav1 \
		--set num-nodes=12 --set "social.participants=a;b;c;d;e;f;g;h;i;j;k;l" --set rounds=20 --set evaluate-every=20
else
	@echo "experiments on recorded data skipped: set FEDAPPS_DATA to the folder of the published datasets"
endif

docs: $(DOCS_STAMP)  ## build the documentation site in build/site; a warning fails
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --strict --quiet

env: $(STAMP)

config: $(STAMP)  ## write the defaults of all keys into pyproject.toml
	$(BIN)/python -m fedapps.config.pyproject_keys

# pip would compile every module of every package, which takes as long as all the rest; Python compiles what is imported.
$(STAMP): pyproject.toml constraints.txt
	rm -rf .venv
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --disable-pip-version-check --quiet --no-compile -c constraints.txt -e '.[dev]'
	touch $(STAMP)

$(HTTP_STAMP): $(STAMP) constraints-http.txt
	rm -rf .venv-http
	$(BIN)/python -m venv --without-pip .venv-http
	printf '%s\n' "$$($(BIN)/python $(PACKAGES))" "$(CURDIR)" > "$$(.venv-http/bin/python $(PACKAGES))/after.pth"
	$(BIN)/pip --python .venv-http install --disable-pip-version-check --quiet --no-compile -c constraints-http.txt flwr
	touch $(HTTP_STAMP)

$(DOCS_STAMP): $(STAMP) constraints-docs.txt
	rm -rf .venv-docs
	$(BIN)/python -m venv --without-pip .venv-docs
	printf '%s\n' "$$($(BIN)/python $(PACKAGES))" "$(CURDIR)" > "$$(.venv-docs/bin/python $(PACKAGES))/after.pth"
	$(BIN)/pip --python .venv-docs install --disable-pip-version-check --quiet --no-compile -r constraints-docs.txt
	touch $(DOCS_STAMP)

clean:
	rm -rf .venv .venv-http .venv-docs runs build ./*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
