"""Buffers: where an element lies, and loads and stores of it.

An element's index is flattened row by row into one :class:`Linear` (Emmy's ``render_index``). The constant part of it
becomes the immediate offset of the memory operand, the rest registers: for global memory one 64-bit pointer for each
different sum, built up from what outer loops know, each part a product, which buffers share, and an addition; for
shared memory a 32-bit sum on the array's address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from emmy.compiler.dim import DYNAMIC_DIM_MAX
from emmy.compiler.ir.expr import Expr

from ptxc.errors import InputError, UnsupportedError
from ptxc.frontend import volta_slabs
from ptxc.frontend.buffers import Buffer, Shape
from ptxc.frontend.convert import convert
from ptxc.frontend.dtypes import BOOL_T, F16_T, F32_T, I32_T, ElementType, element_type, slab_type
from ptxc.frontend.expressions import Expressions
from ptxc.frontend.linear import INT_MAX, INT_MIN, Linear, constant
from ptxc.frontend.scope import Typed
from ptxc.frontend.signature import Paged, Signature
from ptxc.frontend.swizzles import CHUNK_SHIFT, shift_and_mask
from ptxc.ir import opcodes
from ptxc.ir.builder import Builder
from ptxc.ir.kernel import Guard
from ptxc.ir.types import B16, B32, B64, OF_MODIFIER
from ptxc.ir.values import Const, Mem, Operand, Sym, Value, integer

if TYPE_CHECKING:
    from emmy.compiler.ir.kernel.ir import Smem

#: The dynamic pool's name in the PTX text.
POOL = "_smem_pool"

#: Accesses of global memory add less than so many bytes to a register: their immediate has 24 bits, with a sign.
_NEAR = 1 << 23


class Memory:
    """The kernel's buffers, and access to them at the place where ``builder`` writes."""

    #: What `del` may take away where this is compiled.
    __deletable__ = ("expressions",)

    def __init__(self, builder: Builder, signature: Signature) -> None:
        self.builder = builder
        self.signature = signature
        self.expressions: Expressions  # set by the lowering: indices need expressions, and FlatIndex needs this
        self.pointers: dict[str, Value] = {}
        #: The generic addresses of tensor maps.
        self.tensor_maps: dict[str, Value] = {}
        self._types: dict[str, ElementType] = {}
        self._known_strides: dict[Shape, tuple[tuple[int, ...] | None, bool]] = {}
        #: Where paged writes start, by the name of the scalar that says so.
        self.starts: dict[str, Linear] = {}

    # --------------------------------------------------------------------------------------------------- types

    def type_of(self, name: str) -> ElementType:
        """The element type of a buffer or a shared array. Raises InputError for an unknown one."""
        type = self._types.get(name)
        if type is None:
            shared = self.signature.shared.get(name)
            type = slab_type(shared.dtype) if shared is not None else element_type(self.buffer(name).dtype)
            self._types[name] = type
        return type

    def buffer(self, name: str) -> Buffer:
        """A global buffer. Raises InputError where the kernel has none of that name."""
        buffer = self.signature.buffers.get(name)
        if buffer is None:
            raise InputError(
                f"{name!r} is neither a buffer of the kernel nor a shared array",
                hint="the node's inputs and outputs, and Smem statements, declare them",
            )
        return buffer

    # ------------------------------------------------------------------------------------------------- indices

    def flat_index(self, name: str, index: tuple[Expr, ...], shape: Shape | None = None) -> Linear:
        """The row-major element offset of ``name[index]``; ``shape`` overrides the declared one.

        One index alone is a flat offset already. Raises InputError when the indices are not as many as dimensions.
        """
        e = self.expressions
        if not index:
            return constant(0)
        if len(index) == 1:
            return e.put_together(e.subscript(index[0]))
        if shape is None:
            return e.recall((name, id(index)), lambda _, index: self._flat_index(name, index, None), index)
        return self._flat_index(name, index, shape)

    def _flat_index(self, name: str, index: tuple[Expr, ...], shape: Shape | None) -> Linear:
        """See :meth:`flat_index`; of more than one index."""
        integers = self.expressions
        shared = self.signature.shared.get(name)
        if shape is None:
            shape = shared.extents if shared is not None else self.buffer(name).shape
        if len(shape) != len(index):
            raise InputError(
                f"{name!r} has {len(shape)} dimensions but is indexed with {len(index)}",
                hint="an index has one entry a dimension",
            )
        entries = [integers.subscript(entry) for entry in index]
        weights, wide = self._strides(name, shape)
        if weights is not None:
            return integers.put_together(integers.registers.weighted(entries, weights, wide))
        return self._dynamic_index(entries, shape, wide)

    def _strides(self, name: str, shape: Shape) -> tuple[tuple[int, ...] | None, bool]:
        """The row-major strides of a shape, None where they depend on runtime integers; and whether the offsets
        need 64 bits."""
        known = self._known_strides.get(shape)
        if known is None:
            strides: list[int] | None = [1]
            for size in shape[:0:-1]:
                strides = [size * strides[0], *strides] if strides is not None and isinstance(size, int) else None
            wide = name not in self.signature.shared and _elements(shape) > INT_MAX
            known = self._known_strides[shape] = (None if strides is None else tuple(strides), wide)
        return known

    def _dynamic_index(self, entries: list[Linear], shape: Shape, wide: bool) -> Linear:
        """The offset in a buffer whose strides depend on runtime integers."""
        e = self.expressions
        total, stride = constant(0), constant(1)
        for size, entry in zip(shape[::-1], reversed(entries), strict=True):
            total = e.registers.add(total, e.multiply(entry.as_wide(wide or entry.wide), stride))
            extent = constant(size) if isinstance(size, int) else e.integer(size.expr)
            # A stride is an int for C however large the literals in it.
            stride = e.multiply(stride, extent).as_wide(False)
        return total

    def swizzled(self, mode: str, flat: Linear) -> Linear:
        """Where a swizzled slab keeps element ``flat``. Raises UnsupportedError for a mode that ptxc lacks."""
        if mode == "NONE":
            return flat
        if mode in volta_slabs.RUNS:
            raise InputError(f"a copy into a slab of the layout {mode!r}", hint="only a Write fills such a slab")
        shift, mask = shift_and_mask(mode)
        return self._exchanged(flat, shift, mask)

    def _exchanged(self, flat: Linear, shift: int, mask: int) -> Linear:
        """``flat ^ (((flat >> shift) & mask) << 3)``, so spelled that the parts of offsets in one slab are shared."""
        e = self.expressions
        # What lies above every bit that the XOR reads just adds, and so does what lies above those that it writes.
        field, chunks = 1 << (shift + mask.bit_length()), 1 << (CHUNK_SHIFT + mask.bit_length())
        above, low = e.registers.split(flat, field)
        if low.lo >= 0 and low.hi >= field:
            # The rest reaches further up, and only what lies above that is apart.
            field = 1 << low.hi.bit_length()
            above, low = e.registers.split(flat, field)
        if not 0 <= low.lo <= low.hi < field:
            above, low = constant(0), flat
        key = (shift, mask, low.constant, *low.terms.items())
        return e.registers.add(e.once(key, lambda: self._exchanged_low(low, shift, mask, chunks)), above, field)

    def _exchanged_low(self, low: Linear, shift: int, mask: int, chunks: int) -> Linear:
        """:meth:`_exchanged` of an offset that has nothing above the bits that the XOR reads."""
        e = self.expressions
        rows, chunk = self._parts(low, chunks) if shift >= CHUNK_SHIFT + mask.bit_length() else (constant(0), low)
        source = e.registers.scale(rows, chunks) if rows.terms or rows.constant else low
        lane = e.registers.make(chunk.terms, 0, chunk.wide)
        if 0 <= lane.lo <= lane.hi < chunk.constant & -chunk.constant:
            # The constant sets bits of its own: the lane's part is the same for all constants.
            key = ("^", shift, mask, source.constant, *source.terms.items(), lane.wide, *lane.terms.items())
            turned = e.once(key, lambda: e.bitwise("^", lane, self._turn(source, shift, mask)))
            moved = e.bitwise("^", turned, constant(chunk.constant))
        else:
            moved = e.bitwise("^", chunk, self._turn(source, shift, mask))
        return e.registers.add(moved, rows, chunks)

    def _turn(self, source: Linear, shift: int, mask: int) -> Linear:
        """``((source >> shift) & mask) << 3``."""
        e = self.expressions
        row = e.bitwise("&", e.bitwise(">>", source, constant(shift)), constant(mask))
        return e.registers.scale(row, 1 << CHUNK_SHIFT)

    def _parts(self, flat: Linear, divisor: int) -> tuple[Linear, Linear]:
        """``flat`` as ``divisor * a + b`` with ``0 <= b < divisor``; a is 0 where its terms do not allow that."""
        above, low = self.expressions.registers.split(flat, divisor)
        return (above, low) if 0 <= low.lo <= low.hi < divisor else (constant(0), flat)

    def align(self, name: str, flat: Linear, count: int) -> None:
        """Let ``count`` elements from ``flat`` on be one access. Raises InputError where they cannot be aligned."""
        nbytes = self.type_of(name).nbytes * count
        first = self.signature.pool.get(name, 0) // (nbytes // count) + flat.constant
        if first % count and all(coefficient % count == 0 for coefficient in flat.terms.values()):
            raise InputError(f"{count} elements of {name!r} at once are not aligned", hint=f"{nbytes} bytes must be")
        if name in self.signature.shared and not self.signature.pool:
            arrays = self.builder.kernel.shared
            for at, array in enumerate(arrays):
                if array.name == name and array.align < nbytes:
                    arrays[at] = array._replace(align=nbytes)

    # ----------------------------------------------------------------------------------------------- addresses

    def locate(self, name: str, index: tuple[Expr, ...], swizzle: str = "NONE", plus: int = 0, count: int = 1) -> Mem:
        """The memory operand of ``name[index]``, its last index raised by ``plus``, for an access of ``count``."""
        page = self.signature.paged.get(name)
        if page is not None and not page.whole:
            return self._paged(name, page, index, plus)
        if swizzle in volta_slabs.RUNS:
            flat = self._in_volta_slab(name, index, swizzle, plus)
            swizzle = "NONE"
        else:
            flat = self.flat_index(name, index)
            if plus:
                flat = self.expressions.registers.add(flat, constant(plus))
        if count > 1:
            self.align(name, flat, count)
        return self.address(name, self.swizzled(swizzle, flat))

    def _in_volta_slab(self, name: str, index: tuple[Expr, ...], mode: str, plus: int) -> Linear:
        """The offset of an element of a shared slab in one of Volta's layouts."""
        shared = self.signature.shared.get(name)
        if shared is None:
            raise InputError(f"{name!r} is no shared array", hint=f"only such have the layout {mode!r}")
        e = self.expressions
        entries = [e.subscript(entry) for entry in index]
        if entries:
            entries[-1] = e.registers.add(entries[-1], constant(plus))
        return volta_slabs.place(e, mode, entries, tuple(shared.extents))

    def address(self, name: str, flat: Linear) -> Mem:
        """The memory operand of the element at offset ``flat`` of a buffer or a shared array."""
        nbytes = self.type_of(name).nbytes
        shared = self.signature.shared.get(name)
        if shared is not None:
            return self._shared(shared, flat, nbytes)
        self.buffer(name)
        return self.global_address(self.pointers[name], flat, nbytes)

    def _shared(self, array: Smem, flat: Linear, nbytes: int) -> Mem:
        pool = self.signature.pool
        name = POOL if pool else array.name
        offset = pool.get(array.name, 0) + flat.constant * nbytes
        if not INT_MIN <= offset <= INT_MAX:
            raise InputError(f"element {flat.constant} of the shared array {array.name!r}", hint="it is far outside")
        if not flat.terms:
            return Mem(Sym(name), offset)
        e = self.expressions
        key = ("shared", name, nbytes, *flat.terms.items())
        register = e.once(key, lambda: self._start(Sym(name), flat.terms, nbytes))
        if register is not None:
            return Mem(register, offset)
        # A register below the array's start may wrap around 2^32: then the constant goes into the register.
        inside = flat.constant * nbytes
        return Mem(self._slot(Sym(name), flat.terms, inside, nbytes), offset - inside)

    def _start(self, symbol: Sym, terms: dict[Value, int], nbytes: int) -> Value | None:
        """The address of what lies ``terms`` elements after a shared array's start, None where that may be negative."""
        natural = self.expressions.registers.make(terms, 0, True).lo >= 0
        return self._slot(symbol, terms, 0, nbytes) if natural else None

    def _slot(self, symbol: Sym, terms: dict[Value, int], inside: int, nbytes: int) -> Value:
        """The address of what lies ``terms`` elements and ``inside`` bytes after a shared array's start."""
        e = self.expressions
        base = e.memoised(("address", symbol), lambda: self.builder.unary(opcodes.MOV, "u32", symbol, symbol.name))
        e.note(base, 0, INT_MAX, depth=0)
        sum_ = {base: 1, **{value: coefficient * nbytes for value, coefficient in terms.items()}}
        register = e.register(e.registers.make(sum_, inside, False), 32)
        assert isinstance(register, Value)
        return register

    def global_address(self, pointer: Value, flat: Linear, nbytes: int) -> Mem:
        """The memory operand of what lies ``flat`` elements of ``nbytes`` after ``pointer``, a global address."""
        natural = flat.constant >= 0
        offset = flat.constant * nbytes
        far = 0
        if not -_NEAR <= offset < _NEAR and self._varies(flat.terms):
            # Accesses that differ by a constant share a pointer, however far they are apart.
            stream = ("far", pointer, nbytes, *flat.terms.items())
            far = self.expressions.once(stream, lambda: offset - offset % _NEAR)
        if flat.terms:
            key = ("global", pointer, nbytes, flat.wide, natural, far, *flat.terms.items())
            start = pointer
            pointer = self.expressions.once(
                key, lambda: self._moved(start, flat.terms, flat.wide, natural, nbytes, far)
            )
            offset -= far
        if not INT_MIN <= offset <= INT_MAX:
            pointer = self._moved_far(pointer, offset)
            offset = 0
        return Mem(pointer, offset)

    def _varies(self, terms: dict[Value, int]) -> bool:
        """Whether a sum changes in a loop."""
        return any([self.expressions.registers.depth(value) for value in terms])

    def _moved_far(self, pointer: Value, offset: int) -> Value:
        """``pointer`` moved by as many bytes."""
        far = integer(B64, offset)
        return self.expressions.memoised(
            ("+", pointer, far), lambda: self.builder.binary(opcodes.ADD, "s64", pointer, far, "addr")
        )

    def _moved(
        self, pointer: Value, terms: dict[Value, int], wide: bool, natural: bool, nbytes: int, far: int
    ) -> Value:
        """``pointer`` moved by ``terms`` elements and ``far`` bytes: what outer loops know of them first.

        ``natural``: whether the constant that is added to them is not negative.
        """
        e = self.expressions
        groups: dict[int, dict[Value, int]] = {}
        for value, coefficient in e.registers.ordered(terms):
            groups.setdefault(e.registers.depth(value), {})[value] = coefficient
            natural = natural and coefficient > 0 and e.registers.atom(value).lo >= 0
        innermost = max(groups)
        for depth, part in groups.items():
            if far and depth == innermost:
                pointer = self._moved_far(pointer, far)
            # Part of a sum of non-negative terms cannot leave the range that the whole stays in. It can where the
            # whole is less than the sum of its terms.
            pointer = self._advance(pointer, e.registers.make(part, 0, wide or not natural), nbytes)
        return pointer

    def _advance(self, pointer: Value, by: Linear, nbytes: int) -> Value:
        """``pointer`` moved by as many elements."""
        e = self.expressions
        bits, stride = e.bits(by), nbytes
        value, coefficient = next(iter(by.terms.items()))
        index: Operand = value
        if len(by.terms) == 1 and value.type is B32 and abs(coefficient * nbytes) <= INT_MAX:
            # The product of 64 bits is exact, whatever the range.
            bits, stride = 32, coefficient * nbytes
        else:
            index = e.register(by, bits)
        bank, mods = (B64, ("lo", "s64")) if bits == 64 else (B32, ("wide", "s32"))

        def offset() -> Value:
            if bits == 32 and stride == 1:
                return self.builder.cvt("s64.s32", index, "offset")
            return self.builder.emit(opcodes.MUL, mods, B64, (index, integer(bank, stride)), "offset")

        # Not one mad: other buffers share the product, and ptxas makes better code of the two.
        moved = e.memoised(("offset", index, stride), offset)
        return e.memoised(
            ("+", pointer, moved), lambda: self.builder.binary(opcodes.ADD, "s64", pointer, moved, "addr")
        )

    def _paged(self, name: str, page: Paged, index: tuple[Expr, ...], plus: int) -> Mem:
        """An element of a paged buffer: its page's base from the table, then its place in the page."""
        e = self.expressions
        shape = self.buffer(name).shape
        if len(index) != len(shape):
            what = f"the paged buffer {name!r} has {len(shape)} dimensions but {len(index)} indices"
            raise InputError(what, hint="an index has one entry a dimension")
        entries = [e.subscript(entry) for entry in index]
        entries[-1] = e.registers.add(entries[-1], constant(plus))
        position = entries[page.axis]
        if page.start is not None:
            position = e.registers.add(self.starts[page.start], position)
        size = constant(page.page)
        entries[page.axis] = e.modulo(position, size)
        table = self.global_address(self.pointers[name], e.divide(position, size), 8)
        base = e.memoised(("page", table), lambda: self._load_pointer(table))
        shape = (*shape[: page.axis], page.page, *shape[page.axis + 1 :])
        offset = self._dynamic_index(entries, shape, _elements(shape) > INT_MAX)
        return self.global_address(base, offset, self.type_of(name).nbytes)

    def _load_pointer(self, mem: Mem) -> Value:
        generic = self.builder.emit(opcodes.LD, ("global", "u64"), B64, (mem,), "page")
        return self.builder.emit(opcodes.CVTA, ("to", "global", "u64"), B64, (generic,), "page")

    # ------------------------------------------------------------------------------------------ loads and stores

    def space(self, name: str) -> tuple[str, ...]:
        """The state space of a buffer as modifiers; what the kernel never writes is read non-coherently."""
        if name in self.signature.shared:
            return ("shared",)
        return ("global",) if self.buffer(name).written else ("global", "nc")

    def store_space(self, name: str) -> str:
        """The state space of a buffer that is written. Raises InputError for one that the kernel only reads."""
        space, *read_only = self.space(name)
        if read_only:
            raise InputError(
                f"{name!r} is written but is no output of the kernel",
                hint="what a kernel writes must be among its node's outputs: loads of the rest may be reordered",
            )
        return space

    def load(self, name: str, mem: Mem, hint: str, guard: Guard | None = None) -> Typed:
        """One element, in the buffer's own type; 0 where ``guard`` does not hold."""
        type = self.type_of(name)
        b = self.builder
        kind = "b16" if type.nbytes == 2 else type.memory
        value = b.emit(opcodes.LD, (*self.space(name), kind), OF_MODIFIER[kind], (mem,), hint, guard)
        if type is BOOL_T:
            return Typed(b.setp("ne.s32", value, integer(B32, 0), hint), BOOL_T)
        if type.nbytes == 2 and type.is_integer:
            value = b.cvt("s32.s16" if type.signed else "u32.u16", value, hint)
        return Typed(value, type)

    def load_vector(
        self, name: str, mem: Mem, type: ElementType, count: int, hint: str, *, ahead: bool = False
    ) -> list[Value]:
        """``count`` consecutive elements as the registers of one access: f32 each, or two f16 in each b32.

        What an iteration loads ``ahead``, for the next, is loaded coherently: a non-coherent load the assembler would
        move from behind a barrier to where the registers still hold what the one before has loaded, and copy that.
        """
        kind, words = ("f32", count) if type is F32_T else ("b32", count // 2)
        results = self.builder.kernel.values(OF_MODIFIER[kind], hint, words)
        space = self.space(name)
        mods = (*(space[:1] if ahead else space), *((f"v{words}",) if words > 1 else ()), kind)
        self.builder.multi(opcodes.LD, mods, results, (mem,))
        return list(results)

    def unpack(self, words: list[Operand], type: ElementType, hints: tuple[str, ...]) -> list[Typed]:
        """The elements in the registers of a vector access."""
        if type is F32_T:
            return [Typed(word, F32_T) for word in words]
        elements = []
        for at, word in enumerate(words):
            halves = tuple(self.builder.kernel.value(B16, hint) for hint in hints[2 * at : 2 * at + 2])
            self.builder.multi(opcodes.UNPACK, ("b32",), halves, (word,))
            elements += [Typed(half, F16_T) for half in halves]
        return elements

    def store(self, name: str, mem: Mem, value: Typed, guard: Guard | None = None) -> None:
        """Store one element, converted to the buffer's type, where ``guard`` holds."""
        type = self.type_of(name)
        operand = self._stored(convert(self.builder, value, type))
        kind = "b16" if type.nbytes == 2 else type.memory
        self.builder.effect(opcodes.ST, (self.store_space(name), kind), (mem, operand), guard=guard)

    def _stored(self, value: Typed) -> Operand:
        """The register that a store of ``value`` takes."""
        if value.type is BOOL_T:
            return convert(self.builder, value, I32_T).operand
        if value.type.nbytes == 2 and value.type.is_integer:
            if isinstance(value.operand, Const):
                return integer(B16, value.operand.bits)
            return self.builder.cvt("u16.u32", value.operand)
        return value.operand

    def store_vector(self, name: str, mem: Mem, values: list[Typed]) -> None:
        """Store consecutive elements (f32, or an even number of f16) in one access."""
        words = [value.operand for value in values]
        kind = "f32"
        if values[0].type is F16_T:
            kind = "b32"
            b = self.builder
            words = [b.emit(opcodes.PACK, ("b32",), B32, tuple(words[at : at + 2])) for at in range(0, len(words), 2)]
        mods = (self.store_space(name), *((f"v{len(words)}",) if len(words) > 1 else ()), kind)
        self.builder.effect(opcodes.ST, mods, (mem, *words))

    def store_atomic(self, name: str, mem: Mem, value: Typed, guard: Guard | None = None) -> None:
        """Add ``value`` to one element, atomically, where ``guard`` holds.

        Raises UnsupportedError for types that the hardware cannot add.
        """
        type = self.type_of(name)
        kind = _ATOMIC_ADD.get(type.name)
        if kind is None:
            raise UnsupportedError(
                f"there is no atomic addition of {type.name}", hint=f"atomics add {', '.join(_ATOMIC_ADD)}"
            )
        operand = convert(self.builder, value, type).operand
        self.builder.effect(opcodes.RED, (self.store_space(name), "add", *kind), (mem, operand), guard=guard)


#: How atomic additions are spelled; the hardware adds these types only.
_ATOMIC_ADD: dict[str, tuple[str, ...]] = {
    "f32": ("f32",), "f64": ("f64",), "f16": ("noftz", "f16"), "bf16": ("noftz", "bf16"),
    "i32": ("s32",), "u32": ("u32",), "i64": ("u64",), "u64": ("u64",),
}  # fmt: skip


def vector_width(type: ElementType, count: int) -> bool:
    """Whether ``count`` elements are one access in Emmy's CUDA."""
    return count in (2, 4) if type is F32_T else count in (2, 4, 8) if type is F16_T else False


def _elements(shape: Shape) -> int:
    """How many elements a buffer can have; a symbolic size counts as the largest that Emmy admits."""
    count = 1
    for size in shape:
        count *= size if isinstance(size, int) else DYNAMIC_DIM_MAX
    return count
