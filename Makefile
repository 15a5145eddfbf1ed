# make serve   set up if needed, then serve SmolLM2 on port 8000
# make test    set up if needed, then lint, types, import contracts and all tests
# make setup   everything both of them need
# make peers   install what to compare with: llama.cpp, vLLM, transformers (minutes, gigabytes)
# make bench   speed beside those that are installed; see benchmarks/README.md

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PORT   ?= 8000

# The tests start the program hundreds of times: Python keeps what it has compiled of it.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup serve test lint bench peers clean
.DELETE_ON_ERROR:

setup: $(VENV)/.engine-ready $(VENV)/.dev-ready

serve: $(VENV)/.engine-ready
	$(BIN)/kvikk serve smollm2 --port $(PORT)

# Two processes: a test waits for servers half of its time, and an engine takes what cores there are.
test: setup lint
	$(BIN)/python -m pytest --numprocesses 2 --no-loadscope-reorder

lint: $(VENV)/.dev-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python benchmarks/speed.py

peers:
	PYTHON=$(PYTHON) sh benchmarks/peers/install.sh

clean:
	rm -rf $(VENV)

# The engine, the default model and its compiled kernels: all a user needs.
$(VENV)/.engine-ready: pyproject.toml scripts/setup.sh
	PYTHON=$(PYTHON) sh scripts/setup.sh $(VENV) engine

# What the tests need besides: torch and transformers as the independent truth, a second model.
$(VENV)/.dev-ready: pyproject.toml scripts/setup.sh $(VENV)/.engine-ready
	PYTHON=$(PYTHON) sh scripts/setup.sh $(VENV) dev
