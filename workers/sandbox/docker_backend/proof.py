"""The proof that a container stands on what its digests say, byte by byte.

Invariants: the image is read through the container's own overlay and compared with the image as a container that
never ran shows it, so that neither a touched layer nor a name that moved goes unnoticed; protected mounts are
read back whole. What the engine itself lays over every image (mount points, its init, its files in /etc) is known by
name and may only be empty. Nothing is unpacked or followed.
"""

from __future__ import annotations

import functools
import hashlib
import tarfile
from collections.abc import Iterator

from workers.errors import SandboxError
from workers.sandbox.docker_backend import engine as docker
from workers.sandbox.docker_backend.container import HOME
from workers.sandbox.docker_backend.engine import Engine, EngineError
from workers.sandbox.docker_backend.tree import Chunks, Reading, read_back
from workers.sandbox.protocol import SandboxSpec
from workers.sandbox.tree import Tree
from workers.sandbox.union import merge, parents

Fingerprint = dict[str, str]
_ENGINES_OWN = frozenset(
    (
        ".dockerenv",
        "etc/hostname",
        "etc/hosts",
        "etc/mtab",
        "etc/resolv.conf",
        "sbin/docker-init",
        "usr/sbin/docker-init",
    )
)
_ENGINES_FOLDERS = ("dev", "proc", "sys")
_CHUNK_BYTES = 1 << 20
_NO_LIMIT = 1 << 40


def fingerprint(chunks: Iterator[bytes]) -> Fingerprint:
    """A digest of each name of a file system's tar: its kind, mode, owner, target, attributes and contents."""
    found: Fingerprint = {}
    with tarfile.open(fileobj=Chunks(chunks), mode="r|", encoding="utf-8", errors="surrogateescape") as tar:
        for info in tar:
            facts = (
                info.type,
                info.mode,
                info.uid,
                info.gid,
                info.size,
                info.linkname,
                info.devmajor,
                info.devminor,
            )
            attributes = sorted(
                item for item in info.pax_headers.items() if item[0].startswith("SCHILY.xattr.")
            )
            digest = hashlib.sha256(repr((facts, attributes)).encode("utf-8", "surrogateescape"))
            if info.isreg() and (source := tar.extractfile(info)) is not None:
                while chunk := source.read(_CHUNK_BYTES):
                    digest.update(chunk)
            path = info.name.removeprefix("./").strip("/")
            found[path] = f"{'folder' if info.isdir() else 'file'} {info.size} {digest.hexdigest()}"
    return found


def differences(spec: SandboxSpec, wanted: Fingerprint, found: Fingerprint) -> list[str]:
    """The paths at which a container's file system is not its image's, but for what the engine lays over it."""
    points = [spec.workspace_path, *(item.path for item in spec.read_only), "/tmp", "/var/tmp", "/run", HOME]
    made = {path.strip("/") for path in points}
    made |= {parent for path in made for parent in parents(path)}
    return [
        path
        for path in sorted(wanted.keys() | found.keys())
        if wanted.get(path) != found.get(path)
        and not (path in made and found.get(path, "").startswith("folder "))
        and not (path in _ENGINES_OWN and found.get(path, " 0 ").split(" ")[1] == "0")
        and path.split("/")[0] not in _ENGINES_FOLDERS
    ]


async def prove(engine: Engine, container: str, image: str, wanted: Fingerprint, spec: SandboxSpec) -> None:
    """Raises SandboxError `dirty_reset` with what differs."""
    try:
        facts = await engine.call(lambda client: docker.inspect(client, container))
        if facts["Image"] != image:
            raise SandboxError("dirty_reset", f"the container runs {facts['Image']}, not {image}")
        found = await engine.call(lambda client: docker.export(client, container, fingerprint))
        if wrong := differences(spec, wanted, found):
            raise SandboxError("dirty_reset", f"the image differs at {', '.join(wrong[:8])}")
        for item in spec.read_only:
            tree = await engine.call(functools.partial(_mounted, container=container, path=item.path))
            if tree.skipped or tree.entries != merge((item.files,)):
                raise SandboxError("dirty_reset", f"{item.path} is not what was mounted there")
    except EngineError as error:
        raise SandboxError("sandbox_died", str(error)) from error


def _mounted(client: docker.Client, container: str, path: str) -> Tree:
    whole = Reading({}, _NO_LIMIT)
    return docker.read_archive(client, container, path, lambda chunks: read_back(chunks, whole))
