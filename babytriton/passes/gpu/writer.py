"""Writes programs out for a GPU's threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import tvm_ffi
from tvm import ir, tirx

from babytriton.ops.primfunc import nodes
from babytriton.passes.blocks import uses
from babytriton.passes.gpu.accesses import Access, Window, loads_made
from babytriton.passes.gpu.choices import (
    Choosing,
    Loading,
    Naming,
    choice,
    chooses_loads,
    in_steps,
)
from babytriton.passes.gpu.extents import put_together, split
from babytriton.passes.gpu.program import Block, Program
from babytriton.passes.gpu.registers import Kept, Loaded, Read, Vector
from babytriton.passes.gpu.writing import (
    LANE,
    copy_vector,
    each,
    guarded,
    load,
    local,
    number,
    only,
    store,
    with_one_test,
)
from babytriton.passes.nests import is_equal
from babytriton.passes.statements import sequence

Statements = list[tirx.Stmt]

_MOST = 24
"""Vectors that are read where tests hold, for which registers have room."""


class Writer:
    """What a thread does for the blocks of a program, vector by vector.

    Args:
        program: what is computed.
        width: elements of a vector.
        count: elements of a row that a thread keeps.
        is_whole: whether those of a vector lie beside each other.
    """

    def __init__(self, program: Program, width: int, count: int, is_whole: bool = True) -> None:
        self.program = program
        self.width = width
        self._beside = width if is_whole else 1
        self.count = count
        self.allocations: list[tirx.Var] = []
        self._ending = "vector" if width > 1 else "value"
        # Of the first way that a choice may go, while the second one is written.
        self._spare: list[tirx.Var] = []
        # Anew each time: of a node that stands in two expressions, TVM makes one of 64 bits in both
        # where one of them needs it, and then no vector of addresses.
        self.row: Callable[[], ir.Expr] = lambda: number(0)
        self.is_row: ir.Expr | None = None
        # Where values are that were computed, and those that were loaded for several blocks.
        self._values: dict[tirx.Var, tirx.Var] = {}
        self._kept: list[Kept] = []
        # What columns are reduced to: all that the thread has of each.
        self.columns: list[tuple[Block, tirx.Var]] = []
        # What is read once a row: by the load, in which register it is.
        self._of_rows: list[tuple[ir.TensorLoad, tirx.Var]] = []
        # And what is read once for the vector that is being written, since a choice is made by it.
        self._of_vector: list[tuple[ir.TensorLoad, tirx.Var]] = []

    def keep(self, accesses: Iterable[tuple[Access, bool]]) -> Callable[[Vector], Statements]:
        """Have what is read in some places in registers from now on.

        Args:
            accesses: the places, and whether all elements that the thread has are kept of each, or
                those of a vector.

        Returns:
            What loads them for a vector.
        """
        made: list[Kept] = []
        for one, is_whole in accesses:
            if self._fits(one):
                count, ending = (self.count, "part") if is_whole else (self.width, self._ending)
                dtype = str(one.buffer.ty.dtype)
                values = self.allocate(count, dtype, f"{one.name}_{ending}")
                made.append(Kept(one, values, is_whole))
        self._kept += made
        return lambda vector: [
            stmt for kept in made for stmt in self._load(kept.of(vector), vector)
        ]

    def forget(self) -> None:
        """Have each block load what it reads by itself, also what others have stored."""
        self._kept.clear()
        for block in self.program.blocks:
            if block.has_elements and block.combine is None:
                self._values.pop(block.buffer, None)

    def load_of_rows(self) -> Statements:
        """What loads the numbers that are read for the whole row."""
        written = {block.buffer for block in self.program.blocks}
        variables = [var for var, _ in self.program.elements]
        body: Statements = []
        for block in self.program.blocks:
            for made in loads_made(block.value) if block.has_elements else ():
                indices = list(made.indices)
                is_nested = bool(nodes(indices, ir.TensorLoad))
                is_of_elements = any(uses(i, var) for i in indices for var in variables)
                is_known = any(tvm_ffi.structural_equal(made, own) for own, _ in self._of_rows)
                if is_nested or is_of_elements or is_known or made.source in written:
                    continue
                name = f"{made.source.name}_of_row"
                own = self.allocate(1, str(made.source.ty.dtype), name)
                self._of_rows.append((made, own))
                at = [self.at(index, None) for index in indices]
                body.append(tirx.BufferStore(own, tirx.BufferLoad(made.source, at), [number(0)]))
        return body

    def allocate(self, count: int, dtype: str, name: str) -> tirx.Var:
        """Registers."""
        buffer = local(count, dtype, name)
        for spare in self._spare:
            if spare.name == name and tvm_ffi.structural_equal(spare.ty, buffer.ty):
                self._spare.remove(spare)
                return spare
        self.allocations.append(buffer)
        return buffer

    def one_by_one(self, ways: Iterable[Callable[[], Statements]]) -> Statements:
        """What several functions write, each with the registers that others are done with."""
        done, before, spare = [], len(self.allocations), self._spare
        for way in ways:
            self._spare = [*spare, *self.allocations[before:]]
            done += way()
        self._spare = spare
        return done

    def computed(self, block: Block, values: tirx.Var) -> None:
        """Tell where a block's values are."""
        self._values[block.buffer] = values

    def total(self, block: Block, ending: str) -> tirx.Var:
        """A register for a block's one value of a row, a piece or a column, by that ending."""
        found = self.allocate(1, block.dtype, f"{block.buffer.name}_of_{ending}")
        self.computed(block, found)
        return found

    def value(self, block: Block) -> tirx.Var:
        """Where a block's values are."""
        return self._values[block.buffer]

    def value_of_row(self, block: Block) -> tuple[tirx.Var, Statements]:
        """A value of the row, which each thread computes; anew where it was computed before."""
        if block.buffer not in self._values:
            self.total(block, "row")
        value = self.of_row(block, block.value)
        return self.value(block), [tirx.BufferStore(self.value(block), value, [number(0)])]

    def of_row(self, block: Block, expr: ir.Expr) -> ir.Expr:
        """An expression of the block that has no elements in it."""
        return self._replaced(block, expr, None, [])

    def pointwise(self, block: Block, keeps: bool = False) -> Callable[[Vector], Statements]:
        """What computes, and stores, the block's values of a vector.

        Args:
            block: that.
            keeps: whether the values stay in registers also where no other block reads them.
        """
        target = self.program.access(block, block.store) if block.is_result else None
        if target is not None and not (self._fits(target) and self._beside == self.width):
            target = None
        is_kept = keeps or self.program.is_passed_on(block)
        values: tirx.Var | None = None
        if is_kept:
            values = self.allocate(self.count, block.dtype, f"{block.buffer.name}_part")
            self.computed(block, values)
        elif target is not None:
            values = self.allocate(self.width, block.dtype, f"{block.buffer.name}_{self._ending}")

        def of_vector(vector: Vector) -> Statements:
            start = vector.kept if is_kept else number(0)

            def use(lane: ir.Expr, value: ir.Expr) -> Statements:
                if values is not None:
                    done: Statements = [tirx.BufferStore(values, value, [start + lane])]
                    value = tirx.BufferLoad(values, [start + lane])
                else:
                    done = []
                if block.is_result and target is None:
                    element = vector.element(lane)
                    indices = [self.at(index, element) for index in block.store.indices]
                    put = tirx.BufferStore(block.buffer, value, indices)
                    done += guarded(self.is_row, [put])
                return done

            done = self.elements(block, vector, use)
            if target is None or values is None:
                return done
            at = self.place(target, vector.first)
            stored = copy_vector(vector.width, (block.buffer, at), (values, start))
            return [*done, *guarded(self.is_row, stored)]

        return of_vector

    def into_columns(self, block: Block) -> Callable[[Vector], Statements]:
        """What takes the block's values of a vector into what columns are reduced to."""
        combine = block.combine
        assert combine is not None
        total = self.allocate(self.count, block.dtype, f"{block.buffer.name}_of_columns")
        self.columns.append((block, total))

        def of_vector(vector: Vector) -> Statements:
            def use(lane: ir.Expr, value: ir.Expr) -> Statements:
                at = [vector.kept + lane]
                added = tirx.BufferStore(total, combine(tirx.BufferLoad(total, at), value), at)
                return guarded(self.is_row, [added])

            return self.elements(block, vector, use)

        return of_vector

    def elements(
        self,
        block: Block,
        vector: Vector,
        use: Callable[[ir.Expr, ir.Expr], Sequence[tirx.Stmt]],
    ) -> Statements:
        """What is done with the block's value at each element of a vector, once that is loaded."""
        last, beside = self.program.elements[-1], min(vector.width, self._beside)

        def is_vector(made: ir.TensorLoad) -> bool:
            return self._is_vector(block, made)

        is_loaded = chooses_loads(block.value, last, beside, is_vector)
        asked = None if is_loaded else choice(block, last, beside, self._vectors)
        if asked is not None:
            test, *sides = asked
            before, count = self._asked(test, vector), len(self._of_vector)
            ways = []
            for side in sides:
                others = len(self.allocations)
                ways.append(sequence(self.elements(side, vector, use)))
                self._spare += self.allocations[others:]
            self._spare.clear()
            whole = tirx.IfThenElse(self.at(test, vector.first), *ways)
            del self._of_vector[count - len(before) :]
            return [*before, whole]
        value, steps = in_steps(block, last, beside, is_vector)
        if sum(not isinstance(step, Naming) for step in steps) > _MOST:
            value, steps = block.value, []
        loaded: list[Loaded] = []
        chosen: dict[tirx.Var, tirx.Var] = {}
        body: Statements = []
        count = len(self._of_vector)
        for made in self.program.loads(block, self._beside):
            body += self._loading(block, made, None, vector, loaded)
        for step in steps:
            match step:
                case Naming(name, test, where):
                    full = test if where is None else tirx.And(where, test)
                    full = self._replaced(block, full, (vector, number(0)), loaded)
                    body.append(tirx.Bind(name, full))
                case Loading(made, where):
                    body += self._loading(block, made, where, vector, loaded)
                case Choosing(variable, choice_, where):
                    dtype = str(variable.ty.dtype)
                    own = self.allocate(self.width, dtype, f"chosen_{self._ending}")
                    chosen[variable] = own
                    body += guarded(where, self._choosing(block, choice_, own, vector))

        def of_lane(lane: ir.Expr) -> Sequence[tirx.Stmt]:
            def known(variable: tirx.Var) -> ir.Expr:
                own = chosen.get(variable)
                return variable if own is None else tirx.BufferLoad(own, [lane])

            own = tvm_ffi.structural_map(value, (ir.Var, known))
            return use(lane, self._replaced(block, own, (vector, lane), loaded))

        whole = with_one_test(body) + each(LANE, vector.width, of_lane)
        del self._of_vector[count:]
        return whole

    def _loading(
        self,
        block: Block,
        made: ir.TensorLoad,
        where: ir.Expr | None,
        vector: Vector,
        loaded: list[Loaded],
    ) -> Statements:
        """What loads what a load reads for a vector, if it reads that from memory.

        Args:
            block: that has the load.
            made: the load.
            where: what must hold for it, if anything must.
            vector: that is written.
            loaded: what is loaded already; what this loads is added.
        """
        inner = nodes(list(made.indices), ir.TensorLoad) if where is None else []
        done = [x for place in inner for x in self._loading(block, place, None, vector, loaded)]
        read = self._read(block, made)
        if read is None:
            return done
        kept = next((k for k in self._kept if read.access.is_same(k.access)), None)
        if kept is not None:
            loaded.append(kept.of(vector))
            return done
        known = next((other for other in loaded if other.read.is_same(read)), None)
        if known is None:
            known = Loaded(read, self._registers(read), number(0))
            loaded.append(known)
        elif known.is_there(where):
            return done
        # Where other tests hold it is loaded again: it is the same then.
        done += guarded(where, self._load(known, vector))
        if where is not None:
            known.wheres.append(where)
        elif not read.access.moves and read.window is None:
            self._of_vector.append((made, known.values))
        return done

    def _choosing(
        self, block: Block, expr: ir.Expr, values: tirx.Var, vector: Vector
    ) -> Statements:
        """What loads one of several vectors, by tests that have names."""
        if isinstance(expr, ir.TensorLoad):
            read = self._read(block, expr)
            assert read is not None
            return self._load(Loaded(read, values, number(0)), vector)
        test, *sides = expr.args
        ways = (sequence(self._choosing(block, side, values, vector)) for side in sides)
        return [tirx.IfThenElse(test, *ways)]

    def _is_vector(self, block: Block, made: ir.TensorLoad) -> bool:
        """Whether what a load reads for a vector lies one behind the other, in memory alone."""
        read = self._read(block, made)
        if read is None or any(read.access.is_same(kept.access) for kept in self._kept):
            return False
        return read.access.moves and read.window is None

    def _registers(self, read: Read) -> tirx.Var:
        """Registers for what is read for a vector."""
        one, window = read.access, read.window
        count = self.width if one.moves else 1 if window is None else window.count
        return self.allocate(count, str(one.buffer.ty.dtype), f"{one.name}_{self._ending}")

    def _asked(self, test: ir.Expr, vector: Vector) -> Statements:
        """What loads the numbers that a choice is made by."""
        done: Statements = []
        for made in nodes(test, ir.TensorLoad):
            if self._register(made) is None:
                name = f"{made.source.name}_{self._ending}"
                own = self.allocate(1, str(made.source.ty.dtype), name)
                at = [self.at(index, vector.first) for index in made.indices]
                done.append(tirx.BufferStore(own, tirx.BufferLoad(made.source, at), [number(0)]))
                self._of_vector.append((made, own))
        return done

    def _register(self, load: ir.TensorLoad) -> tirx.Var | None:
        """Where the number is that a load reads, if it was read for the row or the vector.

        Or if it is a value of the row, which is in memory only later, and not for all threads.
        """
        own = self._values.get(load.source)
        if own is not None and is_equal(own.shape[0], number(1)):
            return own
        known = (*self._of_rows, *self._of_vector)
        return next((own for made, own in known if tvm_ffi.structural_equal(load, made)), None)

    def _load(self, wanted: Loaded, vector: Vector) -> Statements:
        access, window = wanted.read.access, wanted.read.window
        if window is None:
            at, width = self.place(access, vector.first), vector.width if access.moves else 1
            if width > self._beside:
                return each(LANE, width, lambda lane: self._load_one(wanted, vector, lane))
        else:
            at, width = self.at(window.first, vector.first), window.count
        return copy_vector(width, (wanted.values, wanted.start), (access.buffer, at))

    def _load_one(self, wanted: Loaded, vector: Vector, lane: ir.Expr) -> Statements:
        """What loads one of the elements of a vector that lie apart."""
        access = wanted.read.access
        at = self.place(access, vector.element(lane))
        return [store(wanted.values, load(access.buffer, at), wanted.start + lane)]

    def _window(self, access: Access) -> Window | None:
        """What a vector loads of an access that jumps."""
        return access.window(self._beside, self.program.elements[-1]) if access.jumps else None

    def _read(self, block: Block, made: ir.TensorLoad) -> Read | None:
        """What a load reads from memory for a vector; None if it does not, or not at once."""
        one = self.program.access(block, made)
        if one is None or one.buffer in self._values or not self._fits(one):
            return None
        if (one.jumps and self._beside < self.width) or self._register(made) is not None:
            return None
        return Read(one, self._window(one))

    def _vectors(self, block: Block) -> int:
        """How many vectors the block reads from memory in any case."""
        found: list[Read] = []
        for made in self.program.loads(block, self._beside):
            read = self._read(block, made)
            if read is not None and not any(read.is_same(other) for other in found):
                found.append(read)
        return sum(read.access.moves for read in found)

    def _fits(self, one: Access) -> bool:
        return one.fits(self._beside, self.program.elements[-1])

    def _replaced(
        self,
        block: Block,
        expr: ir.Expr,
        at: tuple[Vector, ir.Expr] | None,
        loaded: Sequence[Loaded],
    ) -> ir.Expr:
        """The block's expression, of what the thread has in registers."""
        element = None if at is None else at[0].element(at[1])

        def of_vector(made: ir.TensorLoad) -> ir.Expr:
            one = None if at is None else self.program.access(block, made)
            if one is None or at is None or made.source in self._values:
                return made
            window = self._window(one) if self._fits(one) else None
            same = (other for other in loaded if other.read.is_same(Read(one, window)))
            return next((other.lane(at[1], window) for other in same), made)

        def of_load(made: ir.TensorLoad) -> ir.Expr:
            own, register = self._values.get(made.source), self._register(made)
            if register is not None:
                return only(register)
            if any(made.source.same_as(other.values) for other in loaded):
                return made
            if own is not None:
                # A value of the row is one register; of elements, the program reads its own alone.
                if at is None or is_equal(own.shape[0], number(1)):
                    return only(own)
                return tirx.BufferLoad(own, [at[0].kept + at[1]])
            return tirx.BufferLoad(made.source, [self.at(i, element) for i in made.indices])

        # Those first that are read at places which are read as well.
        expr = tvm_ffi.structural_map(expr, (ir.TensorLoad, of_vector), order="pre")
        found = self.at(tvm_ffi.structural_map(expr, (ir.TensorLoad, of_load)), element)
        return put_together(found) if len(self.program.elements) > 1 else found

    def place(self, access: Access, first: ir.Expr) -> ir.Expr:
        """The position of the first of some elements."""
        if access.base is not None:
            return self.at(access.base, None) + first
        return self.at(access.place, first)

    def at(self, expr: ir.Expr, element: ir.Expr | None) -> ir.Expr:
        """An expression by the program's axes at the thread's row, and at an element of it."""
        values = split(self.row(), self.program.rows)
        if element is not None:
            values |= split(element, self.program.elements)

        def known(load: ir.TensorLoad) -> ir.Expr:
            register = self._register(load)
            return load if register is None else only(register)

        if nodes(expr, ir.TensorLoad):
            expr = tvm_ffi.structural_map(expr, (ir.TensorLoad, known))
        return tvm_ffi.structural_map(expr, (ir.Var, lambda var: values.get(var, var)))
