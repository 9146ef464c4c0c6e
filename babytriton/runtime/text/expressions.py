"""Expressions of C, printed with no more parentheses than they need."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

# Tokens: hexadecimal and other floats, names, operators. TVM adds a float's value as a comment.
_TOKEN = re.compile(
    r"\s*(?:"
    r"(?P<number>0x[0-9a-fA-F.]+p[+-]?\d+f?|0x[0-9a-fA-F]+|\d+\.?\d*(?:[eE][+-]?\d+)?[fFuUlL]*)"
    r"(?:/\*.*?\*/)?"
    r"|(?P<name>[A-Za-z_][A-Za-z_0-9]*)"
    r"|(?P<text>\"[^\"]*\")"
    r"|(?P<operator><<|>>|<=|>=|==|!=|&&|\|\||->|[-+*/%<>=!~&|^?:,.()\[\]])"
    r")"
)

BINARY = {
    **dict.fromkeys(("*", "/", "%"), 10),
    **dict.fromkeys(("+", "-"), 9),
    **dict.fromkeys(("<<", ">>"), 8),
    **dict.fromkeys(("<", ">", "<=", ">="), 7),
    **dict.fromkeys(("==", "!="), 6),
    "&": 5,
    "^": 4,
    "|": 3,
    "&&": 2,
    "||": 1,
}
"""How tightly operators bind, as C has it."""

_COMPARISONS = (6, 7)
_ARITHMETIC = ("*", "/", "%", "+", "-", "&", "^", "|")
_CONDITIONAL, _UNARY, _POSTFIX = 0, 11, 12

_SHIFTS = ("<<", ">>")

# Types of integers, of which the wider one is what an operation on both is of.
_INT, _WIDE, _UNSIGNED = "int", "int64_t", "uint64_t"
NO_TYPES: Mapping[str, str] = MappingProxyType({})
"""Those of names of which nothing is known."""

_LONG = re.compile(r"\d+\.\d{10,}")
"""Floats of 64 bits, with digits that say nothing."""

_ZEROS, _MINUS_ONES = ("0.0f", "0.0"), ("-1.0f", "-1.0")
_NO_BITS = ("0", "(uint)0", "(uint64_t)0ULL")
_UNSIGNED_LITERAL = re.compile(r"(\d{1,9})ULL")
_EXPONENTIALS = ("exp", "expf", "exp2", "exp2f")

_FROM_BITS = {
    "__int_as_float": "__float_as_int",
    "__longlong_as_double": "__double_as_longlong",
}
"""Functions that make floats of bits, and those that make these bits of floats."""

# Operators that compilers warn of where others stand beside them without parentheses.
_MIXED = ("&", "|", "^", "<<", ">>", "&&", "||")

_TYPES = re.compile(
    r"(?:signed|unsigned|char|short|int|long|uint|float|double|half|bool|void|uchar|ushort|"
    r"u?int(?:8|16|32|64)_t|nv_bfloat16|__nv_bfloat16|size_t|"
    r"(?:u?char|u?short|u?int|u?long|u?longlong|float|double|half|nv_bfloat16)[2348])"
)


class NotAnExpressionError(ValueError):
    """Text that is none, or is of a kind that is not known here."""


@dataclass(frozen=True)
class _Printed:
    """An expression's text, and how tightly its outermost operator binds.

    Attributes:
        text: the whole.
        binds: the operator's place in `BINARY`, or above all of these.
        parts: of two operands, the first, the operator and the other.
        type: of integers, if it is known to be one of these.
        narrow: of an int that is cast to 64 bits, or is a number of these, the same as an int.
        opposite: of what is this with the other sign, that; a zero may have either.
        bits_of: of the bits of a float, that.
    """

    text: str
    binds: int
    parts: tuple[str, str, str] | None = None
    type: str | None = None
    narrow: _Printed | None = None
    opposite: _Printed | None = None
    bits_of: _Printed | None = None

    def negated(self) -> _Printed:
        """The same with the other sign."""
        text = self.within(_UNARY)
        return _Printed(f"- {text}" if text.startswith("-") else f"-{text}", _UNARY, opposite=self)

    def within(self, binds: int) -> str:
        """The text as an operand of what binds so tightly."""
        return self.text if self.binds >= binds else f"({self.text})"


def simplified(expression: str, types: Mapping[str, str] = NO_TYPES) -> str:
    """The expression without what is not needed, and with numbers as people write them.

    Args:
        expression: a text with parentheses around each operation, and casts of each integer.
        types: of names that are integers.

    Raises:
        NotAnExpressionError: it could not be read.
    """
    parser = _Parser(_tokens(expression), types)
    printed = parser.conditional()
    parser.expect(None)
    return printed.text


def assigned(place: str, expression: str, types: Mapping[str, str] = NO_TYPES) -> str:
    """An assignment, of what an operation makes of the place itself where it is one.

    Args:
        place: what is assigned to.
        expression: what is.
        types: of names that are integers.

    Raises:
        NotAnExpressionError: the place or the expression could not be read.
    """
    to = simplified(place, types)
    parser = _Parser(_tokens(expression), types)
    printed = parser.conditional()
    parser.expect(None)
    if printed.parts is not None and printed.parts[0] == to and printed.parts[1] in "+-*/":
        return f"{to} {printed.parts[1]}= {printed.parts[2]}"
    return f"{to} = {printed.text}"


def _tokens(text: str) -> list[tuple[str, str]]:
    found, place = [], 0
    text = text.rstrip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None or match.lastgroup is None:
            raise NotAnExpressionError(text[place:])
        found.append((match.lastgroup, match[match.lastgroup]))
        place = match.end()
    return found


class _Parser:
    """Reads an expression, and prints it."""

    def __init__(self, tokens: list[tuple[str, str]], types: Mapping[str, str]) -> None:
        self._tokens = tokens
        self._types = types
        self._place = 0
        self._in_address = False  # There, sums are of integers, and in any order.

    def _peek(self, ahead: int = 0) -> str | None:
        place = self._place + ahead
        return self._tokens[place][1] if place < len(self._tokens) else None

    def _next(self) -> tuple[str, str]:
        if self._place >= len(self._tokens):
            raise NotAnExpressionError
        self._place += 1
        return self._tokens[self._place - 1]

    def expect(self, text: str | None) -> None:
        """Go past a token; None is the end."""
        if self._peek() != text:
            raise NotAnExpressionError(self._peek())
        self._place += 1

    def _within(self, is_address: bool, read: Callable[[], _Printed]) -> _Printed:
        before, self._in_address = self._in_address, is_address
        try:
            return read()
        finally:
            self._in_address = before

    def conditional(self) -> _Printed:
        """An expression with any operators but assignments and commas."""
        start = self._place
        test = self._binary(1)
        if self._peek() != "?":
            return test
        self._place = start
        test = self._within(False, lambda: self._binary(1))
        self.expect("?")
        yes = self.conditional()
        self.expect(":")
        no = self.conditional()
        if (yes.text, no.text) == ("(bool)0", "(bool)1"):
            return _Printed(f"!{test.within(_UNARY)}", _UNARY)
        text = f"{test.within(_CONDITIONAL + 1)} ? {yes.within(1)} : {no.within(_CONDITIONAL)}"
        return _Printed(text, _CONDITIONAL, None, _joint(yes.type, no.type))

    def _binary(self, least: int) -> _Printed:
        left = self._unary()
        while (operator := self._peek()) in BINARY and BINARY[operator] >= least:
            assert operator is not None
            binds = BINARY[operator]
            self.expect(operator)
            right = self._binary(binds + 1)
            left, right, type_ = _without_casts(left, operator, right)
            is_mixed = operator in _MIXED
            left_binds = _UNARY if is_mixed and left.binds != binds else binds
            if is_mixed and left.binds in _COMPARISONS and operator in ("&&", "||"):
                left_binds = binds
            right_binds = binds + 1
            if is_mixed and not (right.binds in _COMPARISONS and operator in ("&&", "||")):
                right_binds = _UNARY
            if binds in _COMPARISONS:
                left_binds = right_binds = max(_COMPARISONS) + 1
            if operator == "^" and right.text in _NO_BITS:
                continue
            if operator == "+" and self._in_address and (right.narrow or right).text == "0":
                continue
            if operator == "+" and self._in_address:
                right_binds = binds
            if operator == "*" and right.text in _MINUS_ONES:
                left = left.negated()
                continue
            if operator in "+-" and right.opposite is not None and right.binds == _UNARY:
                operator, right = "-" if operator == "+" else "+", right.opposite
            first, other = left.within(left_binds), right.within(right_binds)
            parts = (first, operator, right.text)
            opposite = right if operator == "-" and left.text in _ZEROS else None
            left = _Printed(f"{first} {operator} {other}", binds, parts, type_, opposite=opposite)
        return left

    def _unary(self) -> _Printed:
        operator = self._peek()
        if operator in ("-", "+", "!", "~", "*", "&"):
            self.expect(operator)
            operand = self._unary()
            text = operand.within(_UNARY)
            gap = " " if text.startswith(operator) and operator in "-+&" else ""
            type_ = operand.type if operator in "-+~" else None
            return _Printed(f"{operator}{gap}{text}", _UNARY, None, type_)
        if operator == "(" and (cast := self._cast()) is not None:
            operand = self._within(cast.endswith("*"), self._unary)
            if cast == _INT and operand.narrow is not None:
                return operand.narrow
            narrow = operand if cast == _WIDE and operand.type == _INT else None
            if cast == _UNSIGNED and (literal := _UNSIGNED_LITERAL.fullmatch(operand.text)):
                narrow = _Printed(literal[1], _POSTFIX, None, _INT)
            text = f"({cast}){operand.within(_UNARY)}"
            type_ = cast if cast in (_INT, _WIDE, _UNSIGNED) else None
            return _Printed(text, _UNARY, None, type_, narrow)
        return self._postfix()

    def _cast(self) -> str | None:
        """The type that is cast to, if this is a cast."""
        ahead, words = 1, []
        while (word := self._peek(ahead)) is not None and _TYPES.fullmatch(word):
            words.append(word)
            ahead += 1
        stars = 0
        while words and self._peek(ahead) == "*":
            stars += 1
            ahead += 1
        if not words or self._peek(ahead) != ")":
            return None
        self._place += ahead + 1
        return " ".join(words) + "*" * stars

    def _postfix(self) -> _Printed:
        kind, text = self._next()
        if text == "(":
            left = self.conditional()
            self.expect(")")
        elif kind == "number":
            left = _Printed(number(text), _POSTFIX, None, _INT if text.isdecimal() else None)
        elif kind in ("name", "text"):
            left = _Printed(text, _POSTFIX, None, self._types.get(text))
        else:
            raise NotAnExpressionError(text)
        while (operator := self._peek()) in ("(", "[", ".", "->"):
            assert operator is not None
            self.expect(operator)
            own = left.within(_POSTFIX)
            if operator == "[":
                text = f"{own}[{self._within(True, self.conditional).text}]"
                left = _Printed(text, _POSTFIX, None, left.type)
                self.expect("]")
            elif operator == "(":
                given = self._arguments()
                if own in _EXPONENTIALS and given[0].opposite is not None:
                    given = [given[0].opposite.negated()]  # That of either zero is 1.
                of_bits = given[0].bits_of if given and own in _FROM_BITS else None
                text = f"{own}({', '.join(each.text for each in given)})"
                bits_of = given[0] if given and own in _FROM_BITS.values() else None
                left = of_bits or _Printed(text, _POSTFIX, bits_of=bits_of)
            else:
                left = _Printed(f"{own}{operator}{self._next()[1]}", _POSTFIX)
        return left

    def _arguments(self) -> list[_Printed]:
        found = []
        while self._peek() != ")":
            found.append(self._within(False, self.conditional))
            if self._peek() == ",":
                self.expect(",")
        self.expect(")")
        return found


def _without_casts(
    left: _Printed, operator: str, right: _Printed
) -> tuple[_Printed, _Printed, str | None]:
    """The operands of an operation without casts that it makes by itself; and its type.

    A first operand keeps its cast, but in products and comparisons: with the parentheses of a sum
    that is added, it would be added before to what stands in front of it, in fewer bits.
    """
    if operator in _SHIFTS:
        return left, right.narrow or right, left.type
    if left.type == right.type and left.type in (_WIDE, _UNSIGNED):
        if right.narrow is not None:
            right = right.narrow
        elif left.narrow is not None and (operator == "*" or BINARY[operator] in _COMPARISONS):
            left = left.narrow
    return left, right, _joint(left.type, right.type) if operator in _ARITHMETIC else None


def _joint(left: str | None, right: str | None) -> str | None:
    """The type of what is made of both; None where it is not known."""
    if left is None or right is None:
        return None
    return next((type_ for type_ in (_UNSIGNED, _WIDE) if type_ in (left, right)), _INT)


def number(text: str) -> str:
    """A number in few digits that say the same; as it is, if it is no float as TVM writes it."""
    if _LONG.fullmatch(text):
        return repr(float(text))
    if not text.startswith("0x") or "p" not in text:
        return text
    is_single = text.endswith("f")
    value = float.fromhex(text.rstrip("f"))
    short = _shortest(value) if is_single else repr(value)
    if not any(mark in short for mark in ".en"):
        short += ".0"
    return short + "f" * is_single


def _shortest(value: float) -> str:
    """The fewest digits that are this float32."""
    packed = struct.pack("<f", value)
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        try:
            if struct.pack("<f", float(text)) == packed:
                return repr(float(text)) if 1 <= abs(value) < 1e6 else text
        except OverflowError:  # rounded up past the greatest float32
            continue
    return repr(value)
