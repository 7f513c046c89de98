"""One run a folder, on a disk that keeps its promises.

The journal needs locks and shared memory that network file systems only pretend to have, so those are
refused. The lock is the kernel's: it ends with the process that holds it, however that dies.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from pathlib import Path
from types import TracebackType

from workers.errors import ConfigError

LOCK = "run.lock"
DRIVER_LOCK = "driver.lock"
# `is_held` of another process holds the lock for a moment too.
_PATIENCE_S = 0.5

_NETWORK = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "coda", "ncpfs"),
        *("ceph", "lustre", "gpfs", "beegfs", "glusterfs", "orangefs", "pvfs2", "ocfs2"),
    )
)
_NETWORK_FUSE = frozenset(
    (
        *("sshfs", "davfs", "rclone", "s3fs", "mount-s3", "goofys", "gcsfuse", "blobfuse", "blobfuse2"),
        *("glusterfs", "ceph", "ceph-fuse", "juicefs"),
    )
)


class RunLock:
    """Holds a run folder for this process. Raises ConfigError where another holds it.

    The conductor holds `LOCK` while it writes; the driver holds `DRIVER_LOCK` from before it writes the
    configuration until its end, so that of two drivers that begin at once one is refused untouched.
    """

    def __init__(self, run_dir: Path, name: str = LOCK) -> None:
        refuse_network_file_system(run_dir)
        path = run_dir / name
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not _locked(descriptor):
            holder = os.pread(descriptor, 64, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise ConfigError(
                f"a run is going on in {run_dir} (process {holder})",
                "wait for it, stop it, or choose another folder with run_dir=…",
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor: int | None = descriptor

    def close(self) -> None:
        """Let go. Closing twice is safe."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> RunLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _locked(descriptor: int) -> bool:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_PATIENCE_S / 10)
        else:
            return True


def is_held(run_dir: Path) -> bool:
    """Whether a process is running this run now."""
    try:
        descriptor = os.open(run_dir / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def refuse_network_file_system(folder: Path) -> None:
    """Raise ConfigError where a folder lies on a network file system."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return
    kind = file_system_of(folder.resolve(), mounts)
    if is_network(kind):
        raise ConfigError(
            f"{folder} lies on a network file system ({kind}), where the journal could lose what it promised",
            "choose a local disk or a block volume with run_dir=…, and copy the run when it is finished",
        )


def is_network(kind: str) -> bool:
    """Whether a file system type, as the kernel names it, is a network's."""
    family, _, name = kind.partition(".")
    return family in _NETWORK or (family == "fuse" and name in _NETWORK_FUSE)


def file_system_of(folder: Path, mounts: str) -> str:
    """The type of the file system under an absolute path, by the text of a `mountinfo`; empty if unknown."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5 or not right:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[4]))
        if folder.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), right.split(" ")[0]
    return kind
