"""What was asked for on the command line, before any option is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.overrides import Override, expand
from workers.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Invocation:
    """Overrides and the files they are laid over. `is_sweep` allows several values of a key."""

    overrides: tuple[Override, ...] = ()
    config_file: Path | None = None
    config_dirs: tuple[Path, ...] = ()
    is_sweep: bool = False

    def points(self) -> Iterator[tuple[Override, ...]]:
        """The overrides of each run to make: one, or one for each point of a sweep."""
        for override in self.overrides:
            if override.is_sweep and not self.is_sweep:
                raise ConfigError(
                    f"{override.argument!r} has {len(override.elements)} values",
                    f"-m runs one after another; to mean one text, quote it: '{override.key}=\"…\"'",
                )
        return expand(self.overrides)
