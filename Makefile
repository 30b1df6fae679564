# Every task of this repository. `make help` lists them.
PYTHON ?= python3
RIGS ?=
HOROVOD ?=
RABIT ?=
PREFIX ?= target/capi
DESTDIR ?=
STRIP ?=
ARGS ?=

export PATH := $(PATH):$(HOME)/.cargo/bin
export CARGO_TARGET_DIR := $(CURDIR)/target
export PIP_DISABLE_PIP_VERSION_CHECK := 1

BINARY := target/release/herringbone
VENV := .venv
IN_VENV := "$(CURDIR)/$(VENV)/bin/python"
WHEELS := target/wheels
TESTS := target/tests
TESTED := target/debug/herringbone
IN_TESTS := "$(CURDIR)/$(TESTS)/bin/python"
FRAMEWORKS := target/frameworks
EDITORS := target/editors
SITE := target/site-tools
CHECKERS := target/deploy-tools
PACKAGERS := target/package-tools
BROWSER := target/browser-tools
WHEEL_SOURCES = Cargo.toml Cargo.lock python/README.md $(shell find crates python -type f \
	\( -name '*.rs' -o -name '*.py' -o -name '*.pyi' -o -name '*.pth' -o -name '*.toml' -o -name py.typed -o -path '*/assets/*' \
	-o -path 'crates/cli/models/*' \) \
	-not -path '*/tests/*' -not -path 'crates/capi/*' -not -path 'crates/nccl-plugin/*')

SAY_WHOSE_TORCH = test -e $(VENV)/requirements.stamp || printf '%s\n' \
	"If $(PYTHON) has $$(grep ^torch requirements.txt), its torch is used; else torch is downloaded: 2 to 10 minutes more, and" \
	"6 GB, or 0.2 GB where pip is configured for an index with torch's builds for CPUs."

.DEFAULT_GOAL := help
.PHONY: help setup program capi nccl-plugin demo plan check-plan tests-plan check test full ci features decoders fuzz deny semver msrv soak layouts shards instructions bench conformance conformance-horovod conformance-rabit faults leaks rabit-soak shards-soak rabit-mpi sanitize frameworks editors lab-links codec-rates compression-links compression-study named-figures table-figures rabit-figures shards-figures timeline-figures validate-simulator regret predicted-ports predicted-steps launchers matrix gpu verify-large docs reference figures \
	deploy-check packages browser browser-setup fmt clean

help: ## This list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 22

setup: plan $(VENV)/wheel.stamp ## .venv with torch and the wheel, which has the program, too; again: what changed

program: $(BINARY) ## target/release/herringbone: the program by itself, for machines without Python

capi: | rust ## libherringbone.so for C and C++, its headers and its pkg-config file, below PREFIX, which is target/capi
	cargo build --release --package herringbone-capi
	@$(PYTHON) tools/install_capi.py target/release/libherringbone_capi.so $(PREFIX) $(if $(DESTDIR),--destdir $(DESTDIR)) $(if $(STRIP),--strip)

nccl-plugin: | rust ## libnccl-net-herringbone.so, which NCCL loads, below PREFIX, which is target/capi
	cargo build --release --package herringbone-nccl-plugin
	@install -D -m 644 target/release/libherringbone_nccl_plugin.so $(DESTDIR)$(abspath $(PREFIX))/lib/libnccl-net-herringbone.so
	@echo "To use it: export NCCL_NET_PLUGIN=herringbone LD_LIBRARY_PATH=$(abspath $(PREFIX))/lib"

demo: plan $(VENV)/wheel.stamp $(VENV)/demo.stamp ## Train beside Gloo, on this host and over limited links, draw demo-report.svg
	@$(IN_VENV) demo/run.py --report demo-report.svg

plan:
	@test -e $(VENV)/wheel.stamp || echo "Set-up: about 5 minutes on two cores, to compile a wheel as users have it."
	@$(SAY_WHOSE_TORCH)

check-plan:
	@$(SAY_WHOSE_TORCH)

tests-plan:
	@test -e $(TESTS)/wheel.stamp || echo "The build of what is tested: about 8 minutes on two cores."
	@$(SAY_WHOSE_TORCH)

check: check-plan $(TESTS)/requirements.stamp | rust ## Format, lints, types, and the tests of what decides: the loop of every day
	@$(IN_TESTS) tests/run.py check $(ARGS)

test: tests-plan $(TESTS)/wheel.stamp $(TESTED) ## What is checked for every change, Rust and Python: ten minutes on two cores, after the build
	@$(IN_TESTS) tests/run.py test $(ARGS)

full: tests-plan $(TESTS)/wheel.stamp $(TESTED) ## That, and everything else that can be checked here: some hours, downloads, root
	@$(IN_TESTS) tests/run.py full $(ARGS)

ci: tests-plan $(TESTS)/wheel.stamp $(TESTED) ## What continuous integration runs: the tests, and of `full` what needs only this machine
	@$(IN_TESTS) tests/run.py ci $(ARGS)

features: | rust ## Compile the crates with each of their features off, and test them with all of them off: ten minutes
	@$(PYTHON) tests/crates.py features $(ARGS)

decoders: | rust ## Give each decoder of foreign bytes 20,000 damaged words; ARGS="--cases 1000000": more
	@$(PYTHON) tests/crates.py decoders $(ARGS)

fuzz: | rust ## Fuzz them for a minute each, with nightly and cargo-fuzz; ARGS="--seconds 600 --only control": in part
	@$(PYTHON) tests/crates.py fuzz $(ARGS)

deny: | rust ## Licences, duplicates, sources and advisories of all dependencies, by deny.toml and cargo-deny
	@$(PYTHON) tests/crates.py deny $(ARGS)

semver: | rust ## Whether the crates keep what their version promises, with cargo-semver-checks; ARGS="--since REVISION"
	@$(PYTHON) tests/crates.py semver $(ARGS)

msrv: | rust ## Compile with the oldest compiler that Cargo.toml names, if rustup has it
	@$(PYTHON) tests/crates.py msrv $(ARGS)

soak: | rust ## Simulate 10,000 clusters in trouble, to record/soak.md; ARGS="--seed 7": one, with its events
	@HERRINGBONE_LOG=$${HERRINGBONE_LOG:-off} cargo bench --quiet --package herringbone --bench simulator \
		--features simulator --profile soak -- $(ARGS)

layouts: | rust ## Simulate all algorithms on all layouts of ranks on hosts, and find what never ends; ARGS="--seeds 4..8": others
	@cargo bench --quiet --package herringbone-core --bench layouts --profile soak -- $(ARGS)

shards: | rust ## Prove the sums of up to 16 shards for all 65,535 cuts into runs; ARGS="--most 12": of fewer shards
	@cargo bench --quiet --package herringbone-core --bench shards --profile soak -- $(ARGS)

# With all packages of a release, so that its crates are compiled once for both.
instructions: | rust ## Count the instructions of all-reduces in a release; ARGS=--update: keep these counts
	@cargo bench --quiet --package herringbone --package herringbone-cli --package herringbone-python --bench instructions -- $(ARGS)

bench: setup program ## Time all-reduce on this machine; RIGS=folder: beside other libraries, to record/
ifeq ($(RIGS),)
	@$(BINARY) bench --processes 4
	@$(BINARY) bench --processes 4 --reducers 2
else
	@$(IN_VENV) bench/run.py --rigs $(RIGS) $(ARGS)
endif

conformance: $(TESTS)/wheel.stamp ## torch's own suite on Herringbone, beside Gloo; ARGS=--select=NAME: in part. Table to record/
	@$(IN_TESTS) tests/conformance/run.py --record record/conformance.md $(ARGS)

conformance-horovod: $(TESTS)/wheel.stamp ## Horovod's own tests from HOROVOD=folder, its sources, with the import replaced. Table to docs/
	@test -n "$(HOROVOD)" || { echo "HOROVOD=folder: where are Horovod's sources?"; exit 1; }
	@$(IN_TESTS) tests/conformance_horovod/run.py $(HOROVOD) --record docs/horovod-conformance.md $(ARGS)

conformance-rabit: $(TESTS)/requirements.stamp $(TESTED) ## RABIT's own Python module and programs from RABIT=folder, its sources, over libherringbone.so
	@$(IN_TESTS) tests/conformance_rabit/run.py $(RABIT)

faults: $(TESTS)/wheel.stamp ## Kill, stop, cut off and damage what jobs consist of, beside Gloo: a quarter of an hour. Table to docs/
	@$(IN_TESTS) tests/faults/run.py --record record/faults.json --page docs/faults.md $(ARGS)

leaks: $(TESTS)/wheel.stamp ## Call 100,000 times, make 1,000 groups, kill 200 workers, and count what is left: 3 minutes. Table to record/
	@$(IN_TESTS) tests/leaks/run.py --record record/leaks.md $(ARGS)

rabit-soak: $(TESTS)/wheel.stamp ## Kill processes of programs that continue where they were, simulated and real: ten minutes. Table to record/
	@$(IN_TESTS) tests/rabit_soak/run.py --record record/rabit.md $(ARGS)

shards-soak: $(TESTS)/wheel.stamp ## Kill workers and reducers of trainings by shards, and compare every step with one worker's: six minutes. Table to record/
	@$(IN_TESTS) tests/shards_soak/run.py --record record/shards-soak.md $(ARGS)

rabit-mpi: $(TESTED) ## Compile programs of RABIT's interface over each MPI that is here, and compare them with libherringbone: a minute
	@$(PYTHON) tests/rabit_mpi/run.py $(ARGS)

sanitize: | rust ## Tests under the address and thread sanitizers and Miri, with nightly: half an hour. Table to record/
	@$(PYTHON) tests/sanitize/run.py --record record/sanitize.md $(ARGS)

frameworks: $(FRAMEWORKS)/requirements.stamp ## Lightning, Accelerate and Trainer over Herringbone, beside Gloo. Table to record/
	@$(FRAMEWORKS)/bin/python tests/frameworks/run.py --record record/frameworks.md $(ARGS)

editors: $(EDITORS)/requirements.stamp ## What an editor shows of programs: types, completions and texts, by pyright (0.1 GB, once)
	@$(EDITORS)/bin/python tests/editors/run.py $(ARGS)

validate-simulator: setup program ## Simulated times beside measured ones, over limited links: five minutes. Table to record/
	@$(PYTHON) bench/simulator.py --record record/simulator.md $(ARGS)

regret: setup program ## What the plan's choices cost beside the best candidate, over rates and latencies, as root: an hour. Table to record/
	@$(PYTHON) bench/regret.py --record record/regret.md $(ARGS)

predicted-ports: setup program ## Predicted times beside measured ones between hosts with unlike ports, as root: five minutes. Table to record/
	@$(PYTHON) bench/predicted_ports.py --record record/predicted-ports.md $(ARGS)

predicted-steps: setup program ## Predicted steps of trainings beside measured ones, on one host and over four, as root: five minutes. Table to record/
	@$(IN_VENV) bench/predicted_steps.py --record record/predicted-steps.md $(ARGS)

lab-links: setup ## Ring, star, radix and trees over links like a p3.16xlarge's, as root: ten minutes. Table and picture to record/
	@$(IN_VENV) bench/lab_links.py $(ARGS)

compression-links: setup ## Every codec beside none between hosts with links of 100 Mbit/s, as root: five minutes. Table to record/
	@$(IN_VENV) bench/compression_links.py $(ARGS)

codec-rates: | rust ## How fast one core encodes and decodes, with each codec: two minutes with the build. Table to record/
	@$(PYTHON) bench/codec_rates.py $(ARGS)

compression-study: setup $(VENV)/demo.stamp $(VENV)/bench.stamp ## Train with every codec, with feedback and without, and at several learning rates: half an hour. Tables and pictures to docs/
	@$(IN_VENV) bench/compression.py $(ARGS)

named-figures: setup ## Operations with names: beside all-reduces one by one, and training beside DDP: a minute. Table to record/
	@$(IN_VENV) bench/named.py --record record/named.md $(ARGS)

table-figures: setup ## Tables on servers: beside torch's RPC and reducers, and bounded beside sync: a minute. RECORD=file: the table goes there, too
	@$(IN_VENV) bench/table_figures.py $(if $(RECORD),--record $(RECORD)) $(ARGS)

rabit-figures: setup ## What recovery costs: calls, checkpoints, a process that comes back: a minute. RECORD=file: the tables go there, too
	@$(IN_VENV) bench/rabit_figures.py $(if $(RECORD),--record $(RECORD)) $(ARGS)

shards-figures: setup ## A step by shards beside DDP with gradient accumulation: a minute. RECORD=file: the table goes there, too
	@$(IN_VENV) bench/shards_figures.py $(if $(RECORD),--record $(RECORD)) $(ARGS)

timeline-figures: setup ## What a timeline costs: all-reduces with and without one, in turns: a minute. RECORD=file: the table goes there, too
	@$(IN_VENV) bench/timeline_figures.py $(if $(RECORD),--record $(RECORD)) $(ARGS)

launchers: $(TESTS)/wheel.stamp ## A numpy program by real launchers: torchrun, Open MPI, MPICH, Slurm; what is missing is skipped. Table to record/
	@$(IN_TESTS) tests/launchers/run.py --record record/launchers.md $(ARGS)

matrix: setup ## Features with several versions of torch (14 GB below target/matrix), one wheel. Table to record/
	@$(IN_VENV) tests/matrix/run.py --record record/matrix.md $(ARGS)

gpu: setup ## Check and time tensors on a GPU and the plug-in for NCCL: ten minutes. RECORD=file: the table goes there, too; exit code 77: no GPU
	@$(IN_VENV) tests/gpu/run.py $(if $(RECORD),--record $(RECORD)) $(ARGS)

docs: $(SITE)/requirements.stamp ## The documentation as a site below target/site; links and anchors are checked
	@$(PYTHON) tools/pages.py target/site-source
	@NO_MKDOCS_2_WARNING=1 $(SITE)/bin/python -m mkdocs build --strict --config-file mkdocs.yml
	@echo "target/site/index.html"

reference: $(TESTED) ## Write docs/reference, docs/pictures and the profiles of models again, after a change of commands, docstrings, schedules or layers
	@$(PYTHON) tools/reference.py $(TESTED) docs/reference
	@$(PYTHON) tools/pictures.py $(TESTED) docs/pictures
	@$(PYTHON) tools/model_profiles.py crates/cli/models

figures: $(TESTED) ## Write docs/figures again: what articles say, beside what schedules and simulations come to: some minutes
	@$(TESTED) figures docs/figures $(ARGS)

deploy-check: $(CHECKERS)/requirements.stamp ## Check deploy/ with the schemas of Kubernetes, hadolint and shellcheck
	@$(CHECKERS)/bin/python tests/deploy/check.py

packages: $(PACKAGERS)/requirements.stamp | rust ## Wheel, sdist and crates as a release would publish them, and tried. Table to record/
	@$(PACKAGERS)/bin/python tests/packages/run.py --record record/packages.md $(ARGS)

browser-setup: $(BROWSER)/requirements.stamp ## What `make browser` needs, 0.3 GB: Chromium and npm, as root with apt, playwright, axe-core, speedscope
	@command -v chromium npm >/dev/null || apt-get install --yes chromium npm
	npm install --prefix target/browser-npm --no-audit --no-fund --ignore-scripts --silent $$(grep -v '^#' tests/browser/packages.txt)

browser: $(TESTS)/wheel.stamp $(TESTED) ## The live page in headless Chromium, with recorded jobs and with a real one; screenshots to target/browser
	@$(IN_TESTS) tests/browser/run.py $(ARGS)

verify-large: $(BINARY) ## Prove schedules of 4,096 and 16,384 ranks: each in 10 s of one core and 1 GiB
	@$(PYTHON) tools/verify_large.py $(BINARY)

fmt: $(TESTS)/requirements.stamp ## Format the sources, Rust and Python
	cargo fmt --all
	$(IN_TESTS) -m ruff format .

clean: ## Remove everything that was made
	rm -rf target $(VENV) demo-report.svg

# Cargo knows what changed, so it is always asked. Naming both packages gives their dependencies the features that the
# wheel's build gives them, so that they are compiled once. What users have is optimised as one program (the profile
# `release`); what is tested is built as fast as it can be (`dev`).
.PHONY: $(BINARY) $(TESTED) rust
$(BINARY): | rust
	cargo build --release --package herringbone-cli --package herringbone-python --bin herringbone

# A test of the library for C has cargo build that, too. It is installed where no build that runs beside the tests replaces it.
$(TESTED): | rust
	cargo build --package herringbone-cli --package herringbone-python --package herringbone-capi --bin herringbone --test symbols
	@$(PYTHON) tools/install_capi.py target/debug/deps/libherringbone_capi.so target/debug/capi > /dev/null

rust:
	@command -v cargo >/dev/null || { echo "Rust is needed: see https://rustup.rs"; exit 1; }

# It renews its stamp if something has changed; a PYTHON that is named on the command line may be another one.
$(VENV)/python.stamp: tools/environment.py $(if $(filter command,$(firstword $(origin PYTHON))),ask)
	$(PYTHON) tools/environment.py $(VENV)

.PHONY: ask
ask:

$(VENV)/demo.stamp: demo/requirements.txt $(VENV)/requirements.stamp
	$(IN_VENV) -m pip install --quiet --requirement demo/requirements.txt
	@touch $@

$(VENV)/bench.stamp: bench/requirements.txt $(VENV)/requirements.stamp
	$(IN_VENV) -m pip install --quiet --requirement bench/requirements.txt
	@touch $@

# A borrowed maturin may have no program that this environment could call.
$(VENV)/requirements.stamp: requirements.txt $(VENV)/python.stamp
	$(IN_VENV) tools/install.py requirements.txt
	@test -x $(VENV)/bin/maturin || \
		$(IN_VENV) -m pip install --ignore-installed --no-deps "$$(grep ^maturin requirements.txt)"
	@touch $@

# Another environment, so that .venv has only what users need: what developers need, and a wheel as tests have it. Its torch is
# that of .venv.
$(TESTS)/requirements.stamp: requirements-dev.txt $(VENV)/requirements.stamp
	$(IN_VENV) tools/environment.py $(TESTS)
	$(IN_TESTS) -m pip install --quiet --requirement requirements-dev.txt
	@touch $@

$(TESTS)/wheel.stamp: $(TESTS)/requirements.stamp $(WHEEL_SOURCES) | rust
	rm -rf $(TESTS)/wheels
	$(VENV)/bin/maturin build --profile dev --manifest-path python/Cargo.toml --interpreter $(IN_TESTS) \
		--compatibility linux --out $(TESTS)/wheels
	$(IN_TESTS) -m pip install --quiet --force-reinstall --no-deps --no-index $(TESTS)/wheels/*.whl
	@touch $@

# Two more, with what frameworks and editors bring: torch is that of .venv, pytest that of the tests.
$(FRAMEWORKS)/requirements.stamp: tests/frameworks/requirements.txt $(TESTS)/wheel.stamp
	$(IN_TESTS) tools/environment.py $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --requirement tests/frameworks/requirements.txt
	@touch $@

$(EDITORS)/requirements.stamp: tests/editors/requirements.txt $(TESTS)/wheel.stamp
	$(IN_TESTS) tools/environment.py $(EDITORS)
	$(EDITORS)/bin/python -m pip install --quiet --requirement tests/editors/requirements.txt
	@touch $@

# Four more, which need no torch.
$(SITE)/requirements.stamp: docs/requirements.txt
	$(PYTHON) tools/environment.py $(SITE) --alone
	$(SITE)/bin/python -m pip install --quiet --requirement docs/requirements.txt
	@touch $@

$(CHECKERS)/requirements.stamp: deploy/requirements.txt
	$(PYTHON) tools/environment.py $(CHECKERS) --alone
	$(CHECKERS)/bin/python -m pip install --quiet --requirement deploy/requirements.txt
	@touch $@

$(PACKAGERS)/requirements.stamp: tests/packages/requirements.txt
	$(PYTHON) tools/environment.py $(PACKAGERS) --alone
	$(PACKAGERS)/bin/python -m pip install --quiet --requirement tests/packages/requirements.txt
	@touch $@

$(BROWSER)/requirements.stamp: tests/browser/requirements.txt
	$(PYTHON) tools/environment.py $(BROWSER) --alone
	$(BROWSER)/bin/python -m pip install --quiet --requirement tests/browser/requirements.txt
	@touch $@

$(VENV)/wheel.stamp: $(VENV)/requirements.stamp $(WHEEL_SOURCES) | rust
	rm -rf $(WHEELS)
	$(VENV)/bin/maturin build --release --manifest-path python/Cargo.toml --interpreter $(IN_VENV) \
		--compatibility linux --out $(WHEELS)
	$(IN_VENV) -m pip install --quiet --force-reinstall --no-deps --no-index $(WHEELS)/*.whl
	@touch $@
