"""Configuration files as ordered settings, each with the file and line that it comes from.

A group file `GROUP/NAME.yaml` holds one section; `# @package _global_` on its first line makes its keys those
of the root. Its `defaults` name other files of the same group that it builds on; a root file's `defaults`
choose a name for each group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from orchestrator.config import GROUPS
from orchestrator.overrides import Plain
from orchestrator.suggest import did_you_mean
from workers.errors import ConfigError

DEFAULTS = "defaults"
GLOBAL = "# @package _global_"
MAX_FILE_BYTES = 1 << 20
MAX_CHAIN = 8


@dataclass(frozen=True, slots=True)
class Setting:
    """One value of one key. `text` is its bare spelling where it has one; `where` says who set it."""

    key: str
    value: Plain
    where: str
    text: str | None = None


@dataclass(frozen=True, slots=True)
class RootFile:
    """A file of the whole configuration: what it chooses for each group, and what it sets."""

    choices: dict[str, str]
    settings: tuple[Setting, ...]


def read_root(path: Path) -> RootFile:
    """Raises ConfigError that names the file and the line."""
    choices: dict[str, str] = {}
    settings: list[Setting] = []
    for setting in _settings(path, _text(path), ""):
        if setting.key != DEFAULTS:
            settings.append(setting)
            continue
        for choice in _list(setting):
            if not isinstance(choice, dict) or len(choice) != 1 or not set(choice) <= set(GROUPS):
                raise ConfigError(
                    f"{setting.where}: {choice!r} in defaults",
                    f"write GROUP: NAME; groups are {', '.join(GROUPS)}",
                )
            choices.update({group: str(name) for group, name in choice.items()})
    return RootFile(choices, tuple(settings))


def read_group(
    group: str, name: str, dirs: Sequence[Path], where: str, depth: int = 0
) -> tuple[Setting, ...]:
    """The settings of GROUP/NAME.yaml after those of the files that it builds on."""
    if depth > MAX_CHAIN:
        raise ConfigError(
            f"{where}: {group}={name} builds on itself", f"mend the {DEFAULTS} of the group's files"
        )
    path = _find(group, name, dirs, where)
    text = _text(path)
    own: list[Setting] = []
    base: list[Setting] = []
    prefix = "" if text.startswith(GLOBAL) else f"{group}."
    for setting in _settings(path, text, prefix):
        if setting.key != prefix + DEFAULTS:
            own.append(setting)
            continue
        for parent in _list(setting):
            if not isinstance(parent, str):
                raise ConfigError(
                    f"{setting.where}: {parent!r} in defaults", f"write names of files in {group}/"
                )
            base += read_group(group, parent, dirs, setting.where, depth + 1)
    return (*base, *own)


def _find(group: str, name: str, dirs: Sequence[Path], where: str) -> Path:
    """The first folder that has the file wins."""
    names = sorted({path.stem for folder in dirs for path in (folder / group).glob("*.yaml")})
    if name not in names:
        known = ", ".join(names) or "none"
        raise ConfigError(
            f"{group}={name} ({where}): there is no {group}/{name}.yaml{did_you_mean(name, names)}",
            f"known are: {known}; files of your own are found by --config-dir",
        )
    return next(path for folder in dirs if (path := folder / group / f"{name}.yaml").is_file())


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES} bytes", "give a configuration file")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't be read: {error}", "give a YAML file in UTF-8") from error


def _settings(path: Path, text: str, prefix: str) -> Iterator[Setting]:
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            return
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError(f"{path}: not a table of keys", "write key: value lines")
        yield from _walk(loader, root, prefix, path)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid YAML: {error}", "mend the file") from error


def _walk(loader: yaml.SafeLoader, node: yaml.MappingNode, prefix: str, path: Path) -> Iterator[Setting]:
    seen: set[str] = set()
    for key_node, value_node in node.value:
        where = f"{path}, line {key_node.start_mark.line + 1}"
        key = f"{prefix}{key_node.value}"
        if key in seen:
            raise ConfigError(f"{where}: {key} stands here twice", "keep one of them")
        seen.add(key)
        if isinstance(value_node, yaml.MappingNode):
            yield from _walk(loader, value_node, f"{key}.", path)
        else:
            is_bare = isinstance(value_node, yaml.ScalarNode) and value_node.style is None
            value: Plain = loader.construct_object(value_node, deep=True)
            yield Setting(key, value, where, value_node.value if is_bare else None)


def _list(setting: Setting) -> list[Plain]:
    if not isinstance(setting.value, list):
        raise ConfigError(f"{setting.where}: {DEFAULTS} must be a list", "write it as - lines")
    return setting.value
