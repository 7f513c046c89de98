"""Backends side by side, as Markdown: `python -m tests.benchmarks.sandboxes`, or `make bench`.

Times are wall-clock milliseconds of one caller unless a row says otherwise. Docker needs an engine (as root, one is
started) and its test image; without, its columns are missing and a line says why. `--quick` only shows that every
measurement runs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import docker

from tests.benchmarks.measures import (
    Density,
    Scale,
    Times,
    WarmBackend,
    density,
    episodes_a_minute,
    full_reset,
    one_command,
    prewarmed,
    repository,
    snapshots,
    spec_of,
)
from tests.sandbox.docker_engine import IMAGE, make_backend, running_engine
from workers.archive import EMPTY
from workers.errors import Unsupported
from workers.sandbox.bubblewrap import BubblewrapBackend, BubblewrapOptions
from workers.sandbox.protocol import SandboxSpec
from workers.sandbox.warm import WarmOptions

ROOT = Path(__file__).resolve().parent.parent.parent
PARTS = ("reset", "take", "command", "throughput", "snapshots", "density", "bare")
BACKENDS: Mapping[str, Callable[[int], WarmBackend]] = {
    "bubblewrap": lambda warm: BubblewrapBackend(BubblewrapOptions(warm=WarmOptions(high=warm))),
    "docker": make_backend,
}
READY = 4
FULL = {
    "bubblewrap": Scale(300, 300, 20, 8, 5000, 9600, 60, 100, 64),
    "docker": Scale(30, 60, 30, 8, 5000, 9600, 60, 15, 64),
}
QUICK = {
    "bubblewrap": Scale(5, 5, 1, 4, 50, 100, 3, 3, 2),
    "docker": Scale(2, 3, 1, 4, 50, 100, 2, 1, 2),
}
DENSITY = {"bubblewrap": (100, 500, 1000, 2000), "docker": (100, 500)}
QUICK_DENSITY = {"bubblewrap": (5, 10), "docker": (2, 4)}
BARE = "docker-py alone: create + start + wait + remove"


@dataclass(slots=True)
class Found:
    """What was measured of one backend."""

    times: dict[str, Times] = field(default_factory=dict)
    a_minute: dict[str, float] = field(default_factory=dict)
    density: list[Density] = field(default_factory=list)


def tell(text: str) -> None:
    print(f"  {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


async def measure(name: str, scale: Scale, parts: set[str], counts: tuple[int, ...]) -> Found:
    found = Found()
    backend = BACKENDS[name](0)
    await backend.start()
    small, large = spec_of(EMPTY), spec_of(repository(scale))
    files = f"{scale.files:,} files, {scale.files * scale.file_bytes / 1e6:.0f} MB"
    try:
        for label, spec in (("empty workspace", small), (files, large)):
            if "reset" in parts:
                tell(f"{name}: full reset, {label}")
                found.times[f"full reset, {label}"] = await full_reset(backend, spec, scale.resets)
        if "command" in parts:
            tell(f"{name}: one command")
            found.times["one supervised command"] = await one_command(backend, large, scale.commands)
        if "snapshots" in parts:
            tell(f"{name}: snapshots")
            try:
                sealed = await snapshots(backend, large, scale)
            except Unsupported as error:
                tell(f"{name}: {error}")
            else:
                found.times["seal a snapshot"] = sealed.seal
                found.times["fork, small change"] = sealed.fork
                found.times[f"fork, {scale.large_state_mb} MB change"] = sealed.fork_large
                found.times[f"fork, end of a chain of {scale.chain}"] = sealed.fork_chain
        if "throughput" in parts:
            for label, spec in (("empty workspace", small), (files, large)):
                tell(f"{name}: throughput, {label}")
                found.a_minute[label] = await episodes_a_minute(backend, spec, scale)
        if "density" in parts:
            tell(f"{name}: density")
            found.density = await density(backend, small, counts, lambda text: tell(f"{name}: {text}"))
    finally:
        await backend.close()
    if "take" in parts:
        tell(f"{name}: prewarmed take")
        found.times["prewarmed take"] = await _take(BACKENDS[name](READY), large, scale.resets)
    return found


async def _take(backend: WarmBackend, spec: SandboxSpec, rounds: int) -> Times:
    await backend.start()
    try:
        return await prewarmed(backend, spec, rounds)
    finally:
        await backend.close()


def bare(rounds: int) -> Times:
    """The usual way with containers, without any of our walls: one command, one container."""
    client = docker.from_env()
    taken = []
    try:
        for _ in range(rounds):
            started = time.perf_counter()
            container = client.containers.create(IMAGE, ["true"], network_mode="none")
            container.start()
            container.wait()
            container.remove()
            taken.append(time.perf_counter() - started)
    finally:
        client.close()
    return Times(tuple(taken))


def table(found: Mapping[str, Found]) -> str:
    names = list(found)
    head = [
        "ms",
        *(f"{name} {share}" for name in names for share in ("p50", "p95")),
        "Docker ÷ bubblewrap, p50",
    ]
    lines = [head, ["---"] + ["---:"] * (len(head) - 1)]
    for row in dict.fromkeys(row for one in found.values() for row in one.times):
        times = [one.times.get(row) for one in found.values()]
        cells = [cell for one in times for cell in _cells(one)]
        lines.append([row, *cells, _ratio(found, row)])
    for row in dict.fromkeys(row for one in found.values() for row in one.a_minute):
        cells = []
        for one in found.values():
            cells += [f"{one.a_minute[row]:,.0f}" if row in one.a_minute else "–", ""]
        lines.append([f"episodes a minute, {row}", *cells, ""])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cells(times: Times | None) -> list[str]:
    return ["–", "–"] if times is None else [_ms(times.at(0.5)), _ms(times.at(0.95))]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"


def _ratio(found: Mapping[str, Found], row: str) -> str:
    if set(found) < {"bubblewrap", "docker"} or row not in found["bubblewrap"].times:
        return ""
    other = found["docker"].times.get(row)
    return f"{other.at(0.5) / found['bubblewrap'].times[row].at(0.5):,.0f}×" if other else ""


def density_table(found: Mapping[str, Found]) -> str:
    head = ["live", "backend", "MB each", "create p50 ms", "create p95 ms", "command p50 ms"]
    lines = [head, ["---:", "---"] + ["---:"] * 4]
    for name, one in found.items():
        for row in one.density:
            numbers = (row.memory_mb_each, row.create_ms_p50, row.create_ms_p95, row.command_ms_p50)
            lines.append([f"{row.count:,}", name, *(f"{number:.2f}" for number in numbers)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="sandboxes", description="Measures sandbox backends side by side.")
    parser.add_argument(
        "--quick", action="store_true", help="a few rounds of each, to see that all of it runs"
    )
    parser.add_argument("--backends", default="bubblewrap,docker", help="which, with commas between")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts: {', '.join(PARTS)}")
    parser.add_argument("--density", help="counts of live sandboxes for every backend, with commas between")
    asked = parser.parse_args()
    parts, names = set(asked.only.split(",")), asked.backends.split(",")
    if unknown := (parts - set(PARTS)) | (set(names) - set(BACKENDS)):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    found: dict[str, Found] = {}
    with running_engine() as refusal:
        for name in names:
            if name == "docker" and (refusal or (refusal := _no_image())):
                print(f"Docker was not measured: {refusal}\n", flush=True)
                continue
            scale = (QUICK if asked.quick else FULL)[name]
            counts = (QUICK_DENSITY if asked.quick else DENSITY)[name]
            if asked.density:
                counts = tuple(int(number) for number in asked.density.split(","))
            found[name] = asyncio.run(measure(name, scale, parts, counts))
            if name == "docker" and "bare" in parts:
                found[name].times[BARE] = bare(scale.resets)
    print(f"{len(os.sched_getaffinity(0))} cores, Linux {platform.release()}, uid {os.getuid()}\n")
    print(table(found))
    if "density" in parts:
        print("\nLive sandboxes with a live process each (memory by what the machine has left):\n")
        print(density_table(found))


def _no_image() -> str:
    made = subprocess.run(
        [ROOT / "scripts/docker-test-image"], capture_output=True, text=True, timeout=900, check=False
    )
    return made.stderr.strip() if made.returncode else ""


if __name__ == "__main__":
    main()
