"""What a model too small to follow a format is shown before a task: the same kind of task, already answered.

A 135M model that is only told what to answer with rambles; after one or two answered turns it writes half as
many tokens, and most of them in the right form. None of these is a task that anybody is asked to solve.
"""

from __future__ import annotations

from workers.trajectory import Message

_TEXT = (
    Message("system", "Answer with the text of the file."),
    Message("user", "What is 3 + 4? Write the number into answer.txt."),
    Message("assistant", "3 + 4 = 7"),
)
_COMMAND = (
    Message("system", "Answer with one bash command."),
    Message("user", "Create a folder named box."),
    Message("assistant", "```bash\nmkdir box\n```"),
    Message("user", "Create an empty file named start.txt."),
    Message("assistant", "```bash\ntouch start.txt\n```"),
    Message("user", "Write the word blue into colour.txt."),
    Message("assistant", "```bash\necho blue > colour.txt\n```"),
    Message("user", "Delete the file junk.tmp."),
    Message("assistant", "```bash\nrm junk.tmp\n```"),
    Message("user", "Sort ages.txt by number and save it in by_age.txt."),
    Message("assistant", "```bash\nsort -n ages.txt > by_age.txt\n```"),
)


def _program(answer_file: str) -> tuple[Message, ...]:
    return (
        Message("system", "Answer with Python code."),
        Message(
            "user",
            f"{answer_file} has a bug. Write it without the bug:\n\n"
            "```python\ndef half(n):\n    # Return n divided by two.\n    return n / 3\n```",
        ),
        Message("assistant", "```python\ndef half(n):\n    return n / 2\n```"),
        Message(
            "user",
            f"Complete {answer_file}:\n\n```python\ndef double(n):\n    # Return two times n.\n```",
        ),
        Message("assistant", "```python\ndef double(n):\n    return 2 * n\n```"),
    )


def demonstrations(answer_file: str) -> tuple[Message, ...]:
    """Turns to put before a task that wants this file, or a command where it names none."""
    if not answer_file:
        return _COMMAND
    return _program(answer_file) if answer_file.endswith(".py") else _TEXT
