"""A storm of kill -9: the owner, a keeper, a first process, an attendant, at random points of random deeds.

From outside, nothing may be left: no process, no mount, no folder. Run it alone for a count of leaks:

    python tests/sandbox/storm.py --rounds 200 --seed 1
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from sandbox.outside import descendants, host_mounts, wait_until_gone  # noqa: E402

TARGETS = ("owner", "keeper", "outer", "first", "attendant")
OWNER = """
import asyncio, random, sys
from workers.sandbox.bubblewrap import BubblewrapBackend, BubblewrapOptions
from workers.sandbox.protocol import Command, SandboxSpec

async def life(backend, chance, mark):
    while True:
        try:
            box = await backend.create(SandboxSpec())
            await box.exec(Command.shell(f"(setsid sleep {mark} &); sleep {mark} & echo x > y"))
            if chance.random() < 0.4:
                fork = await backend.fork(await box.snapshot())
                await fork.exec(Command.shell(f"sleep {mark} & true"))
                await fork.close()
            if chance.random() < 0.3:
                await asyncio.wait_for(box.exec(Command.shell(f"sleep {mark}")), chance.random() / 5)
            await box.close()
        except Exception:
            await asyncio.sleep(0.01)

async def main():
    chance = random.Random(int(sys.argv[1]))
    backend = BubblewrapBackend(BubblewrapOptions(keepers=2))
    await backend.start()
    print("ready", flush=True)
    await asyncio.gather(*(life(backend, chance, sys.argv[2]) for _ in range(3)))

asyncio.run(main())
"""


@dataclass(frozen=True)
class Leak:
    """What one round left behind."""

    round: int
    target: str
    what: str


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def marked(mark: str) -> set[int]:
    """Every process on this machine that bears the round's mark."""
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    return {pid for pid in pids if pid != os.getpid() and f"sleep {mark}" in name_of(pid)}


def pick(target: str, below: set[int], chance: random.Random) -> int | None:
    """A process of the kind to kill."""
    kinds = {
        "keeper": lambda name: "/rollcage/keeper.zip" in name,
        "attendant": lambda name: "/rollcage/keeper.zip" in name,
        "outer": lambda name: name.startswith("bwrap ") and "keeper.zip" in name,
        "first": lambda name: name.startswith("cat "),
    }
    found = sorted(pid for pid in below if kinds[target](name_of(pid)))
    if target == "keeper":
        found = [
            pid
            for pid in found
            if any(name_of(child).startswith(("bwrap", "cat")) for child in descendants(pid))
        ]
    return chance.choice(found) if found else None


def play_round(number: int, chance: random.Random) -> list[Leak]:
    """Start an owner, let it work, kill something, then the owner; what is left."""
    target, mark = chance.choice(TARGETS), str(chance.randrange(10**6, 10**7))
    mounts = host_mounts()
    with tempfile.TemporaryDirectory() as folder:
        owner = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(number), mark], cwd=ROOT, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env={**os.environ, "TMPDIR": folder},
        )  # fmt: skip
        with owner:
            assert owner.stdout is not None
            if chance.random() < 0.8:
                owner.stdout.readline()
            time.sleep(chance.random() * 0.6)
            seen = descendants(owner.pid)
            if target != "owner":
                pid = pick(target, seen, chance)
                if pid is not None:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
                    time.sleep(chance.random() * 0.3)
            seen |= descendants(owner.pid)
            owner.kill()
        left = wait_until_gone(seen) | wait_until_gone(marked(mark))
        files = os.listdir(folder)
    leaks = [Leak(number, target, f"process {pid} {name_of(pid)}") for pid in left]
    leaks += [Leak(number, target, f"folder {name}") for name in files]
    if host_mounts() != mounts:
        leaks.append(Leak(number, target, f"{host_mounts() - mounts} mounts"))
    return leaks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance, leaks = random.Random(options.seed), []
    for number in range(options.rounds):
        leaks += play_round(number, chance)
    for leak in leaks:
        print(leak)
    print(f"{options.rounds} rounds, seed {options.seed}: {len(leaks)} leaks")
    sys.exit(bool(leaks))


if __name__ == "__main__":
    main()
