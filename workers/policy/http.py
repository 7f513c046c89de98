"""Requests to a model server: bounded in time, retried within a limit, every failure with its cause.

Retried are a connection that was not made or broke, and the statuses that say "later": 429 and 5xx. The
deadline covers all tries and the waits between them. What is never retried: an answer, and our own mistakes.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import httpx

from workers.errors import PolicyError
from workers.policy.wire import Json, parse_object

REMEDY = "start the server, or check policy.url"
FIRST_WAIT_S = 0.25
LONGEST_WAIT_S = 8.0
_CONNECTIONS = 4096


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is and how patient we are. The key does not show in the representation."""

    url: str
    api_key: str = field(default="", repr=False)
    retries: int = 4
    connect_timeout_s: float = 10.0
    uses_proxies: bool = True


class Server:
    """An open connection pool to one server. Bound to the event loop that it is used in first."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
        self._client = httpx.AsyncClient(
            base_url=endpoint.url,
            headers=headers,
            timeout=httpx.Timeout(None, connect=endpoint.connect_timeout_s),
            limits=httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=64),
            trust_env=endpoint.uses_proxies,
        )

    async def get(self, path: str, deadline_s: float) -> Json:
        return await self._bounded("GET", path, None, {}, deadline_s)

    async def post(
        self, path: str, body: Json, deadline_s: float, headers: dict[str, str] | None = None
    ) -> Json:
        content = json.dumps(body, ensure_ascii=True).encode()
        return await self._bounded("POST", path, content, headers or {}, deadline_s)

    async def close(self) -> None:
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _bounded(
        self, method: str, path: str, content: bytes | None, headers: dict[str, str], deadline_s: float
    ) -> Json:
        try:
            async with asyncio.timeout(deadline_s):
                return await self._retried(method, path, content, headers)
        except TimeoutError:
            where = f"{method} {self.endpoint.url}{path}"
            raise PolicyError("endpoint_timeout", f"{where}: no answer within {deadline_s:g} s") from None

    async def _retried(self, method: str, path: str, content: bytes | None, headers: dict[str, str]) -> Json:
        for attempt in range(self.endpoint.retries + 1):
            try:
                return await self._once(method, path, content, headers)
            except _Later as later:
                if attempt == self.endpoint.retries:
                    raise later.cause from None
                await asyncio.sleep(min(FIRST_WAIT_S * 2**attempt, LONGEST_WAIT_S))
        raise AssertionError("unreachable")

    async def _once(self, method: str, path: str, content: bytes | None, headers: dict[str, str]) -> Json:
        where = f"{method} {self.endpoint.url}{path}"
        if content is not None:
            headers = {**headers, "Content-Type": "application/json"}
        try:
            response = await self._client.request(method, path, content=content, headers=headers)
        except httpx.TimeoutException:
            raise _Later(
                PolicyError("endpoint_unreachable", f"{where}: no connection in time; {REMEDY}")
            ) from None
        except httpx.TransportError as error:
            raise _Later(PolicyError("endpoint_unreachable", f"{where}: {error!r}; {REMEDY}")) from None
        except httpx.InvalidURL as error:
            raise PolicyError("endpoint_unreachable", f"{where}: {error}") from None
        if response.status_code == 200:
            return parse_object(response.content)
        failure = PolicyError("endpoint_error", f"{where}: {response.status_code}: {response.text[:300]}")
        if response.status_code == 429 or response.status_code >= 500:
            raise _Later(failure)
        raise failure


class _Later(Exception):
    """This try failed in a way that another may not."""

    def __init__(self, cause: PolicyError) -> None:
        super().__init__(cause)
        self.cause = cause
