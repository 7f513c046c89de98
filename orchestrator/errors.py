"""What goes wrong between a run and its trainer: the stream's own errors. They survive pickling."""

from __future__ import annotations

from workers.errors import RollcageError


class StreamError(RollcageError):
    """The run folder or the stream failed; nothing that was journalled is lost. Exit code 1."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n  remedy: {self.remedy}" if self.remedy else self.message


class SchemaError(StreamError):
    """A batch breaks rules of the schema. `faults` names each row and rule."""

    def __init__(self, faults: tuple[str, ...]) -> None:
        RollcageError.__init__(self, faults)
        self.faults = faults
        self.message = f"{len(faults)} fault(s) in a batch:\n" + "\n".join(f"  {fault}" for fault in faults)
        self.remedy = ""
