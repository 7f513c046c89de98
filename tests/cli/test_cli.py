"""The command line: words in, message and exit code out."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from orchestrator.cli import COMMANDS, main
from orchestrator.config import Config, options
from orchestrator.progress import Phase, Progress
from orchestrator.stats import Ending, RunResult, RunStats
from workers.errors import Fault, InfrastructureError, TaskError, Unsupported

Told = pytest.CaptureFixture[str]


def test_help_lists_every_command(capsys: Told) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert all(name in told for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys: Told) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert COMMANDS[name].split(":")[0].split("'")[0] in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "words", [[], ["rum"], ["run", "--resum", "x"], ["doctor", "x"], ["show"], ["show", "a", "b"]]
)
def test_bad_usage_is_code_two(words: list[str], capsys: Told) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "rollcage" in capsys.readouterr().err


def test_a_misspelt_flag_is_refused_with_a_suggestion(capsys: Told) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--resum", "x"])
    assert "did you mean --resume?" in capsys.readouterr().err


def test_config_prints_what_would_hold(capsys: Told) -> None:
    assert main(["config", "rollout.groups=3", "policy=openai"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert (config["rollout"]["groups"], config["policy"]["kind"]) == (3, "openai")


def test_overrides_may_stand_before_between_and_after_flags(tmp_path: Path, capsys: Told) -> None:
    words = ["config", "seed=1", "--config-dir", str(tmp_path), "rollout.groups=2", "-m", "~policy.url"]
    assert main(words) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert (config["seed"], config["rollout"]["groups"]) == (1, 2)


def test_a_sweep_prints_a_document_for_each_point(capsys: Told) -> None:
    assert main(["config", "-m", "seed=1,2", "trainer=rloo,grpo"]) == 0
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [(d["seed"], d["trainer"]["advantage"]) for d in documents] == [
        (1, "leave_one_out"),
        (1, "mean_std"),
        (2, "leave_one_out"),
        (2, "mean_std"),
    ]


def test_several_values_without_a_sweep_are_refused(capsys: Told) -> None:
    assert main(["config", "seed=1,2"]) == 2
    assert "-m" in capsys.readouterr().err


def test_the_schema_lists_every_option(capsys: Told) -> None:
    assert main(["config", "--schema"]) == 0
    text = capsys.readouterr().out
    assert main(["config", "--schema", "--json"]) == 0
    listed = {item["key"]: item for item in json.loads(capsys.readouterr().out)}
    for option in options():
        assert option.key in text
        assert option.doc in text
        assert listed[option.key]["doc"] == option.doc


def test_an_error_is_one_block_with_a_remedy_and_no_traceback(capsys: Told) -> None:
    assert main(["config", "rollout.group=3"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("rollcage: rollout.group=3 (command line)")
    assert "remedy:" in told.err
    assert "Traceback" not in told.err


class FakeDriver:
    """Stands in for a run: remembers what it was asked for, and ends as it is told."""

    def __init__(self, ending: Ending = Ending.DONE, error: BaseException | None = None) -> None:
        self.ending, self.error = ending, error
        self.asked: list[tuple[Config, Path | None, bool]] = []

    def run(
        self,
        config: Config,
        *,
        resume: Path | None = None,
        is_measuring: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> RunResult:
        self.asked.append((config, resume, is_measuring))
        assert on_progress is not None
        on_progress(Progress(Phase.STARTING, 0.0, "loading the model"))
        if self.error:
            raise self.error
        folder = Path(config.run_dir)
        return RunResult(RunStats(config.run_id, folder, "run", self.ending, "mine", "local", config.seed))


@pytest.fixture
def driven(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[FakeDriver], FakeDriver]:
    """Puts a fake in the driver's place, in an empty folder with a task set `mine`."""
    from orchestrator import driver

    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()

    def put(fake: FakeDriver) -> FakeDriver:
        monkeypatch.setattr(driver, "run", fake.run)
        return fake

    return put


Driven = Callable[[FakeDriver], FakeDriver]
RUN = ["run", "tasks.path=mine"]


def test_run_shows_progress_on_stderr_and_the_summary_on_stdout(driven: Driven, capsys: Told) -> None:
    fake = driven(FakeDriver())
    assert main([*RUN, "seed=7"]) == 0
    ((config, resume, is_measuring),) = fake.asked
    assert (config.seed, resume, is_measuring) == (7, None, False)
    assert config.run_id
    told = capsys.readouterr()
    assert "loading the model" in told.err
    assert f"Run {config.run_id}: done" in told.out


def test_run_prints_the_summary_as_json_alone(driven: Driven, capsys: Told) -> None:
    driven(FakeDriver())
    assert main([*RUN, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ending"] == "done"


def test_measure_only_measures(driven: Driven) -> None:
    fake = driven(FakeDriver())
    assert main(["measure", "tasks.path=mine"]) == 0
    assert fake.asked[0][2]


def test_a_sweep_runs_one_after_another_in_folders_of_their_own(driven: Driven) -> None:
    fake = driven(FakeDriver())
    assert main([*RUN, "-m", "seed=1,2,3"]) == 0
    assert [config.seed for config, _, _ in fake.asked] == [1, 2, 3]
    assert len({config.run_dir for config, _, _ in fake.asked}) == 3


def test_a_sweep_into_one_folder_is_refused(driven: Driven, capsys: Told) -> None:
    fake = driven(FakeDriver())
    assert main([*RUN, "-m", "seed=1,2", "run_dir=out"]) == 2
    assert "share one folder" in capsys.readouterr().err
    assert not fake.asked


@pytest.mark.parametrize(
    ("ending", "code"), [(Ending.DONE, 0), (Ending.FAILED, 1), (Ending.INTERRUPTED, 130)]
)
def test_the_ending_is_the_exit_code_and_stops_a_sweep(driven: Driven, ending: Ending, code: int) -> None:
    fake = driven(FakeDriver(ending))
    assert main([*RUN, "-m", "seed=1,2"]) == code
    assert len(fake.asked) == (2 if ending is Ending.DONE else 1)


FAULT = Fault("t", "task.toml", "timeout", "nan", "not a number", "give seconds")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (TaskError((FAULT,)), 2, "task.toml"),
        (Unsupported("no docker", "bubblewrap"), 2, "instead: bubblewrap"),
        (InfrastructureError("pool_lost", "gone"), 1, "pool_lost"),
        (ExceptionGroup("many", [InfrastructureError("disk_full", "no room")]), 1, "disk_full"),
        (OSError("boom"), 1, "OSError: boom"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_what_a_run_raises_becomes_a_message_and_a_code(
    driven: Driven, capsys: Told, error: BaseException, code: int, said: str
) -> None:
    driven(FakeDriver(error=error))
    assert main(RUN) == code
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told


def test_debug_shows_where_an_error_was_raised(driven: Driven) -> None:
    driven(FakeDriver(error=OSError("boom")))
    with pytest.raises(OSError, match="boom"):
        main([*RUN, "--debug"])


def test_resume_takes_the_runs_own_configuration(driven: Driven, tmp_path: Path, capsys: Told) -> None:
    fake = driven(FakeDriver())
    assert main(["config", "seed=9", "tasks.path=mine"]) == 0
    folder = tmp_path / "runs" / "first"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(capsys.readouterr().out.replace("run_id: ''", "run_id: first"))
    assert main(["run", "--resume", "first"]) == 0
    ((config, resume, _),) = fake.asked
    assert (config.seed, config.run_id, resume) == (9, "first", folder)
    assert main(["run", "--resume", "second"]) == 2
    assert main(["run", "--resume", "first", "seed=1"]) == 2


def test_the_module_is_the_command_and_starts_fast() -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "orchestrator", "config", "--schema"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert time.monotonic() - began < 10
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert not loaded & {"ray", "pyarrow", "numpy", "omegaconf", "rich", "duckdb", "prometheus_client"}


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    command = f"{sys.executable} -m orchestrator config --schema | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
