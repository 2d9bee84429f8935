"""Statements of Python as instructions."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from vertexrt.native import arithmetic, arrays
from vertexrt.native.expressions import SIGNS, binary, element, parts_of, read, several, value
from vertexrt.native.scope import Scope
from vertexrt.native.text import whole
from vertexrt.native.values import Array, Static, Tuple, Value, element_type, type_of


def run(scope: Scope, nodes: Sequence[ast.stmt]) -> None:
    """Translate statements."""
    for node in nodes:
        scope.line = node.lineno
        translate = STATEMENTS.get(type(node))
        if translate is None:
            scope.error(f"the statement {ast.unparse(node).splitlines()[0]}", "one translated here")
        translate(scope, node)


def _expression(scope: Scope, node: ast.Expr) -> None:
    if not isinstance(node.value, ast.Constant):  # a docstring
        value(scope, node.value)


def _assign(scope: Scope, node: ast.Assign) -> None:
    given = value(scope, node.value)
    for target in node.targets:
        _give(scope, target, given)


def _annotated(scope: Scope, node: ast.AnnAssign) -> None:
    if node.value is not None:
        _give(scope, node.target, value(scope, node.value))


def _give(scope: Scope, target: ast.expr, given: Value) -> None:
    """Assign a value to a name, to a part of an array, or its parts to several."""
    if isinstance(target, ast.Name):
        if target.id != "_":  # which is given up
            scope.assign(target.id, given)
    elif isinstance(target, ast.Subscript):
        _store(scope, element(scope, scope.array(value(scope, target.value)), target.slice), given)
    elif isinstance(target, ast.Tuple):
        parts = _taken_apart(scope, given, len(target.elts))
        for each, part in zip(target.elts, parts, strict=True):
            _give(scope, each, part)
    else:
        scope.error(f"an assignment to {ast.unparse(target)}", "to a name or part of an array")


def _taken_apart(scope: Scope, given: Value, count: int) -> Sequence[Value]:
    if isinstance(given, Array):
        rows = [arrays.part(scope.text, given, [whole(k)]) for k in range(count)]
        return [read(scope, row) for row in rows]
    parts = parts_of(scope, given)
    if len(parts) != count:
        scope.error(f"{len(parts)} values", f"{count}")
    return parts


def _store(scope: Scope, to: Array, given: Value) -> None:
    """Write a number to all of a part of an array, or an array of the same shape."""
    scope.written |= to.roots
    type = element_type(to.type.dtype)
    if isinstance(given, Array):
        if given.type.ndim != to.type.ndim:
            scope.error(f"an array of {given.type.ndim} axes", f"{to.type.ndim}")
        same = arrays.same_extents(scope.text, to, given)
        if not same.text.isdecimal():
            scope.fail_unless(same, f"line {scope.line}: arrays of different shapes")
        arrays.copy(scope.text, to, given)
        return
    number = scope.number(given, type)
    if number.type.real and not type.real:
        scope.error("a real number in an array of whole ones", "a whole one")
    number = arithmetic.convert(scope.text, number, type)
    if to.type.ndim:
        arrays.fill(scope.text, to, number)
    else:
        scope.text.store(number, to, whole(0))


def _augmented(scope: Scope, node: ast.AugAssign) -> None:
    sign = SIGNS[type(node.op)]
    if isinstance(node.target, ast.Name):
        before = scope.look_up(node.target.id)
        scope.assign(node.target.id, binary(scope, sign, before, value(scope, node.value)))
    elif isinstance(node.target, ast.Subscript):
        array = scope.array(value(scope, node.target.value))
        at = element(scope, array, node.target.slice)
        if at.type.ndim:
            scope.error("arithmetic of arrays", "a loop over their elements")
        given = value(scope, node.value)
        _store(scope, at, binary(scope, sign, read(scope, at), given))
    else:
        scope.error(f"an assignment to {ast.unparse(node.target)}", "to a name or an element")


def _if(scope: Scope, node: ast.If) -> None:
    test, text = value(scope, node.test), scope.text
    if isinstance(test, Static):
        run(scope, node.body if test.value else node.orelse)
        return
    yes, no, done = (text.new_label() for _ in range(3))
    text.line(f"br {scope.truth(test)}, label %{yes}, label %{no}")
    text.begin(yes)
    run(scope, node.body)
    text.go(done, no)
    run(scope, node.orelse)
    text.open(done)


def _while(scope: Scope, node: ast.While) -> None:
    text = scope.text
    head, body, end = (text.new_label() for _ in range(3))
    text.open(head)
    text.branch(scope.truth(value(scope, node.test)), body, end)
    _inside(scope, node.body, head, end)
    text.go(head, end)


def _inside(scope: Scope, nodes: Sequence[ast.stmt], after: str, end: str) -> None:
    """Translate the body of a loop."""
    scope.loops.append((after, end))
    run(scope, nodes)
    scope.loops.pop()


def _for(scope: Scope, node: ast.For) -> None:
    if node.orelse:
        scope.error("an `else` of a loop", "none")
    call, over = node.iter, node.iter
    numbered = False
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
        if call.func.id == "range":
            _for_range(scope, node, [*several(scope, call.args)])
            return
        if call.func.id == "enumerate":
            numbered, over = True, call.args[0]
    given = value(scope, over)
    if isinstance(given, Array):
        with scope.text.count(whole(0), given.extents[0], whole(1)) as k:
            each = read(scope, arrays.part(scope.text, given, [k.index]))
            _give(scope, node.target, Tuple((k.index, each)) if numbered else each)
            _inside(scope, node.body, k.next, k.end)
        return
    _for_each(scope, node, parts_of(scope, given), numbered)


def _for_range(scope: Scope, node: ast.For, bounds: list[Value]) -> None:
    if len(bounds) == 1:
        bounds = [Static(0), *bounds]
    step = bounds[2] if len(bounds) > 2 else Static(1)
    rises = not (isinstance(step, Static) and step.value < 0)
    first, end, by = (scope.whole(each) for each in (*bounds[:2], step))
    if not isinstance(step, Static):
        test = arithmetic.compare(scope.text, ">", by, whole(0))
        scope.fail_unless(test, f"line {scope.line}: a range has a step that is not positive")
    with scope.text.count(first, end, by, rises) as k:
        _give(scope, node.target, k.index)
        _inside(scope, node.body, k.next, k.end)


def _for_each(scope: Scope, node: ast.For, parts: Sequence[Value], numbered: bool) -> None:
    """Translate a loop over a tuple: the body once for each part, which may differ in type."""
    text, end = scope.text, scope.text.new_label()
    names = {each.id for each in ast.walk(node.target) if isinstance(each, ast.Name)}
    for k, part in enumerate(parts):
        for name in names:  # each part has variables of its own
            scope.names.pop(name, None)
        if numbered and isinstance(node.target, ast.Tuple):
            number, target = node.target.elts
            assert isinstance(number, ast.Name)
            scope.names[number.id] = Static(k)
            _give(scope, target, part)
        else:
            _give(scope, node.target, part)
        after = text.new_label()
        _inside(scope, node.body, after, end)
        text.open(after)
    text.open(end)


def _break(scope: Scope, node: ast.Break) -> None:
    scope.text.leave(f"br label %{scope.loops[-1][1]}")


def _continue(scope: Scope, node: ast.Continue) -> None:
    scope.text.leave(f"br label %{scope.loops[-1][0]}")


def _return(scope: Scope, node: ast.Return) -> None:
    if node.value is not None:
        given = value(scope, node.value)
        if scope.result is None:
            type = type_of(given)
            if type is None:
                scope.error("a value that is only known here", "numbers, arrays or tuples of them")
            scope.result = scope.text.variable(type)
            scope.text.clear(scope.result)  # where the function fails, nothing is returned
        scope.text.assign(scope.result, scope.fit(given, scope.result.type))
    scope.text.leave("br label %exit")


def _assert(scope: Scope, node: ast.Assert) -> None:
    test = scope.truth(value(scope, node.test))
    why = node.msg.value if isinstance(node.msg, ast.Constant) else ast.unparse(node.test)
    scope.fail_unless(test, str(why))


def _pass(scope: Scope, node: ast.Pass) -> None:
    pass


STATEMENTS: dict[type, Callable[[Scope, Any], None]] = {
    ast.Expr: _expression,
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _augmented,
    ast.If: _if,
    ast.While: _while,
    ast.For: _for,
    ast.Break: _break,
    ast.Continue: _continue,
    ast.Return: _return,
    ast.Assert: _assert,
    ast.Pass: _pass,
}
