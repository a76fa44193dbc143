"""The inner loops of the kernels, written as LLVM vector code of 16 lanes.

A compiler that vectorises plain loops chooses by processor in which order it adds. Here every lane adds in an order
that is written down, with fused multiply-adds: a sum has the same bits on every processor. Its speed is near the
processor's peak, because accumulators stay in registers while rows of operands stream past.

All arrays are flat; a matrix in one is a start and a stride. Ends that do not fill a vector are masked.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

Value = Any  # of LLVM: a register, an address, a constant

LANES = 16
FLOAT, INT, LONG = ir.FloatType(), ir.IntType(32), ir.IntType(64)
FLOATS, INTS = ir.VectorType(FLOAT, LANES), ir.VectorType(INT, LANES)
LONGS, MASK = ir.VectorType(LONG, LANES), ir.VectorType(ir.IntType(1), LANES)
ZEROS = ir.Constant(FLOATS, [0.0] * LANES)
LOWEST = ir.Constant(FLOATS, [float("-inf")] * LANES)


class Code:
    """Writes vector instructions into a function that Numba compiles."""

    def __init__(self, context: Value, builder: Value, signature: Value, arguments: Value):
        self.builder, self.mask = builder, None
        self.arguments = [
            context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
            for kind, value in zip(signature.args, arguments, strict=True)
        ]

    def place(self, base: Value, *terms: Value) -> Value:
        """Return the address of base[sum of terms]; a pair is a product."""
        index = LONG(0)
        for term in terms:
            value = self.builder.mul(term[0], _long(term[1])) if isinstance(term, tuple) else _long(term)
            index = self.builder.add(index, value)
        return self.builder.gep(base, [index])

    def load(self, place: Value) -> Value:
        """Return the 16 numbers from there on; zeros where the mask is off."""
        pointer = self.builder.bitcast(place, FLOATS.as_pointer())
        if self.mask is None:
            return self.builder.load(pointer, align=4)
        return self._call("llvm.masked.load.v16f32.p0", FLOATS, pointer, INT(4), self.mask, ZEROS)

    def store(self, values: Value, place: Value) -> None:
        """Write 16 numbers, those where the mask is on."""
        pointer = self.builder.bitcast(place, FLOATS.as_pointer())
        if self.mask is None:
            self.builder.store(values, pointer, align=4)
        else:
            self._call("llvm.masked.store.v16f32.p0", ir.VoidType(), values, pointer, INT(4), self.mask)

    def repeated(self, scalar: Value, kind: Value = FLOATS) -> Value:
        """Return a vector of one number."""
        nothing = ir.Constant(kind, ir.Undefined)
        first = self.builder.insert_element(nothing, scalar, INT(0))
        return self.builder.shuffle_vector(first, nothing, ir.Constant(INTS, [0] * LANES))

    def multiply_add(self, a: Value, b: Value, c: Value) -> Value:
        """Return a · b + c, rounded once."""
        return self._call("llvm.fma.v16f32", FLOATS, a, b, c)

    def total(self, values: Value) -> Value:
        """Return the sum of the lanes: halves are added until one is left."""
        width = LANES
        while width > 1:
            width //= 2
            low, high = (ir.Constant(ir.VectorType(INT, width), [*range(i, i + width)]) for i in (0, width))
            nothing = ir.Constant(values.type, ir.Undefined)
            halves = (self.builder.shuffle_vector(values, nothing, some) for some in (low, high))
            values = self.builder.fadd(*halves)
        return self.builder.extract_element(values, INT(0))

    def variable(self, kind: Value, value: Value) -> Value:
        """Return a variable that lives in registers, set to this value."""
        found = cgutils.alloca_once(self.builder, kind)
        self.builder.store(value, found)
        return found

    @contextmanager
    def first_lanes(self, count: Value) -> Generator[None]:
        """Read and write only so many lanes."""
        lanes = ir.Constant(LONGS, list(range(LANES)))
        self.mask = self.builder.icmp_signed("<", lanes, self.repeated(count, LONGS))
        yield
        self.mask = None

    def each(self, count: Value, body: Callable[[Value], None]) -> None:
        """Do the body at 0, 16, … up to ``count``, the last one masked if it is not whole."""
        b = self.builder
        whole = b.and_(count, LONG(-LANES))
        left = b.sub(count, whole)
        with cgutils.for_range_slice(b, LONG(0), whole, LONG(LANES), intp=LONG) as (at, _):
            body(at)
        with b.if_then(b.icmp_signed(">", left, LONG(0))), self.first_lanes(left):
            body(whole)

    def _call(self, name: str, result: Value, *arguments: Value) -> Value:
        kind = ir.FunctionType(result, [a.type for a in arguments])
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), arguments)


def _long(value: Value) -> Value:
    return LONG(value) if isinstance(value, int) else value


def vector_function(write: Callable[..., None]) -> Value:
    """Return a function for compiled code whose body ``write(code, …)`` emits; arguments are arrays and numbers."""

    @wraps(write)  # Numba reads the names of the parameters there
    def typed(_context: Value, *kinds: Value) -> Value:
        plain = (kind if isinstance(kind, types.Array | types.Float) else types.int64 for kind in kinds)

        def generate(context: Value, builder: Value, signature: Value, arguments: Value) -> Value:
            code = Code(context, builder, signature, arguments)
            write(code, *code.arguments)
            return context.get_dummy_value()

        return types.void(*plain), generate

    return intrinsic(typed)


def product_rows(rows: int, vectors: int, masked: bool) -> Value:
    """Return a function of sums Σ_t w[r, t] x[t, v], for so many rows and vectors of columns at once.

    How 0: add them to y[r, v]; 1: write them there; 2: take a step there, y[r, v] − lr times them. A sum that is not
    added begins at zero, so it has the bits of one that is added to zeros.
    """

    def write(
        code: Code,
        y: Value,
        y0: Value,
        y_row: Value,
        w: Value,
        w0: Value,
        w_row: Value,
        w_tap: Value,
        x: Value,
        x0: Value,
        offset: Value,
        taps: Value,
        left: Value,
        how: Value,
        lr: Value,
    ) -> None:
        b = code.builder

        def block() -> None:
            places = [[code.place(y, y0, (y_row, r), v * LANES) for v in range(vectors)] for r in range(rows)]
            sums = [[code.variable(FLOATS, ZEROS) for _ in row] for row in places]
            pairs = [pair for row in zip(places, sums, strict=True) for pair in zip(*row, strict=True)]
            with b.if_then(b.icmp_signed("==", how, LONG(0))):
                for place, total in pairs:
                    b.store(code.load(place), total)
            with cgutils.for_range(b, taps) as loop:
                start = b.load(code.place(offset, loop.index))
                xs = [code.load(code.place(x, x0, start, v * LANES)) for v in range(vectors)]
                for r, row in enumerate(sums):
                    weight = code.repeated(b.load(code.place(w, w0, (w_tap, loop.index), (w_row, r))))
                    for some, total in zip(xs, row, strict=True):
                        b.store(code.multiply_add(weight, some, b.load(total)), total)
            with b.if_then(b.icmp_signed("==", how, LONG(2))):
                rate = code.repeated(lr)
                for place, total in pairs:
                    b.store(b.fsub(code.load(place), b.fmul(rate, b.load(total))), total)
            for place, total in pairs:
                code.store(b.load(total), place)

        if not masked:
            return block()
        with code.first_lanes(left):
            return block()

    return vector_function(write)


def inner_products(a_rows: int, b_rows: int) -> Value:
    """Return a function that adds Σ_{r, v} a[j, r, v] b[k, r, v] to out[j, k], for so many j and k at once."""

    def write(
        code: Code,
        out: Value,
        out0: Value,
        out_a: Value,
        out_b: Value,
        a: Value,
        a0: Value,
        a_row: Value,
        a_line: Value,
        b: Value,
        b0: Value,
        b_line: Value,
        offset: Value,
        first: Value,
        lines: Value,
        count: Value,
    ) -> None:
        build = code.builder
        sums = [[code.variable(FLOATS, ZEROS) for _ in range(b_rows)] for _ in range(a_rows)]
        starts = [build.add(b0, build.load(code.place(offset, first, k))) for k in range(b_rows)]
        with cgutils.for_range(build, lines) as loop:

            def step(at: Value) -> None:
                bs = [code.load(code.place(b, start, (b_line, loop.index), at)) for start in starts]
                for j, row in enumerate(sums):
                    one = code.load(code.place(a, a0, (a_row, j), (a_line, loop.index), at))
                    for other, total in zip(bs, row, strict=True):
                        build.store(code.multiply_add(one, other, build.load(total)), total)

            code.each(count, step)
        for j, row in enumerate(sums):
            for k, total in enumerate(row):
                place = code.place(out, out0, (out_a, j), (out_b, k))
                build.store(build.fadd(build.load(place), code.total(build.load(total))), place)

    return vector_function(write)


@vector_function
def fill(code: Code, a: Value, start: Value, value: Value, count: Value) -> None:
    """(a, start, value, count): set numbers."""
    values = code.repeated(value)
    code.each(count, lambda at: code.store(values, code.place(a, start, at)))


@vector_function
def copy(code: Code, a: Value, source: Value, b: Value, target: Value, count: Value) -> None:
    """(a, source, b, target, count): copy numbers of a to b, or within an array to where they do not overlap."""
    code.each(count, lambda at: code.store(code.load(code.place(a, source, at)), code.place(b, target, at)))


@vector_function
def add(code: Code, a: Value, source: Value, b: Value, target: Value, count: Value) -> None:
    """(a, source, b, target, count): b ← b + a."""

    def body(at: Value) -> None:
        place = code.place(b, target, at)
        code.store(code.builder.fadd(code.load(place), code.load(code.place(a, source, at))), place)

    code.each(count, body)


@vector_function
def multiply(code: Code, a: Value, source: Value, b: Value, target: Value, count: Value) -> None:
    """(a, source, b, target, count): b ← b · a."""

    def body(at: Value) -> None:
        place = code.place(b, target, at)
        code.store(code.builder.fmul(code.load(place), code.load(code.place(a, source, at))), place)

    code.each(count, body)


@vector_function
def rectify(code: Code, a: Value, start: Value, count: Value) -> None:
    """(a, start, count): x ← max(x, 0); what is no number stays."""

    def body(at: Value) -> None:
        x = code.load(code.place(a, start, at))
        negative = code.builder.fcmp_ordered("<", x, ZEROS)
        code.store(code.builder.select(negative, ZEROS, x), code.place(a, start, at))

    code.each(count, body)


@vector_function
def rectify_back(code: Code, a: Value, y: Value, d: Value, count: Value) -> None:
    """(a, y, d, count): d ← 0 where y ≤ 0."""

    def body(at: Value) -> None:
        off = code.builder.fcmp_ordered("<=", code.load(code.place(a, y, at)), ZEROS)
        derivative = code.load(code.place(a, d, at))
        code.store(code.builder.select(off, ZEROS, derivative), code.place(a, d, at))

    code.each(count, body)


def _window(
    code: Code, x: Value, size: tuple[Value, Value], strides: tuple[Value, Value], body: Callable[..., None]
) -> None:
    """Do the body for each position of a window: its address and its number, as a vector."""
    b, (height, width) = code.builder, size
    with cgutils.for_range(b, height) as rows, cgutils.for_range(b, width) as columns:
        number = b.trunc(b.add(b.mul(rows.index, width), columns.index), INT)
        place = code.place(x, (strides[0], rows.index), (strides[1], columns.index))
        body(place, code.repeated(number, INTS))


@vector_function
def largest(
    code: Code,
    a: Value,
    x: Value,
    height: Value,
    width: Value,
    down: Value,
    right: Value,
    y: Value,
    where: Value,
    to: Value,
    count: Value,
) -> None:
    """(a, x, height, width, down, right, y, where, to, count): y ← the largest of a window, and its number.

    The first of equals; what is no number is larger than all.
    """
    b = code.builder

    def body(at: Value) -> None:
        top, best = code.variable(FLOATS, LOWEST), code.variable(INTS, ir.Constant(INTS, [0] * LANES))

        def look(place: Value, number: Value) -> None:
            value, before = code.load(place), b.load(top)
            larger = b.or_(b.fcmp_ordered(">", value, before), b.fcmp_unordered("uno", value, value))
            b.store(b.select(larger, value, before), top)
            b.store(b.select(larger, number, b.load(best)), best)

        _window(code, code.place(a, x, at), (height, width), (down, right), look)
        code.store(b.load(top), code.place(a, y, at))
        code.store(b.bitcast(b.load(best), FLOATS), code.place(where, to, at))

    code.each(count, body)


@vector_function
def largest_back(
    code: Code,
    a: Value,
    x: Value,
    height: Value,
    width: Value,
    down: Value,
    right: Value,
    d: Value,
    where: Value,
    to: Value,
    count: Value,
) -> None:
    """(a, x, height, width, down, right, d, where, to, count): add the derivatives d to those of the largest."""
    b = code.builder

    def body(at: Value) -> None:
        derivative = code.load(code.place(a, d, at))
        best = b.bitcast(code.load(code.place(where, to, at)), INTS)

        def add(place: Value, number: Value) -> None:
            share = b.select(b.icmp_signed("==", best, number), derivative, ZEROS)
            code.store(b.fadd(code.load(place), share), place)

        _window(code, code.place(a, x, at), (height, width), (down, right), add)

    code.each(count, body)
