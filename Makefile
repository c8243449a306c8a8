# Everything works on a fresh clone without root; `make help` lists what there is.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS ?= .venv-peers/bin/python
DEMO := artifacts/ddpg_invertedpendulum_v5_actor

.PHONY: help demo test test-lowest check learning bench bench-storage torture clean

help:
	@echo "make demo      train DDPG on InvertedPendulum-v5, draw the curve, record a GIF"
	@echo "make test      lint, types and tests"
	@echo "make test-lowest  the tests with the oldest admitted libraries"
	@echo "make check     lint and types only"
	@echo "make learning  train for hours: does every algorithm still learn, in both backends?"
	@echo "make bench     speed beside Stable-Baselines3, SBX and the limit of this machine: 20 minutes"
	@echo "make bench-storage  memory of the replay buffer, cost of checkpoints"
	@echo "make torture   kill hundreds of runs: does each go on as if nothing had happened?"

$(BIN)/polyak: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(BIN)/polyak
	$(BIN)/polyak train ddpg --preset inverted-pendulum
	$(BIN)/polyak report $$(ls -td runs/InvertedPendulum-v5__ddpg_* | head -n 1) --output artifacts
	$(BIN)/polyak enjoy $(DEMO) --record-path artifacts/inverted_pendulum.gif

check: $(BIN)/polyak
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: check
	$(BIN)/pytest -m "not learning" --numprocesses 2 --dist loadfile

# The oldest libraries that pyproject.toml admits, in an environment of their own.
test-lowest:
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/pip install --quiet --constraint constraints-lowest.txt torch
	.venv-lowest/bin/pip install --quiet --constraint constraints-lowest.txt --editable '.[dev]'
	.venv-lowest/bin/pytest -m "not learning" --numprocesses 2 --dist loadfile

learning: $(BIN)/polyak
	$(BIN)/python benchmarks/learning.py

# Another Python that has the peers: make bench PEERS=/path/to/python
.venv-peers/bin/python: constraints.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install --quiet --constraint constraints.txt torch
	.venv-peers/bin/pip install --quiet --constraint constraints.txt stable-baselines3 sbx-rl 'gymnasium[mujoco]'
	@touch $@

bench: $(BIN)/polyak $(PEERS)
	$(BIN)/python benchmarks/speed.py --peers $(PEERS)

bench-storage: $(BIN)/polyak
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/checkpoints.py

torture: $(BIN)/polyak
	$(BIN)/python benchmarks/torture.py

clean:
	rm -rf $(VENV) .venv-lowest .venv-peers build dist src/*.egg-info
