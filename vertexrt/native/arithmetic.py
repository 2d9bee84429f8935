"""Arithmetic of numbers as Python and NumPy have it: types of results, floors, comparisons."""

from __future__ import annotations

from vertexrt.native.text import FunctionText, whole
from vertexrt.native.values import DOUBLE, INT, SINGLE, TRUTH, WORD, Scalar, ScalarType

REALS = {"+": "fadd", "-": "fsub", "*": "fmul", "/": "fdiv"}
WHOLES = {"+": "add", "-": "sub", "*": "mul", "<<": "shl", "&": "and", "|": "or", "^": "xor"}
EXACT = ("+", "-", "*")  # beyond 64 bits a number without a sign wraps; others are not to get there
SIGNED = {"<": "slt", "<=": "sle", ">": "sgt", ">=": "sge", "==": "eq", "!=": "ne"}
ORDERED = {"<": "olt", "<=": "ole", ">": "ogt", ">=": "oge", "==": "oeq", "!=": "une"}


def convert(text: FunctionText, value: Scalar, type: ScalarType) -> Scalar:
    """Return a number as one of another type; a real becomes whole towards zero."""
    given = value.type
    if given == type or (given.name, type.name) == ("i64", "i64"):
        return Scalar(type, value.text)
    if type is TRUTH:
        zero = "0.0" if given.real else "0"
        test = "fcmp une" if given.real else "icmp ne"
        return text.number(TRUTH, f"{test} {value}, {zero}")
    return text.number(type, f"{_change(given, type)} {value} to {type.name}")


def _change(given: ScalarType, type: ScalarType) -> str:
    """Return the instruction that makes a number of one type one of another."""
    if given.real and type.real:
        return "fpext" if type is DOUBLE else "fptrunc"
    if given.real:
        return "fptoui" if type.unsigned else "fptosi"
    if type.real:
        return "uitofp" if given is TRUTH or given.unsigned else "sitofp"
    return "zext"


def common(a: ScalarType, b: ScalarType) -> ScalarType:
    """Return the type that arithmetic of two numbers is done in."""
    if a.real or b.real:
        return SINGLE if SINGLE in (a, b) and a == b else DOUBLE
    return WORD if a.unsigned or b.unsigned else INT


def binary(text: FunctionText, sign: str, a: Scalar, b: Scalar) -> Scalar | None:
    """Return the result of an operator; None for one that there is not."""
    if a.type == b.type == TRUTH and sign in "&|^":
        return text.number(TRUTH, f"{WHOLES[sign]} {a}, {b.text}")
    type = common(a.type, b.type)
    if sign == "/" and not type.real:
        type = DOUBLE
    a, b = convert(text, a, type), convert(text, b, type)
    if type.real:
        return text.number(type, f"{REALS[sign]} {a}, {b.text}") if sign in REALS else None
    return _whole(text, sign, a, b)


def _whole(text: FunctionText, sign: str, a: Scalar, b: Scalar) -> Scalar | None:
    """Return the result of an operator of two whole numbers of one type."""
    if sign in ("//", "%"):
        return _floor(text, sign, a, b)
    if sign == ">>":
        return text.number(a.type, f"{'lshr' if a.type.unsigned else 'ashr'} {a}, {b.text}")
    if sign not in WHOLES:
        return None
    flag = " nsw" if sign in EXACT and a.type is INT else ""
    return text.number(a.type, f"{WHOLES[sign]}{flag} {a}, {b.text}")


def _floor(text: FunctionText, sign: str, a: Scalar, b: Scalar) -> Scalar:
    """Divide, and round down; by zero, the result is zero as NumPy's is."""
    type = a.type
    if b.text == "0":
        return Scalar(type, "0")
    known = b.text.lstrip("-").isdecimal()
    none = None if known else text.made(f"icmp eq {b}, 0")
    by = b if known else text.number(type, f"select i1 {none}, i64 1, {b}")
    divide, rest = ("udiv", "urem") if type.unsigned else ("sdiv", "srem")
    quotient = text.number(type, f"{divide} {a}, {by.text}")
    left = text.number(type, f"{rest} {a}, {by.text}")
    if not type.unsigned:
        signs = text.made(f"xor {left}, {by.text}")
        apart, some = text.made(f"icmp slt i64 {signs}, 0"), text.made(f"icmp ne {left}, 0")
        down = text.made(f"and i1 {apart}, {some}")
        less = text.made(f"sext i1 {down} to i64")
        back = text.made(f"select i1 {down}, i64 {by.text}, i64 0")
        quotient = text.number(type, f"add {quotient}, {less}")
        left = text.number(type, f"add {left}, {back}")
    found = quotient if sign == "//" else left
    return found if none is None else text.number(type, f"select i1 {none}, i64 0, {found}")


def compare(text: FunctionText, sign: str, a: Scalar, b: Scalar) -> Scalar:
    """Compare two numbers; with nan only `!=` holds."""
    type = TRUTH if a.type == b.type == TRUTH and sign in ("==", "!=") else common(a.type, b.type)
    a, b = convert(text, a, type), convert(text, b, type)
    if type.real:
        return text.number(TRUTH, f"fcmp {ORDERED[sign]} {a}, {b.text}")
    test = SIGNED[sign].replace("s", "u", 1) if type.unsigned else SIGNED[sign]
    return text.number(TRUTH, f"icmp {test} {a}, {b.text}")


def choose(text: FunctionText, test: Scalar, yes: Scalar, no: Scalar) -> Scalar:
    """Return one of two numbers of one type."""
    return text.number(yes.type, f"select {test}, {yes}, {no}")


def extreme(text: FunctionText, sign: str, a: Scalar, b: Scalar) -> Scalar:
    """Return the second number where `b sign a` holds, else the first, as `min` and `max` do."""
    type = a.type if a.type == b.type else common(a.type, b.type)
    a, b = convert(text, a, type), convert(text, b, type)
    return choose(text, compare(text, sign, b, a), b, a)


def product(text: FunctionText, factors: tuple[Scalar, ...]) -> Scalar:
    """Multiply extents."""
    found = whole(1)
    for factor in factors:
        if found.text == "1":
            found = factor
        elif factor.text != "1":
            found = text.number(INT, f"mul nsw {found}, {factor.text}")
    return found
