"""The shape that the code promises: who imports whom, and what a part may drag in."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("orchestrator", "workers")


def modules(package: str) -> Iterator[Path]:
    return (path for path in (ROOT / package).rglob("*.py") if "tasksets" not in path.parts)


def imports(path: Path) -> set[str]:
    """Everything that a module imports, wherever in it, but for what only type checkers see."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def importers(module: str) -> set[str]:
    return {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in modules(package)
        if any(name == module or name.startswith(module + ".") for name in imports(path))
    }


def test_workers_know_nothing_of_the_orchestrator() -> None:
    assert {path for path in importers("orchestrator") if path.startswith("workers/")} == set()


def test_ray_is_called_in_one_file() -> None:
    assert importers("ray") == {"orchestrator/cluster.py"}


@pytest.mark.parametrize(
    "module", ["docker", "omegaconf", "prometheus_client", "duckdb", "gymnasium", "psutil"]
)
def test_a_heavy_dependency_is_imported_in_few_files(module: str) -> None:
    assert len(importers(module)) <= 2, importers(module)


def test_nothing_imports_a_private_ray_api() -> None:
    assert importers("ray._private") == set()


def test_the_imports_have_no_cycle() -> None:
    graph = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): imports(path)
        for package in PACKAGES
        for path in modules(package)
    }
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " → ".join((*trail, module))
        if module in done or module not in graph:
            return
        for name in graph[module]:
            visit(name, (*trail, module))
        done.add(module)

    for module in graph:
        visit(module, ())


def test_no_other_installed_distribution_owns_our_names() -> None:
    owners = importlib.metadata.packages_distributions()
    for package in PACKAGES:
        assert set(owners.get(package, ["rollcage"])) == {"rollcage"}


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("orchestrator.stream", ("ray", "omegaconf", "gymnasium")),
        ("workers.play", ("ray", "orchestrator", "omegaconf")),
        ("orchestrator.cli", ("ray", "pyarrow", "gymnasium")),
    ],
)
def test_importing_a_part_does_not_drag_in_another(module: str, forbidden: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*[m for m in {forbidden!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT, check=True
    )
    assert done.stdout.strip() == ""
