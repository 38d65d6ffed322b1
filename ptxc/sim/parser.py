"""PTX text -> syntax tree (PTX ISA 4 and 11): a recursive-descent parser, one method a construct."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable

from ptxc.errors import InputError, UnsupportedError
from ptxc.sim import syntax as ast
from ptxc.sim.lexer import Token, tokenize
from ptxc.sim.scalar import TYPES

_SPACES = {".global", ".const", ".shared", ".local", ".param"}
_LINKAGE = {".visible", ".extern", ".weak", ".common"}
_LIMITS = {
    ".maxntid", ".reqntid", ".minnctapersm", ".maxnctapersm", ".maxnreg", ".noreturn", ".explicitcluster",
    ".reqnctapercluster", ".maxclusterrank", ".blocksareclusters", ".abi_preserve", ".abi_preserve_control",
}  # fmt: skip
_BINARY: tuple[dict[str, Callable[[int, int], int]], ...] = (
    {"|": operator.or_},
    {"^": operator.xor},
    {"&": operator.and_},
    {"<<": operator.lshift, ">>": operator.rshift},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": lambda a, b: int(a / b) if b else 0, "%": operator.mod},
)


def parse(text: str) -> ast.Module:
    """The tree of one PTX module. Raises InputError with the line where the text is not PTX."""
    return _Parser(tokenize(text)).module()


def decode_float(value: int, bits: int) -> float:
    """The float whose exact pattern of 32 or 64 bits is ``value``."""
    layout = ("<I", "<f") if bits == 32 else ("<Q", "<d")
    number: float = struct.unpack(layout[1], struct.pack(layout[0], value))[0]
    return number


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0

    # Tokens

    @property
    def _token(self) -> Token:
        return self._tokens[self._at]

    def _fail(self, expected: str) -> InputError:
        token = self._token
        return InputError(f"PTX line {token.line}: expected {expected}, found {token.text or 'the end'!r}")

    def _take(self) -> Token:
        token = self._token
        self._at += 1
        return token

    def _peek(self, text: str, ahead: int = 0) -> bool:
        at = self._at + ahead
        return at < len(self._tokens) and self._tokens[at].text == text

    def _accept(self, text: str) -> bool:
        if self._token.text == text:
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> Token:
        if self._token.text != text:
            raise self._fail(repr(text))
        return self._take()

    def _name(self, what: str = "a name") -> str:
        if self._token.kind != "name":
            raise self._fail(what)
        return self._take().text

    # Module level

    def module(self) -> ast.Module:
        module = ast.Module("", "", [], {})
        while self._token.kind != "end":
            self._module_item(module)
        if not module.version or not module.target:
            raise InputError("PTX has no .version or no .target", hint="is this a PTX text?")
        return module

    def _module_item(self, module: ast.Module) -> None:
        token = self._token
        if token.text == ".version":
            self._take()
            module.version = self._take().text
        elif token.text == ".target":
            self._take()
            module.target = self._name("a target")
            while self._accept(","):
                self._name("a target option")
        elif token.text == ".address_size":
            self._take()
            if self._integer() != 64:
                raise UnsupportedError(f"PTX line {token.line}: only 64-bit addresses are supported")
        elif token.text == ".section":
            self._skip_section()
        elif token.text == ".pragma":
            self._skip_to(";")
        elif token.text == ".alias":
            self._take()
            alias = self._name()
            self._expect(",")
            module.aliases[alias] = self._name()
            self._expect(";")
        else:
            self._declaration(module)

    def _declaration(self, module: ast.Module) -> None:
        while self._token.text in _LINKAGE:
            self._take()
        if self._token.text in {".entry", ".func"}:
            function = self._function()
            if function.body is not None or function.name not in module.functions:
                module.functions[function.name] = function
        elif self._token.text in _SPACES:
            module.variables.extend(self._variables())
        else:
            raise self._fail("a directive")

    def _skip_to(self, text: str) -> None:
        while not self._accept(text):
            if self._token.kind == "end":
                raise self._fail(repr(text))
            self._take()

    def _skip_section(self) -> None:
        self._skip_to("{")
        self._skip_to("}")

    def _function(self) -> ast.Function:
        entry = self._take().text == ".entry"
        line = self._token.line
        self._skip_attribute()
        returns = self._parameters() if self._peek("(") else []
        name = self._name("a function's name")
        parameters = self._parameters() if self._peek("(") else []
        limits: dict[str, tuple[int, ...]] = {}
        while self._token.text in _LIMITS or self._token.text == ".pragma":
            directive = self._take().text
            if directive == ".pragma":
                self._skip_to(";")
                continue
            limits[directive[1:]] = self._integers() if self._token.kind == "integer" else ()
        body = None if self._accept(";") else self._scope()
        return ast.Function(name, entry, returns, parameters, body, line, limits)

    def _skip_attribute(self) -> None:
        if self._accept(".attribute"):
            self._skip_to(")")

    def _parameters(self) -> list[ast.Variable | ast.Registers]:
        self._expect("(")
        parameters: list[ast.Variable | ast.Registers] = []
        while not self._accept(")"):
            if self._token.text == ".reg":
                parameters.extend(self._registers())
            else:
                parameters.append(self._variable(self._prefix()))
            self._accept(",")
        return parameters

    def _integers(self) -> tuple[int, ...]:
        values = [self._integer()]
        while self._accept(","):
            values.append(self._integer())
        return tuple(values)

    # Declarations

    def _registers(self) -> list[ast.Registers]:
        self._expect(".reg")
        vector = 1
        if self._token.text in {".v2", ".v4"}:
            vector = int(self._take().text[2:])
        kind = self._type()
        declared = []
        while True:
            name = self._name("a register's name")
            count = None
            if self._accept("<"):
                count = self._integer()
                self._expect(">")
            declared.append(ast.Registers(kind, vector, name, count))
            if not (self._peek(",") and self._tokens[self._at + 1].kind == "name"):
                return declared
            self._take()

    def _type(self) -> str:
        token = self._token
        if token.kind != "directive" or token.text[1:] not in TYPES:
            raise self._fail("a type")
        return self._take().text[1:]

    def _prefix(self) -> ast.Variable:
        """The space, alignment and type that come before the names of variables."""
        line = self._token.line
        space = self._take().text[1:]
        if f".{space}" not in _SPACES:
            raise self._fail("a state space")
        align, vector, kind, pointer = 0, 1, "", False
        while self._token.kind == "directive":
            text = self._token.text
            if text == ".align":
                self._take()
                align = self._integer()
            elif text == ".attribute":
                self._skip_attribute()
            elif text == ".ptr":
                self._take()
                pointer = True
                if self._token.text in _SPACES:
                    self._take()
                if self._accept(".align"):
                    self._integer()
            elif text in {".v2", ".v4"}:
                vector = int(self._take().text[2:])
            else:
                kind = self._type()
        size = TYPES[kind].size if kind else 1
        return ast.Variable(space, kind, "", vector, align or size * vector, (), line, pointer)

    def _variable(self, prefix: ast.Variable) -> ast.Variable:
        name = self._name("a variable's name")
        count: int | None = prefix.count or 1
        while self._accept("["):
            if self._accept("]"):
                count = None
            else:
                extent = self._integer()
                count = None if count is None else count * extent
                self._expect("]")
        initial: tuple[ast.Operand, ...] = ()
        if self._accept("="):
            initial = tuple(self._initializer())
            if count is None:
                count = len(initial)
        return ast.Variable(prefix.space, prefix.type, name, count, prefix.align, initial, prefix.line, prefix.pointer)

    def _variables(self) -> list[ast.Variable]:
        prefix = self._prefix()
        variables = [self._variable(prefix)]
        while self._accept(","):
            variables.append(self._variable(prefix))
        self._expect(";")
        return variables

    def _initializer(self) -> list[ast.Operand]:
        if not self._accept("{"):
            return [self._operand()]
        values: list[ast.Operand] = []
        while not self._accept("}"):
            values.extend(self._initializer())
            self._accept(",")
        return values

    # Statements

    def _scope(self) -> ast.Scope:
        self._expect("{")
        scope = ast.Scope()
        while not self._accept("}"):
            self._statement(scope)
        return scope

    def _statement(self, scope: ast.Scope) -> None:
        token = self._token
        if token.text == "{":
            scope.items.append(self._scope())
        elif token.text == ".reg":
            scope.items.extend(self._registers())
            self._expect(";")
        elif token.text in _SPACES:
            scope.items.extend(self._variables())
        elif token.text == ".section":
            self._skip_section()
        elif token.text == ".pragma":
            self._skip_to(";")
        elif token.kind == "name" and self._peek(":", 1):
            self._label(scope)
        elif token.kind == "name" or token.text == "@":
            scope.items.append(self._instruction())
        else:
            raise self._fail("a statement")

    def _label(self, scope: ast.Scope) -> None:
        name, line = self._token.text, self._token.line
        self._at += 2
        if self._accept(".branchtargets") or self._accept(".calltargets"):
            targets = [self._name("a label")]
            while self._accept(","):
                targets.append(self._name("a label"))
            self._expect(";")
            scope.items.append(ast.LabelList(name, tuple(targets)))
        elif self._accept(".callprototype"):
            self._skip_to(";")
        else:
            scope.items.append(ast.Label(name, line))

    def _instruction(self) -> ast.Instruction:
        guard = None
        if self._accept("@"):
            negated = self._accept("!")
            guard = ast.Guard(self._name("a predicate"), negated)
        line = self._token.line
        opcode, *modifiers = self._name("an opcode").split(".")
        operands = []
        while not self._accept(";"):
            operands.append(self._operand())
            if not self._peek(";"):
                self._expect(",")
        return ast.Instruction(line, opcode, tuple(modifiers), tuple(operands), guard)

    # Operands

    def _operand(self) -> ast.Operand:
        token = self._token
        if token.text == "{":
            return ast.Vector(self._list("{", "}"))
        if token.text == "(":
            return ast.Arguments(self._list("(", ")"))
        if token.text == "[":
            return self._address()
        if token.text == "!" and self._tokens[self._at + 1].kind == "name":
            self._take()
            return ast.Negated(ast.Name(self._name()))
        if token.kind == "name":
            return self._named()
        return self._number()

    def _list(self, opening: str, closing: str) -> tuple[ast.Operand, ...]:
        self._expect(opening)
        elements: list[ast.Operand] = []
        while not self._accept(closing):
            elements.append(self._operand())
            if not self._peek(closing):
                self._expect(",")
        return tuple(elements)

    def _named(self) -> ast.Operand:
        name = ast.Name(self._name())
        if name.text == "generic" and self._accept("("):
            inner = self._named()
            self._expect(")")
            return inner
        if self._accept("|"):
            return ast.Pair(name, self._operand())
        if self._peek("+") or self._peek("-"):
            return ast.SymbolOffset(name, self._expression(4, 0))
        return name

    def _address(self) -> ast.Address:
        self._expect("[")
        base = None
        offset = 0
        if self._token.kind == "name":
            base = ast.Name(self._name())
            if self._peek("+") or self._peek("-"):
                offset = self._expression(4, 0)
        else:
            offset = self._integer()
        index: tuple[ast.Operand, ...] = ()
        if self._accept(","):
            index = (self._operand(),)
            while self._accept(","):
                index = (*index, self._operand())
        self._expect("]")
        return ast.Address(base, offset, index)

    # Constants (PTX ISA 4.5)

    def _number(self) -> ast.Number:
        sign = -1.0 if self._peek("-") and self._tokens[self._at + 1].kind in {"float", "decimal"} else 1.0
        if sign < 0:
            self._take()
        token = self._token
        if token.kind == "float":
            self._take()
            bits = 32 if token.text[1] in "fF" else 64
            value = int(token.text[2:], 16)
            return ast.Number(value ^ (1 << (bits - 1)) if sign < 0 else value, bits)
        if token.kind == "decimal":
            self._take()
            return ast.Number(struct.unpack("<Q", struct.pack("<d", sign * float(token.text)))[0], 64)
        return ast.Number(self._integer())

    def _integer(self) -> int:
        return self._expression(0, None)

    def _expression(self, level: int, left: int | None) -> int:
        """A constant expression from precedence ``level`` upwards; ``left`` is its first term where known."""
        if level == len(_BINARY):
            return self._primary()
        value = self._expression(level + 1, None) if left is None else left
        while self._token.kind == "symbol" and self._token.text in _BINARY[level]:
            function = _BINARY[level][self._take().text]
            value = function(value, self._expression(level + 1, None))
        return value

    def _primary(self) -> int:
        if self._accept("-"):
            return -self._primary()
        if self._accept("+"):
            return self._primary()
        if self._accept("~"):
            return ~self._primary()
        if self._accept("("):
            value = self._integer()
            self._expect(")")
            return value
        if self._token.kind != "integer":
            raise self._fail("an integer")
        return _integer_literal(self._take().text.rstrip("U"))


def _integer_literal(text: str) -> int:
    """A literal's value; a leading zero means octal, as in C."""
    if len(text) > 1 and text[0] == "0" and text[1].isdigit():
        return int(text, 8)
    return int(text, 0)
