"""Task folders: what loads, what is refused and in which words, and what stays on which side of the wall."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from workers.archive import EntryKind, unpack
from workers.errors import ConfigError, Fault, TaskError
from workers.task import ALL_TOOLS, Scope, Split, Task
from workers.taskset import Caps, TaskSet, load

GOOD_AND_BROKEN = Path(__file__).parents[1] / "data" / "taskdirs"
CAPS = Caps(memory_mb=65_536, cpus=64)
MATCH = '[rollcage.verifier]\nkind = "match"\nfile = "answer.txt"\ngold = "42"\nhow = "normalised"\n'


def make(folder: Path, toml: str = MATCH, instruction: str = "Say 42.\n") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "task.toml").write_text(toml)
    (folder / "instruction.md").write_text(instruction)
    return folder


def put(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def one(folder: Path) -> Task:
    (task,) = load(folder, caps=CAPS).tasks
    return task


def faults_of(folder: Path) -> tuple[Fault, ...]:
    with pytest.raises(TaskError) as caught:
        load(folder, caps=CAPS)
    return caught.value.faults


def paths_in(task: Task) -> list[str]:
    return [entry.path for entry in unpack(task.public.workspace)]


@pytest.fixture(scope="module")
def mixed() -> TaskSet:
    return load(GOOD_AND_BROKEN, on_bad_task="skip", caps=CAPS)


@pytest.mark.parametrize(
    ("name", "file", "words"),
    [
        ("blank_instruction", "instruction.md", "blank"),
        ("empty_instruction", "instruction.md", "empty"),
        ("no_instruction", "instruction.md", "missing"),
        ("no_toml", "task.toml", "missing"),
        ("broken_toml", "task.toml", "line 1"),
        ("nan_timeout", "task.toml", "not a finite number"),
        ("string_timeout", "task.toml", "without quotes"),
        ("huge_memory", "task.toml", "out of range"),
        ("dotdot_artifact", "task.toml", "leads outside"),
    ],
)
def test_a_broken_folder_is_named_with_its_file_and_its_remedy(
    mixed: TaskSet, name: str, file: str, words: str
) -> None:
    (found, *_) = [fault for fault in mixed.faults if fault.task == name]
    assert found.file == file
    assert words in str(found)
    assert found.remedy


def test_every_fault_of_every_task_is_reported_at_once() -> None:
    with pytest.raises(TaskError) as caught:
        load(GOOD_AND_BROKEN, caps=CAPS)
    assert len({fault.task for fault in caught.value.faults}) == 9
    assert str(caught.value).count("\n") == len(caught.value.faults)


def test_good_folders_load_beside_broken_ones_when_those_are_skipped(mixed: TaskSet) -> None:
    assert [task.task_id for task in mixed.tasks] == [
        "dup_a",
        "dup_b",
        "good",
        "id:with:colons",
        "reward_out_of_range",
        "reward_trailing_junk",
        "solution_next_to_environment",
        "test_crashes",
        "test_hangs",
        "test_writes_nothing",
    ]


def test_an_overlong_instruction_is_dropped_and_counted(mixed: TaskSet) -> None:
    assert [(drop.task_id, drop.reason) for drop in mixed.dropped] == [("overlong_instruction", "overlong")]
    longer = load(GOOD_AND_BROKEN / "overlong_instruction", limit_instruction_bytes=1 << 20, caps=CAPS)
    assert not longer.dropped
    assert len(longer.tasks[0].public.instruction) > 300_000


def test_tasks_with_the_same_text_keep_their_own_ids_and_digests(mixed: TaskSet) -> None:
    first, second = [task for task in mixed.tasks if task.task_id.startswith("dup_")]
    assert first.public.instruction == second.public.instruction
    assert first.public.digest != second.public.digest
    assert first.verifier.digest == second.verifier.digest


def test_a_harbor_folder_is_judged_by_its_script_in_its_own_times(mixed: TaskSet) -> None:
    (task,) = [task for task in mixed.tasks if task.task_id == "test_hangs"]
    assert (task.verifier.kind, task.verifier.timeout_s) == ("script", 2.0)
    assert (task.public.agent_timeout_s, task.public.limits.memory_mb) == (60.0, 512)
    assert task.public.workspace_path == "/app"
    assert task.public.tools == ALL_TOOLS
    assert [entry.path for entry in unpack(task.protected)] == ["test.sh"]


def test_solution_tests_and_attacks_never_reach_the_public_half(tmp_path: Path) -> None:
    folder = make(tmp_path / "t")
    for name in (
        "solution/solve.sh",
        "tests/secret.json",
        "attacks/a.sh",
        "honest/h.sh",
        "environment/notes.txt",
    ):
        put(folder, name, "HIDDEN")
    put(folder, "environment/files/seen.txt", "seen")
    task = one(folder)
    assert paths_in(task) == ["seen.txt"]
    assert b"HIDDEN" not in task.public.workspace.data
    assert task.solution is not None
    assert task.solution.body == "HIDDEN"
    assert [script.name for script in (*task.attacks, *task.honest)] == ["a", "h"]


def test_all_of_our_settings_are_read(tmp_path: Path) -> None:
    toml = (
        '[rollcage]\nworkspace = "/srv/work"\nscope = "workspace"\nsplit = "eval"\ntools = ["run", "submit"]\n'
        'answer_file = "out/answer.txt"\npass_threshold = 0.5\nimage = "docker:debian:12"\n'
        "[rollcage.limits]\npids = 9\ninodes = 100\nopen_files = 64\n"
    )
    task = one(make(tmp_path / "t", toml + MATCH + "timeout_s = 7\n"))
    public = task.public
    assert (public.workspace_path, public.scope, public.split) == ("/srv/work", Scope.WORKSPACE, Split.EVAL)
    assert (public.tools, public.answer_file, public.image) == (
        ("run", "submit"),
        "out/answer.txt",
        "docker:debian:12",
    )
    assert (public.limits.pids, public.limits.inodes, public.limits.open_files) == (9, 100, 64)
    assert (task.pass_threshold, task.verifier.kind, task.verifier.timeout_s) == (0.5, "match", 7.0)
    assert '"gold": "42"' in task.verifier.options_json
    assert "kind" not in task.verifier.options_json


@pytest.mark.parametrize(
    ("toml", "key", "words"),
    [
        ('[rollcage]\nanwser_file = "a"\n', "rollcage.anwser_file", "answer_file"),
        ('[rollcage]\ntools = ["run", "read_fil"]\n', "rollcage.tools", "read_file"),
        ("[rollcage]\ntools = []\n", "rollcage.tools", "empty"),
        ('[rollcage]\nsplit = "trian"\n', "rollcage.split", "train"),
        ('[rollcage]\nscope = "all"\n', "rollcage.scope", "workspace, system"),
        ('[rollcage]\nworkspace = "work"\n', "rollcage.workspace", "absolute"),
        ('[rollcage]\nworkspace = "/usr/work"\n', "rollcage.workspace", "system"),
        ('[rollcage]\nworkspace = "/a/../etc"\n', "rollcage.workspace", "absolute"),
        ('[rollcage]\nanswer_file = "../x"\n', "rollcage.answer_file", "inside the workspace"),
        ('[rollcage]\nimage = "debian"\n', "rollcage.image", "docker:"),
        ("[rollcage]\npass_threshold = 1.5\n", "rollcage.pass_threshold", "at most 1"),
        ("[rollcage.limits]\npids = 2\n", "rollcage.limits.pids", "at least 4"),
        ("[agent]\ntimeout_sec = -1\n", "agent.timeout_sec", "more than 0"),
        ("[agent]\ntimeout_sec = 0\n", "agent.timeout_sec", "more than 0"),
        ("[agent]\ntimeout_sec = inf\n", "agent.timeout_sec", "finite"),
        ("[agent]\ntimeout_sec = true\n", "agent.timeout_sec", "finite"),
        ("[verifier]\ntimeout_sec = nan\n", "verifier.timeout_sec", "finite"),
        ("[environment]\nmemory_mb = 0\n", "environment.memory_mb", "at least 1"),
        ("[environment]\nmemory_mb = 1.5\n", "environment.memory_mb", "whole"),
        ('[environment]\nmemory = "lots"\n', "environment.memory", "memory_mb"),
        ('[environment]\nmemory = "900T"\n', "environment.memory", "memory_mb"),
        ("[environment]\ncpus = 1000\n", "environment.cpus", "at most 64"),
        (f"[environment]\nmemory_mb = 0x{'f' * 9000}\n", "environment.memory_mb", "finite"),
        ("[environment]\ngpus = 1\n", "environment.gpus", "no GPU"),
        ('[environment]\nallow_internet = "no"\n', "environment.allow_internet", "without quotes"),
        ("environment = 3\n", "environment", "not a table"),
    ],
)
def test_a_wrong_value_names_its_key_and_what_would_be_right(
    tmp_path: Path, toml: str, key: str, words: str
) -> None:
    faults = faults_of(make(tmp_path / "t", toml + MATCH))
    assert {fault.key for fault in faults} == {key}
    assert words in str(faults[0])


def test_one_file_with_five_faults_gives_five(tmp_path: Path) -> None:
    toml = (
        "[agent]\ntimeout_sec = -1\n[verifier]\ntimeout_sec = -1\n[environment]\ncpus = -1\nmemory_mb = -1\n"
    )
    assert len(faults_of(make(tmp_path / "t", toml + MATCH, " \n"))) == 5


def test_tables_of_other_tools_are_left_alone(tmp_path: Path) -> None:
    toml = 'version = "1.0"\n[other]\ntimeout_sec = "x"\n[metadata]\nday = 2024-01-01\n[agent]\nmodel = 3\n'
    assert one(make(tmp_path / "t", toml + MATCH)).task_id == "t"


def test_sizes_as_harbor_once_wrote_them_are_read(tmp_path: Path) -> None:
    toml = '[environment]\nmemory = "2G"\nstorage = "512M"\n'
    limits = one(make(tmp_path / "t", toml + MATCH)).public.limits
    assert (limits.memory_mb, limits.storage_mb) == (2048, 512)


def test_a_task_that_nothing_judges_is_refused(tmp_path: Path) -> None:
    (fault,) = faults_of(make(tmp_path / "t", ""))
    assert "tests/test.sh" in fault.remedy


def test_a_verifier_without_a_kind_or_with_a_date_in_it_is_refused(tmp_path: Path) -> None:
    assert (
        faults_of(make(tmp_path / "a", '[rollcage.verifier]\ncases = "x"\n'))[0].key
        == "rollcage.verifier.kind"
    )
    assert "plain data" in faults_of(make(tmp_path / "b", MATCH + "day = 2024-01-01\n"))[0].problem
    assert "plain data" in faults_of(make(tmp_path / "c", MATCH + "tol = nan\n"))[0].problem


def test_the_image_of_a_harbor_folder_is_named_so_that_a_backend_can_refuse_it(tmp_path: Path) -> None:
    folder = make(tmp_path / "t", MATCH)
    docker = "FROM a AS x\nWORKDIR /no\nFROM b\nworkdir /srv\nWORKDIR \\\n  app\nCOPY . .\n"
    put(folder, "environment/Dockerfile", docker)
    task = one(folder)
    assert task.public.image.startswith("dockerfile:")
    assert task.public.workspace_path == "/srv/app"
    (folder / "task.toml").write_text('[environment]\ndocker_image = "debian:12"\n' + MATCH)
    assert one(folder).public.image == "docker:debian:12"
    put(folder, "environment/docker-compose.yaml", "services: {}\n")
    assert one(folder).public.image.startswith("compose:")


@pytest.mark.parametrize("workdir", ["/", "$HOME", ""])
def test_a_working_directory_that_says_nothing_falls_back(tmp_path: Path, workdir: str) -> None:
    folder = make(tmp_path / "t", "")
    put(folder, "tests/test.sh", "true")
    put(folder, "environment/Dockerfile", f"FROM a\nWORKDIR {workdir}\n" if workdir else "FROM a\n")
    assert one(folder).public.workspace_path == "/app"


def test_line_ends_stay_as_they_are(tmp_path: Path) -> None:
    folder = make(tmp_path / "t")
    (folder / "instruction.md").write_bytes(b"one\r\ntwo\r\n")
    (folder / "environment" / "files").mkdir(parents=True)
    (folder / "environment" / "files" / "dos.txt").write_bytes(b"a\r\nb")
    task = one(folder)
    assert task.public.instruction == "one\r\ntwo\r\n"
    assert [entry.data for entry in unpack(task.public.workspace)] == [b"a\r\nb"]


@pytest.mark.parametrize("target", ["/etc/passwd", "../../solution/solve.sh", "sub/../../x"])
def test_a_link_out_of_its_tree_is_refused(tmp_path: Path, target: str) -> None:
    folder = make(tmp_path / "t")
    put(folder, "solution/solve.sh", "true")
    link = put(folder, "environment/files/sub/keep", "").parents[1] / "link"
    link.symlink_to(target)
    (fault,) = faults_of(folder)
    assert fault.file == "environment/files/link"
    assert "link out of" in fault.problem


def test_a_link_inside_its_tree_stays_a_link(tmp_path: Path) -> None:
    folder = make(tmp_path / "t")
    put(folder, "environment/files/a.txt", "x")
    (folder / "environment/files/b.txt").symlink_to("a.txt")
    kinds = {entry.path: entry.kind for entry in unpack(one(folder).public.workspace)}
    assert kinds == {"a.txt": EntryKind.FILE, "b.txt": EntryKind.LINK}


@pytest.mark.parametrize(
    "name", ["instruction.md", "task.toml", "solution/solve.sh", "attacks/a.sh", "tests"]
)
def test_a_link_in_place_of_a_file_or_folder_of_the_task_is_refused(tmp_path: Path, name: str) -> None:
    folder = make(tmp_path / "t")
    outside = make(tmp_path / "elsewhere" / "u")
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(outside / "task.toml")
    assert name in {fault.file for fault in faults_of(folder)}


def test_a_pipe_among_the_files_is_refused_and_nobody_waits_for_it(tmp_path: Path) -> None:
    folder = make(tmp_path / "t")
    (folder / "environment" / "files").mkdir(parents=True)
    os.mkfifo(folder / "environment" / "files" / "pipe")
    (folder / "instruction.md").unlink()
    os.mkfifo(folder / "instruction.md")
    assert {fault.problem for fault in faults_of(folder)} >= {"not a regular file"}


@contextmanager
def as_an_ordinary_user() -> Iterator[None]:
    """Root reads everything, so root becomes somebody else for a while."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_file_that_cannot_be_read_is_named() -> None:
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o755)
        folder = make(Path(root) / "t")
        put(folder, "environment/files/secret", "x").chmod(0)
        with as_an_ordinary_user():
            (fault,) = faults_of(folder)
    assert fault.file == "environment/files/secret"
    assert "read permission" in fault.remedy


@pytest.mark.parametrize("toml", ["x = " + "9" * 5000, "x = " + "[" * 100_000, "a = 1\na = 2", "\0"])
def test_toml_that_no_parser_takes_is_a_fault_of_its_file(tmp_path: Path, toml: str) -> None:
    (fault,) = faults_of(make(tmp_path / "t", toml))
    assert fault.file == "task.toml"
    assert "broken TOML" in fault.problem


def test_text_that_is_not_utf8_is_refused_with_the_place(tmp_path: Path) -> None:
    folder = make(tmp_path / "t")
    (folder / "instruction.md").write_bytes(b"ok \xff")
    (fault,) = faults_of(folder)
    assert "byte 3" in fault.problem


def test_a_tree_that_passes_a_cap_is_refused(tmp_path: Path) -> None:
    folder = make(tmp_path / "t")
    put(folder, "/".join(["environment/files", *["d"] * 70, "x"]), "x")
    big = put(folder, "tests/big", "")
    os.truncate(big, 65 << 20)
    assert {fault.problem.split()[0] for fault in faults_of(folder)} == {"deeper", "larger"}


def test_digests_follow_what_they_cover_and_nothing_else(tmp_path: Path) -> None:
    folder = make(tmp_path / "t")
    put(folder, "environment/files/a", "1")
    put(folder, "tests/c.json", "[]")
    before = one(folder)
    assert one(folder).public.digest == before.public.digest
    (folder / "environment/files/a").chmod(0o600)
    put(folder, "tests/c.json", "[1]")
    hidden = one(folder)
    assert hidden.public.digest == before.public.digest
    assert hidden.verifier.digest != before.verifier.digest
    put(folder, "environment/files/a", "2")
    assert one(folder).public.digest != before.public.digest
    assert one(folder).verifier.digest == hidden.verifier.digest


def test_a_set_has_a_name_an_order_and_a_version(tmp_path: Path) -> None:
    for name in ("b", "a", ".hidden", "__pycache__"):
        make(tmp_path / "mine" / name)
    put(tmp_path / "mine", "README.md", "about")
    loaded = load(tmp_path / "mine", caps=CAPS)
    assert (loaded.name, [task.task_id for task in loaded.tasks]) == ("mine", ["a", "b"])
    assert loaded.tasks[0].public.task_set == "mine"
    make(tmp_path / "mine" / "c")
    assert load(tmp_path / "mine", caps=CAPS).digest != loaded.digest


def test_a_path_that_is_no_task_set_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such task set"):
        load(tmp_path / "absent")
    with pytest.raises(ConfigError, match="no task in"):
        load(tmp_path)
    with pytest.raises(ConfigError, match="not a task set"):
        load(put(tmp_path, "rows.csv", "id\n"))


def test_without_caps_this_machine_is_the_measure(tmp_path: Path) -> None:
    make(tmp_path / "t", f"[environment]\nmemory_mb = {Caps.of_this_machine().memory_mb + 1}\n" + MATCH)
    with pytest.raises(TaskError, match="out of range"):
        load(tmp_path)
