.PHONY: run test bench setup lock clean

READY := .venv/.ready

run: $(READY)  ## set up, then roll out the quickstart tasks with the embedded local model
	@.venv/bin/rollcage run tasks=quickstart

test: $(READY)  ## set up, then format, lint, types and every test
	@scripts/check

bench: $(READY)  ## set up, then measure the sandbox backends side by side; BENCH=--quick only shows that it runs
	@.venv/bin/python -m tests.benchmarks.sandboxes $(BENCH)

setup: $(READY)

$(READY): requirements.txt requirements-model.txt pyproject.toml
	@scripts/setup
	@touch $@

lock:
	@scripts/lock

clean:
	rm -rf .venv dist runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
