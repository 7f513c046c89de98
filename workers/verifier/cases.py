"""The cases of a `calls` verifier: what to call, and what must come of it.

    {module, function, args?, kwargs?, want | raises, tol?, nan_ok?, max_s?}
    {module, class, init?, steps: [[method, args…]…], want | raises, …}

`func` is another spelling of `function`. The `want` of steps is the list of what each step returns; `raises`
is about the last step. `max_s` bounds the wall time of a process that makes this one call, the interpreter's
start included, by the judge's own clock.
"""

from __future__ import annotations

import builtins
import json
import sys
from dataclasses import dataclass

from workers.table import Range, Table, suggestion
from workers.task import Task
from workers.verifier.compare import Equality
from workers.verifier.frames import Answer, Broken, Raised, Returned
from workers.verifier.protected import read_cases
from workers.verifier.values import Bag, Items, Pairs, Value, read

_KEYS = ("module", "function", "func", "class", "args", "kwargs", "init", "steps")
_VERDICT_KEYS = ("want", "raises", "tol", "nan_ok", "max_s", "name")
_SHOWN_CHARS = 120


@dataclass(frozen=True, slots=True)
class Case:
    """One case. `call_json` is all of it that the solution's process is told."""

    call_json: str
    want: Value
    raises: str
    equality: Equality
    max_s: float | None

    def judge(self, answer: Answer) -> str:
        """Why the answer is wrong; empty where it is right. Never shows what was wanted."""
        match answer:
            case Returned(value=value):
                if self.raises:
                    return f"returned {shown(value)} where an exception belongs"
                return "" if self.equality.holds(self.want, value) else f"returned {shown(value)}"
            case Raised(classes=classes, text=text):
                return "" if self.raises and self.raises in classes else f"raised {text}"
            case Broken(why=why):
                return why


def shown(value: Value) -> str:
    match value:
        case Items(items=items, is_tuple=is_tuple):
            text = ", ".join(map(shown, items[:8]))
            return _cut(f"({text})" if is_tuple else f"[{text}]")
        case Bag(items=items):
            return _cut(f"{{{', '.join(map(shown, items[:8]))}}}")
        case Pairs(pairs=pairs):
            return _cut(f"{{{', '.join(f'{shown(key)}: {shown(item)}' for key, item in pairs[:8])}}}")
        case int() if value.bit_length() > 256:
            return f"an integer of {value.bit_length()} bits"
        case _:
            return _cut(repr(value[:_SHOWN_CHARS]) if isinstance(value, str | bytes) else repr(value))


def read_calls(task: Task, table: Table) -> tuple[Case, ...]:
    raws, file = read_cases(task, table, "tests/calls.json")
    return tuple(_case(Table(raw, table.findings, file, f"[{index}].")) for index, raw in enumerate(raws))


def _case(table: Table) -> Case:
    table.refuse_unknown((*_KEYS, *_VERDICT_KEYS))
    raises = table.text("raises", "")
    if ("want" in table.values) == bool(raises):
        table.fault("want", "a case needs `want` or `raises`, and not both", "write one of them")
    elif raises and not _is_exception(raises):
        names = [name for name in dir(builtins) if _is_exception(name)]
        remedy = f"{suggestion(raises, names)}name one such as ValueError (what derives from it counts)"
        table.fault("raises", "not a built-in exception", remedy)
    want = _value(table, "want")
    nan_ok = table.flag("nan_ok", False)
    if not nan_ok and _holds_nan(want):
        table.fault("want", "holds a NaN, which equals nothing", "add nan_ok = true to the case")
    tol = table.number("tol", 0.0, Range(0, 1e300, is_closed=True))
    max_s = table.number("max_s", 1.0, Range(0, 86_400, unit="seconds")) if "max_s" in table else None
    return Case(json.dumps(_call(table)), want, raises, Equality(tol, nan_ok), max_s)


def _call(table: Table) -> dict[str, object]:
    call: dict[str, object] = {"module": _module(table)}
    if "class" in table:
        for key in ("function", "func", "args", "kwargs"):
            if key in table:
                table.fault(key, "does not go with `class`", "put arguments into `init` and `steps`")
        call |= {"class": _dotted(table, "class"), "init": _list(table, "init"), "steps": _steps(table)}
        return call
    for key in ("init", "steps"):
        if key in table:
            table.fault(key, "needs `class`", "name the class, or remove it")
    key = "func" if "func" in table and "function" not in table else "function"
    if "func" in table and "function" in table:
        table.fault("func", "the same as `function`", "keep one of them")
    kwargs = table.table("kwargs")
    for name in kwargs.values:
        _value(kwargs, name)
    return {**call, "function": _dotted(table, key), "args": _list(table, "args"), "kwargs": kwargs.values}


def _module(table: Table) -> str:
    module = _dotted(table, "module")
    if module.split(".")[0] in sys.stdlib_module_names:
        table.fault("module", "named like a module of the standard library", "give the solution another name")
    return module


def _dotted(table: Table, key: str) -> str:
    name = table.text(key, "")
    if not name or not all(part.isidentifier() for part in name.split(".")):
        remedy = "write names joined by dots, such as package.module"
        table.fault(key, "not a Python name" if name else "missing", remedy)
    return name


def _list(table: Table, key: str) -> object:
    raw = table.values.get(key, [])
    if not isinstance(raw, list):
        table.fault(key, "not a list of arguments", "write a list, one item an argument")
    elif key in table:
        _value(table, key)
    return raw


def _steps(table: Table) -> object:
    raw = table.values.get("steps")
    if not isinstance(raw, list) or not raw:
        table.fault(
            "steps", "not a list of steps", 'write one [method, argument, …] a step, such as ["get", 1]'
        )
        return []
    for step in raw:
        if (
            not isinstance(step, list)
            or not step
            or not isinstance(step[0], str)
            or not step[0].isidentifier()
        ):
            table.fault("steps", "a step without a method's name", 'write ["method", argument, …]')
            return []
    _value(table, "steps")
    wanted = table.values.get("want")
    if isinstance(wanted, list) and len(wanted) != len(raw):
        table.fault(
            "want", f"{len(wanted)} results for {len(raw)} steps", "write one result a step, null for none"
        )
    return raw


def _value(table: Table, key: str) -> Value:
    try:
        return read(table.values.get(key))
    except ValueError as error:
        table.fault(key, f"not plain data: {error}", "write JSON, with tags for what JSON lacks")
        return None


def _is_exception(name: str) -> bool:
    found = getattr(builtins, name, None)
    return isinstance(found, type) and issubclass(found, BaseException)


def _holds_nan(value: Value) -> bool:
    match value:
        case float() | complex():
            return value != value
        case Items(items=items) | Bag(items=items):
            return any(map(_holds_nan, items))
        case Pairs(pairs=pairs):
            return any(_holds_nan(item) for pair in pairs for item in pair)
        case _:
            return False


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"
