# Needs python3 (3.11 or newer, with venv), make and g++. Everything else is installed into .venv, CUDA's headers and
# NVRTC included; a GPU and its driver are used where they are there.
#
#   make demo      search, train and report on a small network, within minutes; again resumes. See demo/report.html
#   make test      every test that needs no GPU
#   make gpu-test  those that do
#   make lint      ruff and mypy
#   make clean     remove what the above left, .venv aside
#
# Variables: PYTHON, VENV; CUDA=12 for drivers before 580; TORCH, what pip is to install as PyTorch. PyPI's is a build
# with CUDA, some gigabytes; without a GPU a CPU build does as well, named by its file or by pip's own options:
#   make demo TORCH=path/to/torch-2.13.0+cpu-cp312-cp312-linux_x86_64.whl

PYTHON ?= python3
VENV ?= .venv
CUDA ?= 13
TORCH ?= torch==2.13.0
PYTEST_ARGS ?= -n 2 --dist loadfile --no-loadscope-reorder

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-cuda$(CUDA)

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test gpu-test lint install clean
.DEFAULT_GOAL := demo

install: $(STAMP)

# The stamp makes later runs instant; a change of pyproject.toml or of CUDA installs again.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "mnist-tune needs Python 3.11 or newer; name it: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "This Python cannot make virtual environments; run: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --editable '.[cuda$(CUDA),dev]'
	@touch $@

# Without a GPU: the width that trains by emulation, as far as it takes to see it learn. With one: the smallest width
# that the story races, and all its contenders, which compile for minutes.
demo: export MNIST_TUNE_DB := demo/tuning.db
demo: $(STAMP)
	@mkdir -p demo
	@set -e; \
	gpu=$$($(BIN)/python -c 'from tuner.devices import current; print(int(current() is not None))'); \
	if [ $$gpu = 1 ]; then width=128 trials=60 length="--epochs 10"; \
	else width=32 trials=16 length="--steps 1500"; fi; \
	set -x; \
	$(BIN)/mnist-tune search --shapes mlp --widths $$width --trials $$trials; \
	$(BIN)/mnist-tune train --width $$width $$length --lr 0.1; \
	$(BIN)/mnist-tune report --html demo/report.html

test: $(STAMP)
	MNIST_TUNE_OFFLINE=1 $(BIN)/python -m pytest -m "not gpu" $(PYTEST_ARGS)

# One process: two would time kernels on one GPU at once.
gpu-test: $(STAMP)
	MNIST_TUNE_OFFLINE=1 $(BIN)/python -m pytest -m gpu

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf demo build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis report.html
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
