#!/usr/bin/env python3
"""Makes the `humaneval` task set out of HumanEval's own tasks: `scripts/make_humaneval.py SOURCE.jsonl OUT.jsonl`.

A task is taken where every assertion of its check is plain: a call of the candidate on constants, equal to a
constant, or nearer to one than a constant. Its check then becomes a list of `calls` cases. Nothing of the
source is run: constants are computed from its syntax. A task with any other assertion is left out whole and
named with the reason; no check is weakened to fit.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

CANDIDATE = "candidate"
MODULE = "solution"
MAX_EXPONENT = 64
MAX_BITS = 4096

_NUMBER_OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


class NotPlain(ValueError):
    """The check needs more than calls on constants."""


@dataclass(frozen=True, slots=True)
class Case:
    """One plain assertion: the call, what it must give, and how near."""

    args: list[object]
    want: object
    tol: float = 0.0


def constant(node: ast.expr) -> object:
    """The value of an expression of constants. Raises NotPlain on anything else."""
    match node:
        case ast.Constant(value=value) if value is not Ellipsis:
            return value
        case ast.List(elts=items):
            return [constant(item) for item in items]
        case ast.Tuple(elts=items):
            return tuple(constant(item) for item in items)
        case ast.Set(elts=items):
            return {constant(item) for item in items}
        case ast.Dict(keys=keys, values=values) if all(key is not None for key in keys):
            return {constant(key): constant(item) for key, item in zip(keys, values, strict=True) if key}
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand)
        case ast.BinOp(left=left, op=ast.Add(), right=right) if isinstance(text := constant(left), str):
            return text + _string(right)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _NUMBER_OPERATORS:
            return _computed(op, _number(left), _number(right))
    raise NotPlain(f"not a constant: {ast.unparse(node)[:60]}")


def _string(node: ast.expr) -> str:
    value = constant(node)
    if not isinstance(value, str):
        raise NotPlain(f"not a text: {ast.unparse(node)[:60]}")
    return value


def _number(node: ast.expr) -> float:
    value = constant(node)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NotPlain(f"not a number: {ast.unparse(node)[:60]}")
    return value


def _computed(op: ast.operator, left: float, right: float) -> float:
    if isinstance(op, ast.Pow) and abs(right) > MAX_EXPONENT:
        raise NotPlain(f"an exponent of {right}")
    if any(isinstance(side, int) and side.bit_length() > MAX_BITS for side in (left, right)):
        raise NotPlain("a number of too many digits")
    try:
        return _NUMBER_OPERATORS[type(op)](left, right)
    except ArithmeticError as error:
        raise NotPlain(str(error)) from error


def tagged(value: object) -> object:
    """A value as case files write it: JSON, with tags for what JSON lacks."""
    match value:
        case None | bool() | int() | str():
            return value
        case float() if math.isfinite(value):
            return value
        case float():
            return {"$float": "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}
        case list():
            return [tagged(item) for item in value]
        case tuple():
            return {"$tuple": [tagged(item) for item in value]}
        case set():
            return {"$set": sorted((tagged(item) for item in value), key=repr)}
        case dict() if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: tagged(item) for key, item in value.items()}
        case dict():
            return {"$dict": [[tagged(key), tagged(item)] for key, item in value.items()]}
        case bytes():
            return {"$bytes": value.hex()}
        case complex():
            return {"$complex": [value.real, value.imag]}
    raise NotPlain(f"a value of type {type(value).__name__}")


def read_check(source: str) -> tuple[Case, ...]:
    """The cases of a `check(candidate)` function. Raises NotPlain where one can't be a plain call."""
    functions = [n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == "check"]
    if len(functions) != 1:
        raise NotPlain("no single check function")
    cases = [case for node in functions[0].body if (case := _read_statement(node)) is not None]
    if not cases:
        raise NotPlain("no assertion")
    return tuple(cases)


def _read_statement(node: ast.stmt) -> Case | None:
    """The case of an assertion; None where the statement asserts nothing."""
    match node:
        case ast.Assert(test=ast.Constant(value=True)) | ast.Expr(value=ast.Constant()) | ast.Pass():
            return None
        case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right])):
            return Case(_arguments(left), constant(right))
        case ast.Assert(
            test=ast.Compare(
                left=ast.Call(
                    func=ast.Name(id="abs"),
                    args=[ast.BinOp(left=left, op=ast.Sub(), right=right)],
                    keywords=[],
                ),
                ops=[ast.Lt()],
                comparators=[tol],
            )
        ):
            return Case(_arguments(left), constant(right), float(_number(tol)))
    raise NotPlain(f"not a plain assertion: {ast.unparse(node)[:60]}")


def _arguments(node: ast.expr) -> list[object]:
    match node:
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name == CANDIDATE:
            return [constant(arg) for arg in args]
    raise NotPlain(f"not a call of the candidate: {ast.unparse(node)[:60]}")


def entry_point(source: str) -> str:
    """The name that the check is called with."""
    for node in ast.parse(source).body:
        match node:
            case ast.Expr(value=ast.Call(func=ast.Name(id="check"), args=[ast.Name(id=name)], keywords=[])):
                return name
    raise NotPlain("the check is never called")


def convert(source: Mapping[str, object]) -> dict[str, object]:
    """One row of the task set. Raises NotPlain where the check can't become calls."""
    check = _text(source, "hidden", "check_hidden.py")
    stub, gold = _text(source, "files", f"{MODULE}.py"), _text(source, "gold", f"{MODULE}.py")
    function = entry_point(check)
    cases = [_case(function, case) for case in read_check(check)]
    return {
        "id": source["id"],
        "instruction": f"Complete {MODULE}.py:\n\n```python\n{stub.rstrip()}\n```\n",
        "split": "eval",
        "answer_file": f"{MODULE}.py",
        "files": {f"{MODULE}.py": stub},
        "verifier": {"kind": "calls", "cases": "tests/calls.json", "timeout_s": 30.0},
        "protected": {"calls.json": json.dumps(cases)},
        "solution": _writes(gold),
        "attacks": {
            "always_equal": _writes(ALWAYS_EQUAL.format(function=function)),
            "exit_at_import": _writes("import os\n\nos._exit(0)\n"),
        },
        "metadata": {"source": source["source"], "licence": source["licence"]},
    }


ALWAYS_EQUAL = '''\
class Same:
    """Equal to whatever it is compared with."""

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


def {function}(*args):
    return Same()
'''


def _case(function: str, case: Case) -> dict[str, object]:
    call = {"module": MODULE, "function": function, "args": tagged(case.args), "want": tagged(case.want)}
    return {**call, "tol": case.tol} if case.tol else call


def _writes(body: str) -> str:
    """A script that writes the solution's file."""
    if "\nEND_OF_FILE\n" in body:
        raise NotPlain("a file with the script's own end mark in it")
    return f"cat > {MODULE}.py <<'END_OF_FILE'\n{body.rstrip()}\nEND_OF_FILE\n"


def _text(source: Mapping[str, object], table: str, name: str) -> str:
    files = source.get(table)
    text = files.get(name) if isinstance(files, dict) else None
    if not isinstance(text, str) or len(files if isinstance(files, dict) else ()) != 1:
        raise NotPlain(f"{table} is not {name} alone")
    return text


def convert_all(lines: list[str]) -> tuple[list[dict[str, object]], list[str]]:
    """The rows that could be made, and for each of the others its id and why not."""
    rows, left_out = [], []
    for line in lines:
        source = json.loads(line)
        try:
            rows.append(convert(source))
        except NotPlain as why:
            left_out.append(f"{source['id']}: {why}")
    return rows, left_out


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the humaneval task set.")
    parser.add_argument("source", type=Path, help="HumanEval's tasks, one JSON object a line")
    parser.add_argument("out", type=Path, help="the task set to write")
    arguments = parser.parse_args()
    rows, left_out = convert_all(arguments.source.read_text().splitlines())
    arguments.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{len(rows)} tasks written, {len(left_out)} left out:")
    print("\n".join(left_out))


if __name__ == "__main__":
    main()
