"""The Docker engine of this host, and the only file that imports its client.

Invariants: each blocking call runs in a bounded pool of threads and has a deadline; a stream is a socket of its
own in the event loop, so that a running command holds no thread; the engine's refusals are `EngineError` with
its own words; ids and counts come back as plain values.
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar, cast

import docker
from docker.errors import APIError, BuildError, DockerException, ImageNotFound, NotFound
from requests.exceptions import RequestException

from workers.errors import SandboxError

Client = docker.APIClient
Json = Mapping[str, object]
T = TypeVar("T")
_CHUNK_BYTES = 1 << 20
_PROBE_TIMEOUT_S = 10.0
_LOOKS, _LOOK_PAUSE_S = 1500, 0.02


class EngineError(Exception):
    """The engine refused; `is_missing` where what was named is not there (any more)."""

    def __init__(self, message: str, is_missing: bool = False) -> None:
        super().__init__(message, is_missing)
        self.message = message
        self.is_missing = is_missing

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Found:
    """A container or volume that bears our labels."""

    identity: str
    name: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What an image says of itself; `identity` is its content digest."""

    identity: str
    user: str
    path: str


class Engine:
    """One connection to the engine that `url` (or DOCKER_HOST, or the usual socket) names."""

    def __init__(self, url: str, threads: int, timeout_s: float) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="docker")
        self._local = threading.local()
        self._clients: list[docker.APIClient] = []
        self._lock = threading.Lock()
        self._url = url or os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
        self._timeout_s = timeout_s

    async def call(
        self, work: Callable[[docker.APIClient], T], lost: Callable[[T], None] = lambda made: None
    ) -> T:
        """Run one blocking piece of work in the pool. Raises EngineError.

        It is waited for even under cancellation, and then `lost` gets what it made."""
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._threads, functools.partial(self._do, work))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait((future,), timeout=self._timeout_s)
            if future.done() and not future.cancelled() and future.exception() is None:
                lost(future.result())
            raise

    async def work(self, work: Callable[[], T]) -> T:
        """Run work that blocks but asks nothing of the engine in the same pool."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def call_now(self, work: Callable[[docker.APIClient], T]) -> T:
        """The same from a plain thread."""
        return self._do(work)

    def close(self) -> None:
        """Let go of the connections. Safe twice."""
        self._threads.shutdown(wait=True)
        with self._lock:
            clients, self._clients = self._clients, []
        for client in clients:
            client.close()

    def _do(self, work: Callable[[docker.APIClient], T]) -> T:
        try:
            return work(self._client())
        except (NotFound, ImageNotFound) as error:
            raise EngineError(_words(error), is_missing=True) from error
        except APIError as error:
            raise EngineError(_words(error)) from error
        except (DockerException, RequestException, OSError) as error:
            raise EngineError(f"the Docker engine at {self._url} does not answer: {error}") from error

    def _client(self) -> docker.APIClient:
        """This thread's own client: their sessions are not to be shared."""
        client = getattr(self._local, "client", None)
        if client is None:
            _probe(self._url)
            client = docker.APIClient(base_url=self._url, version="auto", timeout=self._timeout_s)
            self._local.client = client
            with self._lock:
                self._clients.append(client)
        return client


def _probe(url: str) -> None:
    """Raises OSError where nobody listens; the client would leave a socket open over it."""
    if url.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(_PROBE_TIMEOUT_S)
            probe.connect("/" + url.removeprefix("unix://").lstrip("/"))


def _words(error: APIError) -> str:
    return str(error.explanation or error)


def image_facts(client: docker.APIClient, name: str) -> ImageFacts:
    found = client.inspect_image(name)
    config = found.get("Config") or {}
    env = dict(item.partition("=")[::2] for item in config.get("Env") or ())
    return ImageFacts(str(found["Id"]), str(config.get("User") or ""), str(env.get("PATH", "")))


def pull_image(client: docker.APIClient, name: str) -> None:
    repository, _, tag = name.partition("@") if "@" in name else _split_tag(name)
    client.pull(repository, tag=tag or "latest")


def _split_tag(name: str) -> tuple[str, str, str]:
    head, colon, tail = name.rpartition(":")
    return (head, colon, tail) if colon and "/" not in tail else (name, "", "")


def build_image(client: docker.APIClient, folder: str, tag: str, timeout_s: float, lines: list[str]) -> str:
    """Build `folder`; why it failed, or nothing. What the engine says goes to `lines` as it comes."""
    failed = ""
    try:
        said = client.build(path=folder, tag=tag, rm=True, forcerm=True, decode=True, timeout=timeout_s)
        for item in said:  # to its end, which gives the connection back
            failed = failed or str(item.get("error", "")).strip()
            lines.extend(line for line in str(item.get("stream", "")).splitlines() if line.strip())
    except (TypeError, BuildError) as error:  # TypeError: the client's word for a folder that is not there
        return str(error)
    return failed


def create_container(client: docker.APIClient, name: str, body: Json) -> str:
    """The new container's id. `body` is the engine's own form of the request."""
    return str(client.create_container_from_config(dict(body), name)["Id"])


def start(client: docker.APIClient, container: str) -> None:
    client.start(container)


def attach(client: docker.APIClient, container: str) -> socket.socket:
    """The container's stdin and output as one socket that does not block."""
    params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
    return _own_socket(client.attach_socket(container, params))


def start_exec(
    client: docker.APIClient, container: str, argv: list[str], user: str, env: dict[str, str]
) -> tuple[str, socket.socket]:
    """Start a command; its id, and a socket with its stdin and its two streams in the engine's frames."""
    made = client.exec_create(
        container, argv, stdin=True, stdout=True, stderr=True, user=user, environment=env
    )
    identity = str(made["Id"])
    return identity, _own_socket(client.exec_start(identity, socket=True))


def exec_exit_code(client: docker.APIClient, identity: str) -> int | None:
    """None while it runs."""
    found = client.exec_inspect(identity)
    return None if found["Running"] or found["ExitCode"] is None else int(found["ExitCode"])


def inspect(client: docker.APIClient, container: str) -> Json:
    return cast(Json, client.inspect_container(container))


def put_archive(client: docker.APIClient, container: str, path: str, data: bytes) -> None:
    client.put_archive(container, path, data)


def read_archive(
    client: docker.APIClient, container: str, path: str, take: Callable[[Iterator[bytes]], T]
) -> T:
    """Let `take` read the tar of `path` in chunks; it may stop early."""
    response = client._get(
        client._url("/containers/{0}/archive", container), params={"path": path}, stream=True
    )
    try:
        client._raise_for_status(response)
        return take(response.iter_content(_CHUNK_BYTES))
    finally:
        response.close()


def export(client: docker.APIClient, container: str, take: Callable[[Iterator[bytes]], T]) -> T:
    """Let `take` read the tar of a container's whole file system, without its volumes."""
    return take(client.export(container, _CHUNK_BYTES))


def export_image(client: docker.APIClient, name: str, body: Json, take: Callable[[Iterator[bytes]], T]) -> T:
    """The same of an image, by a container that never runs."""
    try:
        return export(client, create_container(client, name, body), take)
    finally:
        remove_container(client, name)


def read_image(
    client: docker.APIClient, name: str, body: Json, path: str, take: Callable[[Iterator[bytes]], T]
) -> T:
    """Let `take` read the tar of what an image has at `path`, by a container that never runs."""
    try:
        return read_archive(client, create_container(client, name, body), path, take)
    finally:
        remove_container(client, name)


def pause(client: docker.APIClient, container: str) -> None:
    client.pause(container)


def remove_container(client: docker.APIClient, container: str) -> None:
    """Gone with its volumes, whatever it does, also where the engine is at it already; returns when it is gone."""
    try:
        client.remove_container(container, v=True, force=True)
    except NotFound:
        return
    except APIError as error:
        if "already in progress" not in _words(error):
            raise
        _wait_until_gone(client, container)


def _wait_until_gone(client: docker.APIClient, container: str) -> None:
    for _ in range(_LOOKS):
        try:
            client.inspect_container(container)
        except NotFound:
            return
        time.sleep(_LOOK_PAUSE_S)
    raise EngineError(f"{container} is still there after {_LOOKS * _LOOK_PAUSE_S:.0f} s of removing it")


def remove_volume(client: docker.APIClient, name: str) -> None:
    try:
        client.remove_volume(name, force=True)
    except NotFound:
        return


def labelled(client: docker.APIClient, label: str) -> list[Found]:
    """Every container with the label, running or not."""
    found = client.containers(all=True, filters={"label": label})
    return [Found(str(c["Id"]), str(c["Names"][0]).lstrip("/"), c["Labels"]) for c in found if c["Names"]]


def labelled_volumes(client: docker.APIClient, label: str) -> list[Found]:
    found = client.volumes(filters={"label": label})["Volumes"] or []
    return [Found(str(v["Name"]), str(v["Name"]), v["Labels"] or {}) for v in found]


def version(client: docker.APIClient) -> str:
    return str(client.version()["Version"])


def _own_socket(stream: object) -> socket.socket:
    """A socket of ours on a connection that the client has upgraded; the client's own objects are closed."""
    fileno, close = getattr(stream, "fileno", None), getattr(stream, "close", None)
    if fileno is None or close is None:
        raise SandboxError("engine_unsupported", "only an engine behind a local socket can be used")
    own = socket.socket(fileno=os.dup(fileno()))
    own.setblocking(False)
    response = getattr(stream, "_response", None)
    if response is not None:
        response.close()
    close()
    return own
