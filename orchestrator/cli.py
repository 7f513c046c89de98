"""`rollcage`: reads the command line, hands it to one command, turns errors into a message and a code.

Exit codes: 0 done; 1 it failed; 2 bad usage, configuration or tasks; 3 validate found red; 130 interrupted.
Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.suggest import did_you_mean
from workers.errors import ConfigError, RollcageError, TaskError, Unsupported

COMMANDS = {
    "run": "roll out, score and stream; ends with a summary",
    "measure": "the pass rate of every task, with an interval",
    "validate": "check every task: its solution scores 1, doing nothing and every attack 0",
    "config": "print the resolved configuration, or every option (--schema)",
    "show": "list the episodes of a run, or print one turn by turn",
    "doctor": "what this machine can do, and the remedy for what it can't",
}
WITHOUT_OVERRIDES = ("show", "doctor")
FLAGS = ("--config", "--config-dir", "--multirun", "--resume", "--json", "--schema", "--where", "--episode")
OVERRIDES_HELP = """overrides:
  a.b=VALUE     set an option              +a.b=VALUE  add a label      ++a.b=VALUE  set or add
  GROUP=NAME    take configs/GROUP/NAME    ~a.b        back to the default
  -m a.b=1,2    one run for each value

  rollcage config --schema lists every option.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    is_debugging = "--debug" in arguments
    try:
        return _dispatch(arguments)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except Exception as error:
        if is_debugging:
            raise
        return _report(error)


def _report(error: BaseException) -> int:
    """Tell what went wrong, and return the exit code. Of errors that came together the first speaks."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, RollcageError):
        print(f"rollcage: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError | TaskError | Unsupported) else 1
    print(f"rollcage: {type(error).__name__}: {error}\n  remedy: --debug shows where", file=sys.stderr)
    return 1


def _dispatch(arguments: Sequence[str]) -> int:
    if list(arguments) == ["--version"]:
        print(_version())
        return 0
    parser = _parser()
    args, rest = parser.parse_known_args(arguments)
    flags = [word for word in rest if word.startswith("-")]
    if flags:
        parser.error(f"{args.command}: unknown option {flags[0]}{did_you_mean(flags[0], FLAGS)}")
    if rest and args.command in WITHOUT_OVERRIDES:
        parser.error(f"{args.command}: unexpected {rest[0]}")
    match args.command:
        case "doctor":
            from orchestrator.commands import doctor

            return doctor.run(is_json=args.json)
        case "show":
            from orchestrator.commands import show

            return show.run(
                show.Query(args.run, args.where, args.limit, args.episode, args.attempt, args.json)
            )
    return _configured(args, [*args.overrides, *rest])


def _configured(args: argparse.Namespace, words: Sequence[str]) -> int:
    """The commands that take overrides."""
    from orchestrator.invocation import Invocation
    from orchestrator.overrides import parse

    asked = Invocation(
        overrides=tuple(parse(word) for word in words),
        config_file=args.config,
        config_dirs=tuple(args.config_dir),
        is_sweep=args.multirun,
    )
    match args.command:
        case "config":
            from orchestrator.commands import config

            return config.schema(is_json=args.json) if args.schema else config.run(asked)
        case "validate":
            from orchestrator.commands import validate

            return validate.run(asked, args.json, args.gold_runs)
        case "measure":
            from orchestrator.commands import measure

            return measure.run(asked, is_json=args.json)
        case _:
            from orchestrator.commands import run

            return run.run(asked, resume=args.resume, is_json=args.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rollcage", description="Roll out language-model agents in sandboxes."
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    made = {
        name: commands.add_parser(
            name,
            help=about,
            description=about,
            epilog=None if name in WITHOUT_OVERRIDES else OVERRIDES_HELP,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        for name, about in COMMANDS.items()
    }
    for name, command in made.items():
        command.add_argument("--debug", action="store_true", help="show where an error was raised")
        if name not in WITHOUT_OVERRIDES:
            _add_config_arguments(command)
    _add_own_arguments(made)
    return parser


def _add_config_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="see below")
    command.add_argument(
        "--config", type=Path, metavar="FILE", help="a configuration, such as RUN/config.yaml"
    )
    command.add_argument(
        "--config-dir", type=Path, action="append", default=[], metavar="DIR", help="group files of your own"
    )
    command.add_argument(
        "-m", "--multirun", action="store_true", help="run every combination of several values"
    )


def _add_own_arguments(made: dict[str, argparse.ArgumentParser]) -> None:
    made["run"].add_argument("--resume", metavar="RUN", help="go on with a run that was cut short")
    for name in ("run", "measure"):
        made[name].add_argument("--json", action="store_true", help="print the summary as JSON")
    made["validate"].add_argument("--json", type=Path, metavar="FILE", help="write the reports as JSON")
    made["validate"].add_argument(
        "--gold-runs", type=int, default=3, metavar="N", help="play the solution so often"
    )
    made["config"].add_argument("--schema", action="store_true", help="list every option")
    made["config"].add_argument("--json", action="store_true", help="with --schema: as JSON")
    made["doctor"].add_argument("--json", action="store_true", help="as JSON")
    show = made["show"]
    show.add_argument("run", metavar="RUN", help="folder of a run, or its id under runs/")
    show.add_argument("--where", default="", metavar="SQL", help="such as: passed and num_turns > 2")
    show.add_argument("--limit", type=int, default=20, metavar="N", help="list at most so many episodes")
    show.add_argument("--episode", default="", metavar="ID", help="print this one turn by turn")
    show.add_argument("--attempt", type=int, default=None, metavar="N", help="an earlier attempt of it")
    show.add_argument("--json", action="store_true", help="as JSON")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"rollcage {version('rollcage')}"
    except PackageNotFoundError:
        return "rollcage (not installed)"
