"""What this machine can do."""

from __future__ import annotations

import json

import pytest

from orchestrator.cli import main
from orchestrator.commands import doctor
from workers.sandbox.doctor import Check

Told = pytest.CaptureFixture[str]
BROKEN = Check(
    "user namespaces", False, True, "denied", "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
)
WEAK = Check("cgroup v2", False, False, "not delegated", "log in by systemd")


def test_what_it_says_as_json_is_what_its_exit_code_says(capsys: Told) -> None:
    code = main(["doctor", "--json"])
    checks = json.loads(capsys.readouterr().out)
    assert {"python", "ray", "embedded model", "memory", "disk"} <= {check["name"] for check in checks}
    assert code == int(any(check["is_fatal"] and not check["ok"] for check in checks))


def test_everything_that_is_missing_has_a_remedy(capsys: Told) -> None:
    main(["doctor", "--json"])
    assert all(check["ok"] or check["remedy"] for check in json.loads(capsys.readouterr().out))


@pytest.mark.parametrize(("found", "code"), [((), 0), ((WEAK,), 0), ((WEAK, BROKEN), 1)])
def test_only_what_no_run_can_do_without_is_an_error(
    found: tuple[Check, ...], code: int, monkeypatch: pytest.MonkeyPatch, capsys: Told
) -> None:
    monkeypatch.setattr(doctor, "machine", lambda: ())
    monkeypatch.setattr(doctor, "examine", lambda: found)
    assert main(["doctor"]) == code
    told = " ".join(capsys.readouterr().out.split())
    assert ("user namespaces" in told) == (BROKEN in found)
