"""From files and overrides to one checked configuration.

Later wins: the defaults in code; the groups that the shipped root file and then `--config FILE` choose; the
values of those two files; groups chosen on the command line, each in place of the whole section; its values.
Every error names the key, the value, where it was set and what would be right. `run_id` and `run_dir` are
never taken from a file, so that a resolved configuration repeats a run as a new one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from orchestrator.config import GROUPS, Config, Option, Value, options
from orchestrator.config_files import DEFAULTS, Setting, read_group, read_root
from orchestrator.overrides import Element, Operation, Override
from orchestrator.suggest import did_you_mean
from workers.errors import ConfigError

COMMAND_LINE = "command line"
ROOT_FILE = "config.yaml"
OPTIONS = {item.key: item for item in options()}
LABELS = "labels"
NAMES_A_RUN = ("run_id", "run_dir")
IMPLIED = {"policy.url": "openai", "policy.script": "script"}


def compose(overrides: Sequence[Override], dirs: Sequence[Path], file: Path | None = None) -> Config:
    """Overrides have one value each (`overrides.expand`). The last of `dirs` holds the shipped root file."""
    root = read_root(dirs[-1] / ROOT_FILE)
    own = read_root(file) if file else None
    chosen = {**_implied(overrides, own is not None), **_chosen(overrides)}
    before = {**root.choices, **(own.choices if own else {})}
    if own is None:
        before.update(chosen)
    draft = Draft()
    for group, name in before.items():
        draft.put_all(read_group(group, name, dirs, COMMAND_LINE if group in chosen else ROOT_FILE))
    draft.put_all(root.settings)
    if own:
        draft.put_all(setting for setting in own.settings if setting.key not in NAMES_A_RUN)
        for group, name in chosen.items():
            draft.reset(group)
            draft.put_all(read_group(group, name, dirs, COMMAND_LINE))
    for override in overrides:
        if override.key not in chosen:
            _apply(draft, override)
    return draft.finish()


def to_yaml(config: Config) -> str:
    """The whole configuration; `compose` reads it back to an equal one."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


class Draft:
    """A configuration on its way: typed by the dataclasses, with a note of where each value came from."""

    def __init__(self) -> None:
        self._node = cast(DictConfig, OmegaConf.structured(Config))
        self._origin: dict[str, str] = {}
        _unlock(self._node)

    def put_all(self, settings: Iterator[Setting] | Sequence[Setting]) -> None:
        for setting in settings:
            self.put(setting)

    def put(self, setting: Setting) -> None:
        """Set one option. Raises ConfigError where it is unknown or of another type."""
        option = _known(setting)
        value = setting.value
        if option.type_name.startswith("text") and setting.text is not None and value is not None:
            value = setting.text
        try:
            OmegaConf.update(self._node, setting.key, value, merge=False)
        except OmegaConfBaseException as error:
            raise _misfit(option, setting.key, value, setting.where) from error
        self._origin[setting.key] = setting.where

    def has(self, key: str) -> bool:
        return OmegaConf.select(self._node, key, throw_on_missing=False) is not None

    def value(self, key: str) -> Value:
        return cast(Value, OmegaConf.select(self._node, key))

    def reset(self, key: str) -> None:
        """Back to the default in code: one option or a whole section; a label is taken away."""
        parent, _, name = key.rpartition(".")
        if parent == LABELS:
            self._node[LABELS].pop(name)
        elif key in GROUPS:
            self._node[key] = OmegaConf.structured(get_type_hints(Config)[key])
            _unlock(self._node)
        elif key == LABELS:
            self._node[LABELS] = {}
        else:
            OmegaConf.update(self._node, key, OPTIONS[key].default, merge=False)

    def finish(self) -> Config:
        """Resolve what refers to other values, and check every range."""
        try:
            config = OmegaConf.to_object(self._node)
        except OmegaConfBaseException as error:
            key = str(error.full_key or error.key or "")
            raise ConfigError(
                f"{key} ({self._origin.get(key, 'default')}): {str(error).splitlines()[0]}",
                "give it a plain value",
            ) from error
        assert isinstance(config, Config)
        for option in OPTIONS.values():
            value = option_value(config, option.key)
            if option.key != LABELS and not option.admits(value):
                raise _misfit(option, option.key, value, self._origin.get(option.key, "default"))
        return config


def option_value(config: Config, key: str) -> Value:
    """One option's value by its dotted key."""
    found: object = config
    for name in key.split("."):
        found = getattr(found, name)
    return cast(Value, found)


def _unlock(node: DictConfig) -> None:
    """Frozen dataclasses make read-only nodes; a draft is written to."""
    OmegaConf.set_readonly(node, False)
    for name in GROUPS:
        OmegaConf.set_readonly(node[name], False)


def _chosen(overrides: Sequence[Override]) -> dict[str, str]:
    """The groups that the command line chooses: `policy=openai`."""
    chosen: dict[str, str] = {}
    for override in overrides:
        if override.key not in GROUPS or override.operation is Operation.DELETE:
            continue
        value = override.elements[0].value
        if isinstance(value, dict):
            continue
        if not isinstance(value, str) or not value or override.operation is Operation.ADD:
            raise ConfigError(
                f"{override.argument} ({COMMAND_LINE}): not the name of a group file",
                f"write {override.key}=NAME or {override.key}.OPTION=VALUE",
            )
        chosen[override.key] = value
    return chosen


def _implied(overrides: Sequence[Override], has_file: bool) -> dict[str, str]:
    """A server's address says which policy is meant, unless something else says it."""
    keys = {override.key for override in overrides if override.operation is not Operation.DELETE}
    if has_file or keys & {"policy", "policy.kind"}:
        return {}
    implied = [name for key, name in IMPLIED.items() if key in keys]
    return {"policy": implied[0]} if implied else {}


def _apply(draft: Draft, override: Override) -> None:
    if override.operation is Operation.DELETE:
        _delete(draft, override)
        return
    for setting in _flatten(override.key, override.elements[0]):
        is_label = setting.key.startswith(f"{LABELS}.")
        if override.operation is Operation.ADD and not (is_label and not draft.has(setting.key)):
            _known(setting)
            raise ConfigError(
                f"{override.argument}: {setting.key} is there already", "leave out the +, or write ++"
            )
        if override.operation is Operation.SET and is_label and not draft.has(setting.key):
            raise ConfigError(
                f"{override.argument}: there is no such label yet", f"write +{override.argument}"
            )
        draft.put(setting)


def _delete(draft: Draft, override: Override) -> None:
    key = override.key
    if key.startswith(f"{LABELS}.") and not draft.has(key):
        raise ConfigError(f"{override.argument}: there is no such label", "leave it out")
    if key not in GROUPS:
        _known(Setting(key, None, COMMAND_LINE))
    if override.elements and draft.value(key) != override.elements[0].value:
        raise ConfigError(
            f"{override.argument}: {key} is {draft.value(key)!r}", f"write ~{key} to take back any value"
        )
    draft.reset(key)


def _flatten(key: str, element: Element) -> Iterator[Setting]:
    """A table as one setting for each of its leaves."""
    if isinstance(element.value, dict):
        for name, value in element.value.items():
            yield from _flatten(f"{key}.{name}", Element(value))
    else:
        yield Setting(key, element.value, COMMAND_LINE, element.text)


def _known(setting: Setting) -> Option:
    """The option that a setting is for."""
    key = setting.key
    if key in OPTIONS:
        return OPTIONS[key]
    parent, _, _ = key.rpartition(".")
    if parent == LABELS:
        return dataclasses.replace(OPTIONS["run_id"], key=key)
    if key in GROUPS:
        raise ConfigError(
            f"{key}={setting.value!r} ({setting.where}): {key} is a section",
            f"choose a file of it in {DEFAULTS}: - {key}: NAME",
        )
    shown = setting.text if setting.text is not None else repr(setting.value)
    raise ConfigError(
        f"{key}={shown} ({setting.where}): there is no such option{did_you_mean(key, [*OPTIONS, *GROUPS])}",
        "rollcage config --schema lists every option",
    )


def _misfit(option: Option, key: str, value: object, where: str) -> ConfigError:
    return ConfigError(f"{key}={value} ({where}): must be {option.wanted}", f"{key}: {option.doc}")
