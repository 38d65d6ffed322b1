"""Reading the text of a statement: the repr of one of Emmy's dataclasses, never evaluated.

The grammar is what ``repr`` writes and nothing else::

    value  := call | row | string | number | True | False | None | inf | -inf | nan | <Enum.MEMBER: ...>
    call   := Name "(" [argument ("," argument)*] ")"      argument := [field "="] value
    row    := "(" ")" | "(" value "," [value ("," value)*] ")"

One regular expression reads the text item by item: a comma, a field's name, and then a value or an opening
bracket. Open brackets wait on an explicit stack, so nesting costs no recursion. Small calls (``Var(name='i')``,
a DataType) repeat hundreds of times in an unrolled kernel; the expression takes such a call in one piece, and a
table maps its text to the object made before. Terms are values, so sharing them is safe; larger expressions made of
the same parts are shared too, which the frontend knows to use.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from ptxc.frontend.vocabulary import Call, Refusal, constructor, enum_member, has_64_bits, shown

#: How many calls and rows may stand inside one another. Emmy's deepest real kernel has 18.
MAX_DEPTH = 2_000
#: The work that one file may cause, in units of some 100 ns. Emmy's largest real kernel causes 600,000.
MAX_WORK = 64_000_000

#: Calls with so many levels inside them are taken in one piece.
_PIECE_DEPTH = 4
#: What an item costs, and how much text times depth costs one unit: Emmy walks terms with a generator a level.
_ITEM_WORK = 16
_TEXT_PER_WORK = 20

_NAME = r"[A-Za-z_]\w*+"
_STRING = r"""'(?:[^'\\\x00-\x1f]++|\\.)*+'|"(?:[^"\\\x00-\x1f]++|\\.)*+\""""
_NUMBER = r"-?(?:\d[\w.]*+(?:(?<=[eE])[+-]\d++)?|inf\b)"
_ENUM = r"<[A-Za-z_]\w*\.[A-Za-z_]\w*: [^<>]*>"


def _piece() -> str:
    """A call with at most ``_PIECE_DEPTH`` levels and no escapes in its strings."""
    plain = r"""[^()'"]++|'[^'\\]*+'|"[^"\\]*+\""""
    inside = plain
    for _ in range(_PIECE_DEPTH - 1):
        inside = rf"{plain}|\((?:{inside})*+\)"
    return rf"{_NAME}\((?:{inside})*+\)"


def _items(*values: str) -> re.Pattern[str]:
    """The expression for one item: comma, field, value or bracket. A closing bracket has no field."""
    value = "|".join((*values, _STRING, _NUMBER, _ENUM, rf"{_NAME}(?!\()"))
    return re.compile(rf"(,?)\s*+(?:({_NAME})=)?(?:({value})|((?:{_NAME})?\(|\))|\S)", re.ASCII)


_WITH_PIECES = _items(_piece())
_WITHOUT_PIECES = _items()

_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,19})", re.ASCII)
_FLOAT = re.compile(r"-?\d{1,30}(?:\.\d{1,30}(?:[eE][+-]?\d{1,4})?|[eE][+-]?\d{1,4})", re.ASCII)
_ENUM_PARTS = re.compile(r"<(\w+)\.(\w+):")
_ESCAPE = re.compile(r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U000[0-9a-f]{5}|U0010[0-9a-f]{4}|[\\'\"nrt]|)")
_ESCAPED = {"\\": "\\", "'": "'", '"': '"', "n": "\n", "r": "\r", "t": "\t"}

_CONSTANTS = {"None": None, "True": True, "False": False, "inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_UNREAD = object()


def integer(text: str) -> int:
    """The integer that ``text`` writes. Raises Refusal for one of more than 64 bits."""
    if _INTEGER.fullmatch(text) and has_64_bits(int(text)):
        return int(text)
    raise Refusal(f"{shown(text)} is no number of Kernel IR")


class Budget:
    """The work that one file may still cause, so that none takes minutes or fills the memory."""

    def __init__(self, work: int = MAX_WORK) -> None:
        self._left = work

    def spend(self, work: int) -> None:
        """Take from what is left. Raises Refusal when that is not enough."""
        self._left -= work
        if self._left < 0:
            raise Refusal("the file holds more, or deeper, terms than ptxc reads")


class _Fault(Exception):
    """A refusal and its position in the text."""


class TermReader:
    """Reads the texts of one file, which share a table of small terms and one budget."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._values: dict[str, Any] = dict(_CONSTANTS)
        self._calls: dict[tuple[str, ...], Call] = {}
        #: Expressions and rows of them made before, by what they are made of, which an entry keeps alive.
        self._made: dict[tuple[Any, ...], tuple[Any, list[Any]]] = {}

    def read(self, text: str) -> Any:
        """The object that ``text`` spells. Raises Refusal, with the position, for anything but a repr of IR."""
        try:
            # Only trailing blanks match no item; searching on among them would take quadratic time.
            return self._read(text.rstrip(" \t\r\n\f\v"), _WITH_PIECES, 0)
        except _Fault as fault:
            what, position = fault.args
            near = shown(text[position : position + 30])
            raise Refusal(f"{what}, at character {position}, near {near}") from fault.__cause__

    def _read(self, text: str, pattern: re.Pattern[str], offset: int) -> Any:
        """The object that ``text``, which starts ``offset`` characters into the statement, spells."""
        known = self._values
        stack: list[tuple[str, list[Any], list[str], int]] = []
        head, start, deepest = "", 0, 0
        items: list[Any] = []
        keys: list[str] = []
        for match in pattern.finditer(text):
            comma, key, atom, bracket = match.groups()
            try:
                if bracket == ")":
                    if key or not stack or (comma and not items):
                        raise Refusal("unexpected ')'")
                    if head == "Lambda(":
                        self._spend_on_lambda(items, deepest * (match.end() - start))
                    value = self._close(head, items, keys, comma)
                    head, items, keys, start = stack.pop()
                    items.append(value)
                    continue
                if (comma == "") is bool(items):
                    raise Refusal("a comma is missing" if items else "unexpected ','")
                if key:
                    keys.append(key)
                elif keys:
                    raise Refusal("a value without a field's name follows one with a name")
                if bracket:
                    stack.append((head, items, keys, start))
                    head, items, keys, start = bracket, [], [], match.start(4)
                    deepest = max(deepest, len(stack))
                    if deepest > MAX_DEPTH:
                        raise Refusal(f"more than {MAX_DEPTH} levels of brackets")
                else:
                    value = known.get(atom, _UNREAD)
                    items.append(self._atom(atom, offset + match.start(3)) if value is _UNREAD else value)
            except Refusal as refusal:
                token = match.end() - len(atom or bracket or "?")
                raise _Fault(refusal, offset + (start if bracket == ")" and stack else token)) from refusal
        if stack or keys or len(items) != 1:
            what = "the text ends too early" if stack or not items else "more than one value"
            raise _Fault(what, offset + len(text))
        self._budget.spend(deepest * len(text) // _TEXT_PER_WORK)
        return items[0]

    def _close(self, head: str, items: list[Any], keys: list[str], comma: str) -> Any:
        """The tuple or the object whose bracket closes."""
        self._budget.spend(_ITEM_WORK * (1 + len(items)))
        if head == "(":
            if keys or (len(items) == 1 and not comma):
                raise Refusal("a tuple holds values without names, and (x,) where it holds one")
            return self._shared(head, items, tuple)
        form = (head, str(len(items)), *keys)
        call = self._calls.get(form)
        if call is None:
            call = self._calls[form] = constructor(head[:-1]).call(len(items) - len(keys), keys)
        return self._shared(call, items, call.build) if call.constructor.is_expression else call.build(items)

    def _shared(self, head: str | Call, items: list[Any], make: Callable[[list[Any]], Any]) -> Any:
        """``make(items)``, or what it gave for the very same items before: equal terms are one object."""
        key = (head, *map(id, items))
        known = self._made.get(key)
        if known is None:
            known = self._made[key] = (make(items), items)
        return known[0]

    def _spend_on_lambda(self, items: list[Any], text_and_depth: int) -> None:
        """Emmy orders a lambda's statements in cubic time, and gathers names at every level of its terms."""
        statements = max((len(item) for item in items if type(item) is tuple), default=0)
        self._budget.spend(statements**3 // 8 + text_and_depth // _TEXT_PER_WORK)

    def _atom(self, atom: str | None, position: int) -> Any:
        """The value of a token seen for the first time."""
        if atom is None:
            raise Refusal("unexpected character")
        first = atom[0]
        if first in "'\"":
            value: Any = _ESCAPE.sub(_unescape, atom[1:-1]) if "\\" in atom else atom[1:-1]
        elif first == "<":
            value = enum_member(*_ENUM_PARTS.match(atom).groups())  # type: ignore[union-attr]
        elif atom[-1] == ")":
            value = self._read(atom, _WITHOUT_PIECES, position)
        elif first == "-" or first.isdigit():
            value = float(atom) if _FLOAT.fullmatch(atom) else integer(atom)
        else:
            raise Refusal(f"{shown(atom)} is no value of Kernel IR")
        self._values[atom] = value
        return value


def _unescape(match: re.Match[str]) -> str:
    """The character that a backslash of ``repr`` stands for."""
    code = match[1]
    if not code:
        raise Refusal("a backslash that repr does not write")
    return _ESCAPED[code] if len(code) == 1 else chr(int(code[1:], 16))
