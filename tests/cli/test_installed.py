"""The command works from where a wheel puts it, without the checkout around it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_shipped_configuration_is_found_inside_the_package(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "tasksets")
    for package in ("orchestrator", "workers"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    shutil.copytree(ROOT / "configs", tmp_path / "orchestrator" / "configs")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from orchestrator import cli, paths; "
        "print(paths.shipped_configs()); sys.exit(cli.main(['config', 'policy=openai']))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=elsewhere,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "orchestrator" / "configs"))
    assert "kind: openai" in done.stdout
