# The only verbs of this project. Everything runs in .venv, made by uv from pyproject.toml.
.PHONY: check test unit sim demo bench stack-up stack-down
VENV := .venv/bin

.venv: pyproject.toml
	uv sync --quiet
	@touch .venv

check: .venv  ## format, lint, types, layers, sizes, documents: warnings are errors
	$(VENV)/pytest -q tests/house

unit: .venv  ## everything that needs no daemon, in seconds
	$(VENV)/pytest -q -m "not real"

SEEDS := 1000
sim: .venv  ## SEEDS schedules of accidents in virtual time, and the story of each that fails
	PYTHONHASHSEED=0 $(VENV)/python -m tests.sim --seeds $(SEEDS)

test:  ## everything, on the real Kubernetes and the real Slurm
	deploy/local/test

demo:  ## the story of the README, on the real local stack
	deploy/local/demo

bench: .venv  ## one table, each figure beside its limit
	$(VENV)/python -m benchmarks

stack-up:
	deploy/local/stack up

stack-down:
	deploy/local/stack down
