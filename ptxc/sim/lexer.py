"""PTX text -> tokens (PTX ISA 4.1 to 4.5)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ptxc.errors import InputError

_TOKEN = re.compile(
    r"""
      (?P<skip>[^\S\n]+|//[^\n]*|\.(?:loc|file)\b[^\n]*)
    | (?P<newline>\n)
    | (?P<comment>/\*.*?\*/)
    | (?P<string>"[^"\n]*")
    | (?P<float>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b)
    | (?P<decimal>\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
    | (?P<integer>0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?)
    | (?P<directive>\.[A-Za-z_]\w*(?:::\w+)*)
    | (?P<name>%?[A-Za-z_$][\w$]*(?:(?:\.|::)\w+)*)
    | (?P<symbol><<|>>|[{}()\[\],;:@!|+\-*/<>=&^~%])
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """One token; ``kind`` is string, float, decimal, integer, directive, name, symbol or end."""

    kind: str
    text: str
    line: int


def tokenize(text: str) -> list[Token]:
    """The tokens of ``text``, closed by one of kind ``end``. Raises InputError at a character that starts none."""
    tokens: list[Token] = []
    line, position = 1, 0
    match = _TOKEN.match
    while position < len(text):
        found = match(text, position)
        if found is None:
            raise InputError(f"PTX line {line}: unexpected character {text[position]!r}")
        kind = found.lastgroup or ""
        position = found.end()
        if kind == "newline":
            line += 1
        elif kind == "comment":
            line += found.group().count("\n")
        elif kind != "skip":
            tokens.append(Token(kind, found.group(), line))
    tokens.append(Token("end", "", line))
    return tokens
