"""Carries out calls in a sandbox and says what came of them.

Whatever the agent's command or path does is an observation; only the host's failures (`SandboxError`) escape.
Every observation is clean text, cut to the limit with the dropped bytes named.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from workers.agent.call import Call
from workers.agent.output import clean_file, clean_output, clip
from workers.sandbox.protocol import Command, ExecResult, Sandbox

READ_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call came to. `error` is a short word, None where the tool did its work.

    A command that ran is no error whatever its exit code.
    """

    observation: str
    error: str | None = None
    exit_code: int | None = None
    output_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools that touch the sandbox; `submit` is the environment's own business."""

    sandbox: Sandbox
    workspace_path: str
    output_limit_bytes: int

    async def use(self, call: Call, timeout_s: float) -> Outcome:
        try:
            match call.name:
                case "run":
                    return await self._run(call.texts["command"], timeout_s)
                case "read_file":
                    return await self._read(call)
                case "write_file":
                    return await self._write(call.texts["path"], call.texts["content"])
                case "edit_file":
                    return await self._edit(call.texts["path"], call.texts["old"], call.texts["new"])
                case _:
                    return Outcome(f"There is no tool named {call.name!r}.", error="unknown_tool")
        except (OSError, ValueError) as error:
            return _file_error(call.texts.get("path", ""), error)

    async def _run(self, line: str, timeout_s: float) -> Outcome:
        command = Command(
            argv=("bash", "-c", line), timeout_s=timeout_s, output_limit_bytes=self.output_limit_bytes
        )
        return outcome_of(await self.sandbox.exec(command), timeout_s, self.output_limit_bytes)

    async def _read(self, call: Call) -> Outcome:
        data = await self.sandbox.read_file(self._absolute(call.texts["path"]), READ_LIMIT_BYTES)
        text = clean_file(data)
        first, count = call.numbers.get("first_line", 1), call.numbers.get("line_count")
        if first != 1 or count is not None:
            lines = text.splitlines(keepends=True)
            start = max(first - 1, 0)
            text = "".join(lines[start:] if count is None else lines[start : start + max(count, 0)])
        shown, _ = clip(text, self.output_limit_bytes)
        return Outcome(shown, output_bytes=len(data))

    async def _write(self, path: str, content: str) -> Outcome:
        data = content.encode()
        await self.sandbox.write_file(self._absolute(path), data)
        return Outcome(f"Wrote {len(data)} bytes to {path}.")

    async def _edit(self, path: str, old: str, new: str) -> Outcome:
        if not old:
            return Outcome("The old text is empty: give the exact text to replace.", error="empty_old_text")
        data = await self.sandbox.read_file(self._absolute(path), READ_LIMIT_BYTES)
        count = _count_overlapping(data, old.encode())
        if count != 1:
            found = "does not occur" if count == 0 else f"occurs {count} times"
            return Outcome(f"The old text {found} in {path}: it must occur exactly once.", error="not_unique")
        await self.sandbox.write_file(self._absolute(path), data.replace(old.encode(), new.encode()))
        return Outcome(f"Replaced one passage of {path}.")

    def _absolute(self, path: str) -> str:
        if not path:
            raise ValueError("the path is empty")
        return posixpath.join(self.workspace_path, path)


def outcome_of(result: ExecResult, timeout_s: float, limit_bytes: int) -> Outcome:
    """What the agent is shown of a command: its output, then notes in brackets on how it ended."""
    return Outcome(
        _described(result, timeout_s, limit_bytes),
        exit_code=result.exit_code,
        output_bytes=len(result.stdout) + len(result.stderr) + result.dropped_bytes,
    )


def _described(result: ExecResult, timeout_s: float, limit_bytes: int) -> str:
    out, err = clean_output(result.stdout), clean_output(result.stderr)
    joint = "\n" if out and err and not out.endswith("\n") else ""
    text, _ = clip(out + joint + err, 2 * limit_bytes)
    notes = [f"[exit code {result.exit_code}]"]
    if result.dropped_bytes:
        notes.insert(0, f"[{result.dropped_bytes} bytes dropped from the middle of the output]")
    if result.timed_out:
        notes.append(f"[stopped: it ran longer than {timeout_s:.3g} s]")
    if result.oom_killed:
        notes.append("[stopped: out of memory]")
    if result.output_killed:
        notes.append("[stopped: too much output]")
    if text and not text.endswith("\n"):
        text += "\n"
    return text + "\n".join(notes)


def _count_overlapping(data: bytes, part: bytes) -> int:
    """Occurrences of `part`, overlapping ones too: 'aa' in 'aaa' is not unique. Counts to three at most."""
    count, at = 0, data.find(part)
    while at >= 0 and count < 3:
        count, at = count + 1, data.find(part, at + 1)
    return count


def _file_error(path: str, error: OSError | ValueError) -> Outcome:
    match error:
        case FileNotFoundError():
            return Outcome(f"No such file: {path}", error="not_found")
        case IsADirectoryError():
            return Outcome(f"That is a folder: {path}", error="is_a_folder")
        case NotADirectoryError():
            return Outcome(f"A part of the path is not a folder: {path}", error="not_a_folder")
        case PermissionError():
            return Outcome(f"Permission denied: {path}", error="permission_denied")
        case OSError():
            return Outcome(f"{error.strerror or error}: {path}", error="os_error")
        case _:
            return Outcome(str(error), error="bad_file")
