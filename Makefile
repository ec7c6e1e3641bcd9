# `make run` trains CartPole over the network, `make test` proves the house in order.
# Both install what they need into .venv first. `make help` lists the rest.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROTOC_VENV := .venv-protos
# The oldest supported generator: its modules run on every protobuf from theirs up to below 8.
GRPC_TOOLS := grpcio-tools==1.74.0

export PATH := $(CURDIR)/$(BIN):$(PATH)
export PYTHONUNBUFFERED := 1
# Tests start hundreds of processes. Without compiled modules TensorFlow's import takes 10 s, with them 3.5 s.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help images install run test slow quick evidence evidence-speed evidence-learning faults fuzz check format lint types ready compiled protos protos-current newcomer simulators bench quick-bench bench-peers clean

help:  ## List the targets.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(VENV)/.installed: pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --editable '.[dev]'  # Python compiles what it imports
	@# Both compile and cache kernels, each on a core.
	$(BIN)/python -m relaax_like.parameter_server.kernels & first=$$!; \
	$(BIN)/python -c "from relaax_like.experience.replay.kernels import compile_kernels; compile_kernels()" \
		&& wait $$first
	touch $@

install: $(VENV)/.installed  ## Install the project and its tools into .venv.

run: install  ## Train CartPole over the network, watch it in TensorBoard, end at the target.
	honcho start

# Tests wait for what they have started, so more files run at once than there are cores. Tests of faults
# wait most: they start first, the longest file first. In the order of their names, the files at the end
# are short, so no worker waits for long. Tests of honcho, which kills after five seconds, run one by one.
FAULTS := $(sort $(wildcard tests/fault/test_*.py))
FAULTS := $(addprefix tests/fault/test_,ray.py ray_head.py) $(filter-out tests/fault/test_ray%,$(FAULTS))
ALONE := tests/system/test_procfile.py
OTHERS := $(filter-out tests/fault/ %__pycache__/,$(sort $(wildcard tests/*/))) $(sort $(wildcard tests/test_*.py))
BY_FILE := --dist loadfile --no-loadscope-reorder

# NumPy's threads would only wait for each other: a quarter of the time of its import.
test slow: export OPENBLAS_NUM_THREADS := 1
test: compiled  ## Run all tests but the slow ones; one that fails is run once more, alone.
	python -P tests/support/gate.py $(ALONE) -- -n 5 $(BY_FILE) -m "not slow" --ignore $(ALONE) $(FAULTS) $(OTHERS)

slow: install  ## Run the slow tests, whose rows other tests check too: about seven minutes.
	python -P tests/support/gate.py -n 5 $(BY_FILE) -m slow $(FAULTS) $(OTHERS)

quick: install  ## Check what changed since main, in three minutes at most.
	python -P tests/support/quick.py

faults: install  ## Kill servers, learners and coordinators 200 times and more: about an hour.
	RELAAX_FAULT_SEEDS=20 RELAAX_FAULT_KILLS=50 pytest $(FAULTS) --timeout 600 --durations 5

fuzz: install  ## Look for bad input that is not refused: ten minutes.
	RELAAX_FUZZ_SEC=600 pytest tests/fuzz --timeout 1200

check:  ## All that CI runs.
	$(MAKE) --jobs 2 --output-sync=target install lint protos-current
	$(MAKE) --jobs 2 types test

# Environments, and the caches of mypy and Python: the longest part of `make check` besides its tests.
ready:
	$(MAKE) --jobs 2 --output-sync=target install protos-current
	$(MAKE) --jobs 2 types compiled

# One process compiles the tests and what they import, or each that runs them would.
compiled: install
	-@python -P -m pytest --collect-only -qq >/dev/null 2>&1

format: install  ## Repair what `make lint` complains about.
	ruff format .
	ruff check --fix .

lint: install
	ruff format --check .
	ruff check .

types: install
	mypy

$(PROTOC_VENV)/.installed: Makefile
	$(PYTHON) -m venv $(PROTOC_VENV)
	$(PROTOC_VENV)/bin/pip install --quiet --no-compile '$(GRPC_TOOLS)'
	touch $@

PROTOC = $(PROTOC_VENV)/bin/python -m grpc_tools.protoc
V1 := $(addprefix relaax_like/v1/,coordinator.proto ndarray.proto metrics.proto parameter_server.proto experience.proto group.proto journal.proto learner.proto publisher.proto rlx.proto spaces.proto)

define generate
	mkdir -p $(1)
	$(PROTOC) -Iprotos --python_out=$(1) --pyi_out=$(1) $(V1)
	$(PROTOC) -Iprotos --grpc_python_out=$(1) $(addprefix relaax_like/v1/,coordinator.proto metrics.proto parameter_server.proto)
	$(PROTOC) -Irelaax_like/bridge=protos --python_out=$(1) --pyi_out=$(1) --grpc_python_out=$(1) \
		relaax_like/bridge/bridge.proto
endef

protos: $(PROTOC_VENV)/.installed  ## Generate the protobuf modules again.
	$(call generate,.)

protos-current: $(PROTOC_VENV)/.installed
	rm -rf build/protos
	$(call generate,build/protos)
	@for file in $$(cd build/protos && find . -type f); do \
		diff -q $$file build/protos/$$file || { echo "stale: $$file (cure: make protos)"; exit 1; }; \
	done

# What is too long for CI.
evidence:  ## Measure what is too long for CI: PART=speed (an hour; AGAINST=COMMIT) or PART=learning (a day).
	@case '$(PART)' in speed|learning) ;; *) echo "PART='$(PART)', expected speed or learning"; exit 2;; esac
	$(MAKE) evidence-$(PART)

# A commit that the speed of hot paths is compared with.
AGAINST ?= HEAD~1
evidence-speed: bench
	$(BIN)/python -m benchmarks.against $(AGAINST)
	$(BIN)/python -m benchmarks.hostile
	$(BIN)/python -m benchmarks.hostile --rlx
	$(BIN)/python -m benchmarks.hostile --jobs
	$(BIN)/python -m benchmarks.hostile --learner
	$(BIN)/python -m benchmarks.hostile --group
	$(BIN)/python -m benchmarks.jobs
	$(BIN)/python -m benchmarks.recovery

# Runs that are in benchmarks/results are not repeated, unless FRESH=--fresh.
LEARNING = $(BIN)/python -m benchmarks.learning $(FRESH)
evidence-learning: install
	$(LEARNING) algorithms/a2c/a2c.yaml --steps 200000 --set algorithm.learning_rate=1e-3
	$(LEARNING) algorithms/a2c/acrobot.yaml --steps 500000
	$(LEARNING) algorithms/a2c/pendulum.yaml --steps 1000000
	$(LEARNING) algorithms/a2c/recall.yaml --steps 500000
	$(BIN)/python -m benchmarks.ppo_learning --program ours $(FRESH)

newcomer:  ## Install the wheel in a fresh environment, and do what README says under "Installed".
	$(PYTHON) deploy/newcomer.py

simulators: install  ## Play 500 steps of each simulator of environments/SIMULATORS.md through servers.
	python deploy/simulators/play.py

images: install  ## Build and run both images without a Docker daemon, as root: some minutes.
	python deploy/check_images.py

bench: install  ## Measure the hot paths.
	$(BIN)/python -m benchmarks.run

quick-bench: install  ## Measure what users wait for, beside the result of another commit: two minutes.
	$(BIN)/python -m benchmarks.quick

bench-peers: install  ## Measure Stable-Baselines3 beside us, in .venv-peers.
	$(BIN)/python -m benchmarks.peers.run

clean:  ## Remove what the targets above have made.
	rm -rf $(VENV) $(PROTOC_VENV) .venv-peers .venv-sbx .venv-maze .venv-ray build *.egg-info .mypy_cache .ruff_cache .pytest_cache
