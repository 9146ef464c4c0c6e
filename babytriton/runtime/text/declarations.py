"""Variables of C, declared where they are first used: TVM declares them where a kernel begins."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

_DECLARATION = re.compile(r"^ *((?:alignas\(\d+\) )?([\w ]+?)) (\w+)(?:\[(\d+)\])?;$")
_ASSEMBLY = re.compile(r"\b(?:asm|__asm__)\b\s*(?:\w+\s*)?\(")
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_LOOP = re.compile(r"^ *(?:for|while) ")
_LANES = re.compile(r"^ *for \(int (\w+) = 0; \1 < (\d+); \+\+\1\) \{$")

_NUMBERED = re.compile(r"([A-Za-z]\w*?)_\d+")
_COUNTED = re.compile(r"^ *for \(\w+ (\w+) = ")
_DECLARED = re.compile(
    r"^ *(?:alignas\(\d+\) |const )?([a-z]\w*(?: [a-z]+)?) (\w+)(?:\[\d+\])?(?: = .*)?;$"
)
_REGISTERS = ("_vector", "_value", "_part", "_of_row", "_of_piece")
_PLACES = ("element", "row", "column", "tile_row", "tile_column", "layer")
"""What names of registers end in, besides those of the user's values; and names of places."""

_BYTES = {
    "bool": 1,
    **dict.fromkeys(("char", "signed char", "uchar"), 1),
    **dict.fromkeys(("short", "ushort", "half", "nv_bfloat16"), 2),
    **dict.fromkeys(("int", "uint", "float"), 4),
    **dict.fromkeys(("int64_t", "uint64_t", "double", "longlong", "ulonglong"), 8),
}
"""The types whose variables are moved, and others of which there are vectors."""


@dataclass
class _Statement:
    """One statement, on one line or several.

    Attributes:
        lines: of a loop, or of conditions, those between which the bodies are.
        bodies: the statements in each of them.
    """

    lines: list[str]
    bodies: list[list[_Statement]]

    @property
    def all_lines(self) -> Iterator[str]:
        """All that it is printed as."""
        yield self.lines[0]
        for body, line in zip(self.bodies, self.lines[1:]):
            for inner in body:
                yield from inner.all_lines
            yield line

    @property
    def is_loop(self) -> bool:
        """Whether its body may run several times."""
        return _LOOP.match(self.lines[0].splitlines()[-1]) is not None

    @cached_property
    def _words(self) -> set[str]:
        """The names in it. Those of variables that are declared in it may be gone since."""
        found = {word for line in self.lines for word in _WORD.findall(line)}
        return found.union(*(inner._words for body in self.bodies for inner in body))

    def rename(self, name: str, other: str) -> None:
        """Call a variable otherwise."""
        if not self.has(name):
            return
        word = re.compile(rf"(?<![\w.]){name}\b")
        self.lines = [word.sub(other, line) for line in self.lines]
        self._words.remove(name)
        self._words.add(other)
        for body in self.bodies:
            for inner in body:
                inner.rename(name, other)

    def has(self, name: str) -> bool:
        """Whether it uses a variable."""
        return name in self._words


@dataclass(frozen=True)
class _Variable:
    """A variable of a kernel.

    Attributes:
        name: what it is called.
        type: what stands before that.
        size: how many numbers it has; None for a variable that is one.
        bytes: of all of them.
    """

    name: str
    type: str
    size: int | None
    bytes: int


def declared_late(lines: Sequence[str], taken: Set[str] = frozenset()) -> list[str]:
    """The body of a kernel, whose variables are declared in the innermost block that uses them.

    In a loop only if each turn begins with a new value. Shared memory stays where it is, and so
    does all else where the lines are others. What has a number since another variable has its name
    has none where that one is not to be seen.

    Args:
        taken: the names of parameters.
        lines: from behind the kernel's head to its closing brace: a line for each statement, and
            for each beginning and end of a block.
    """
    rest = list(lines)
    try:
        body = _block(rest)
    except IndexError:
        return list(lines)
    if rest != ["}"] or any(_ASSEMBLY.search(line) for line in lines):
        return list(lines)
    _declare_all(body, "  ")
    _shorten(body, taken)
    return [part for each in body for line in each.all_lines for part in line.split("\n")] + ["}"]


def _block(lines: list[str]) -> list[_Statement]:
    """The statements before the end of a block, which are taken from the lines."""
    found: list[_Statement] = []
    while not lines[0].lstrip().startswith("}"):
        line = lines.pop(0)
        if line.lstrip().startswith("#"):
            line = f"{line}\n{lines.pop(0)}"
        statement = _Statement([line], [])
        while statement.lines[-1].endswith("{"):
            statement.bodies.append(_block(lines))
            statement.lines.append(lines.pop(0))
        found.append(statement)
    return found


def _declared(statement: _Statement) -> _Variable | None:
    """The variable that a statement declares, and does nothing else."""
    match = _DECLARATION.match(statement.lines[0])
    if match is None or match[2] not in _BYTES:
        return None
    size = None if match[4] is None else int(match[4])
    return _Variable(match[3], match[1], size, _BYTES[match[2]] * (size or 1))


def _declare_all(body: list[_Statement], indent: str) -> None:
    """Declare the variables of a block, and of those within, where they are first used."""
    variables = []
    for statement in list(body):
        variable = _declared(statement)
        if variable is not None:
            body.remove(statement)
            variables.append(variable)
    for variable in variables:
        _declare(variable, body, indent)
    for statement in body:
        for inner in statement.bodies:
            _declare_all(inner, f"{indent}  ")


def _declare(variable: _Variable, body: list[_Statement], indent: str) -> None:
    name = variable.name
    users = [statement for statement in body if statement.has(name)]
    if not users:
        return
    first = users[0]
    inside = [inner for inner in first.bodies if any(each.has(name) for each in inner)]
    is_inside = len(users) == len(inside) == 1 and not any(_has(line, name) for line in first.lines)
    is_own = is_inside and not first.is_loop
    if is_own or all(_is_apart(variable, user) for user in users):
        for inner in (each for user in users for each in user.bodies):
            _declare(variable, inner, f"{indent}  ")
        return
    place = body.index(first)
    value = None if first.bodies or variable.size is not None else _assigned(first.lines[0], name)
    if value is not None:
        body[place] = _Statement([f"{indent}{variable.type} {name} = {value};"], [])
        return
    size = "" if variable.size is None else f"[{variable.size}]"
    body.insert(place, _Statement([f"{indent}{variable.type} {name}{size};"], []))


def _is_apart(variable: _Variable, statement: _Statement) -> bool:
    """Whether blocks use a variable, each of which begins with a new value."""
    is_asked = any(_has(line, variable.name) for line in statement.lines)
    inner = all(_begins_anew(variable, each) for each in statement.bodies)
    return bool(statement.bodies) and not is_asked and inner


def _begins_anew(variable: _Variable, body: Sequence[_Statement]) -> bool:
    """Whether statements give a variable all of its numbers before they use any."""
    users = [statement for statement in body if statement.has(variable.name)]
    if not users:
        return True
    first = users[0]
    if not first.bodies:
        return _is_written(variable, first.lines[0])
    if first.is_loop and _fills(variable, first):
        return True
    return len(users) == 1 and _is_apart(variable, first)


def _is_written(variable: _Variable, line: str) -> bool:
    """Whether a statement gives a variable all of its numbers."""
    if variable.size is None:
        return _assigned(line, variable.name) is not None
    vector = re.match(rf"^ *\*\(([a-z]+?)([248]?)\*\){variable.name} = (.*)$", line)
    if vector is None or _has(vector[3], variable.name):
        return False
    return _BYTES.get(vector[1], 0) * int(vector[2] or 1) == variable.bytes


def _fills(variable: _Variable, loop: _Statement) -> bool:
    """Whether a loop gives a variable one number after the other, and uses no other meanwhile."""
    lanes = _LANES.match(loop.lines[0].splitlines()[-1])
    if lanes is None or int(lanes[2]) != variable.size:
        return False
    own = f"{variable.name}[{lanes[1]}]"
    first = next(statement for statement in loop.bodies[0] if statement.has(variable.name))
    if first.bodies or _assigned(first.lines[0], own) is None:
        return False
    return not any(_has(line.replace(own, ""), variable.name) for line in loop.all_lines)


def _assigned(line: str, place: str) -> str | None:
    """What a statement gives to a place, if it does, and does not use it."""
    text = line.strip()
    value = text.removeprefix(f"{place} = ").removesuffix(";")
    name = re.match(r"\w+", place)
    is_own = name is None or _has(value, name[0])
    return None if not text.startswith(f"{place} = ") or is_own else value


def _shorten(body: list[_Statement], taken: Set[str]) -> None:
    """Take numbers from names of registers and of places, in a block and in the blocks within.

    Args:
        body: the block.
        taken: what is declared around it.
    """
    matches = [match for each in body if (match := _DECLARED.match(each.lines[0])) is not None]
    declared = [match[2] for match in matches]
    for n, match in enumerate(matches):
        name, short = match[2], _without_number(match[2])
        if short is None or short in {*taken, *declared}:
            continue
        if any(each.has(short) for each in body):
            continue
        for each in body:
            each.rename(name, short)
        declared[n] = short
    for each in body:
        loop = _COUNTED.match(each.lines[0].splitlines()[-1])
        own = {loop[1]} if loop else set()
        for inner in each.bodies:
            _shorten(inner, {*taken, *declared, *own})


def _without_number(name: str) -> str | None:
    """A name without the number that tells it from another; None if the user may have given it."""
    numbered = _NUMBERED.fullmatch(name)
    short = "" if numbered is None else numbered[1]
    return short if short in _PLACES or short.endswith(_REGISTERS) else None


def _has(text: str, name: str) -> bool:
    return name in text and re.search(rf"(?<![\w.]){name}\b", text) is not None
