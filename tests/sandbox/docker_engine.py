"""A Docker engine for the tests: one that runs already, or, where the tests run as root, one of their own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from workers.sandbox.docker_backend.backend import DockerBackend, DockerOptions
from workers.sandbox.docker_backend.owner import OWNER, labels
from workers.sandbox.warm import WarmOptions

IMAGE = "rollcage-test:bookworm"
SOCKET = "/var/run/docker.sock"
ROOT = Path(__file__).resolve().parent.parent.parent
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 30.0
_IMAGE_TIMEOUT_S = 600.0


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[str]:
    """The name of the test image on an engine that answers."""
    with running_engine() as refusal:
        if refusal:
            pytest.skip(refusal)
        made = subprocess.run(
            [ROOT / "scripts/docker-test-image", IMAGE],
            capture_output=True,
            text=True,
            timeout=_IMAGE_TIMEOUT_S,
            check=False,
        )
        if made.returncode:
            pytest.skip(f"no test image: {made.stderr.strip()}")
        yield IMAGE
        assert containers() | volumes() == set()


@contextmanager
def running_engine() -> Iterator[str]:
    """Why there is no engine, or nothing; one that was started here ends with the block."""
    if _answers():
        yield ""
        return
    if os.getuid() != 0 or shutil.which("dockerd") is None:
        yield f"no Docker engine answers at {SOCKET}, and starting one needs root and dockerd"
        return
    with tempfile.NamedTemporaryFile(prefix="dockerd-", suffix=".log") as log:
        daemon = subprocess.Popen(
            ["dockerd", "--bridge=none", "--iptables=false"], stdout=log, stderr=log, start_new_session=True
        )
        try:
            deadline = time.monotonic() + _START_TIMEOUT_S
            while not _answers() and daemon.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
            yield "" if _answers() else f"dockerd did not start: {Path(log.name).read_text()[-2000:]}"
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(_STOP_TIMEOUT_S)


def make_backend(warm: int = 0) -> DockerBackend:
    """A backend whose `host` image is the test image, with so many sandboxes of a spec made ahead of need."""
    return DockerBackend(DockerOptions(image=IMAGE, warm=WarmOptions(high=warm)))


def docker(*arguments: str) -> str:
    """What the command line client says, which sees the engine from outside."""
    return subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, timeout=60, check=True
    ).stdout.strip()


def containers(owner: str = "") -> set[str]:
    """Those of one owner, by its label; of this process unless another is named."""
    return _labelled(owner, "ps", "--all")


def volumes(owner: str = "") -> set[str]:
    return _labelled(owner, "volume", "ls")


def _labelled(owner: str, *words: str) -> set[str]:
    label = f"label={OWNER}={owner or labels('')[OWNER]}"
    return set(docker(*words, "--quiet", "--filter", label).split())


def _answers() -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(5)
            probe.connect(SOCKET)
            probe.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b"200" in probe.recv(64)
    except OSError:
        return False
