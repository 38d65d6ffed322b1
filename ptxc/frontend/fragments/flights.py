"""Which registers of fragments a ``wgmma`` holds where the lowering is: see :mod:`ptxc.ir.flight`."""

from __future__ import annotations

from ptxc.errors import InputError
from ptxc.frontend.fragments.registers import stem
from ptxc.frontend.scope import Names, Typed
from ptxc.ir import opcodes
from ptxc.ir.builder import Builder
from ptxc.ir.kernel import Instr
from ptxc.ir.types import B32
from ptxc.ir.values import Operand, Value, integer

State = dict[str, bool]


class Flights:
    """The registers in flight by name; True for those that are, False for those that may be.

    Which groups of products a wait for all but the newest ends is not followed: what it gives may be in flight.
    """

    def __init__(self, builder: Builder, names: Names) -> None:
        self._builder = builder
        self._names = names
        self.state: State = {}
        #: The last ``wgmma.fence``: what else it is to hold is added where a product needs it.
        self._fence: Instr | None = None

    # ---------------------------------------------------------------------------------------------- control flow

    def begin_loop(self, names: list[str]) -> None:
        """A loop's body begins, which assigns ``names``: a product may hold them from the round before."""
        for name in names:
            self.state.setdefault(name, False)

    def join(self, other: State) -> None:
        """Control comes from a place where ``other`` was the state, too."""
        for name, certain in other.items():
            self.state[name] = self.state.get(name, False) or certain

    # -------------------------------------------------------------------------------------------------- products

    def fence(self) -> None:
        """What happened to registers so far comes before the products that follow."""
        builder = self._builder
        self._fence = Instr(opcodes.WGMMA_FENCE, ("sync", "aligned"), loc=builder.loc)
        builder.block.instrs.append(self._fence)

    def take(self, names: list[str]) -> list[Value]:
        """The registers ``names`` as a product takes them: out of a product before it, or of the fence."""
        fresh = [name for name in names if not self.state.get(name)]
        if fresh and not self._fenced(fresh):
            self.fence()
            self._fenced(fresh)
        taken = [self._names.typed(name).operand for name in names]
        return [operand for operand in taken if isinstance(operand, Value)]

    def _fenced(self, names: list[str]) -> bool:
        """Let the last fence hold ``names``; False where it is in another block or they are written behind it."""
        fence, kernel, known = self._fence, self._builder.kernel, self._names
        instrs = self._builder.block.instrs
        at = next((at for at in reversed(range(len(instrs))) if instrs[at] is fence), None)
        if fence is None or at is None:
            return False
        entries = [known.typed(name) for name in names]
        behind = {result for instr in instrs[at:] for result in instr.results}
        if not behind.isdisjoint([entry.operand for entry in entries]):
            return False
        movs: list[Instr] = []
        given: list[Value] = []
        held: list[Value] = []
        for name, entry in zip(names, entries, strict=True):
            operand, type = entry.operand, entry.type
            if not isinstance(operand, Value):
                register = kernel.value(type.bank, stem(name))
                movs.append(Instr(opcodes.MOV, (type.bank.name,), (register,), (operand,), loc=fence.loc))
                operand = register
            value = kernel.value(type.bank, operand.hint)
            given.append(operand)
            held.append(value)
            known.assign(name, Typed(value, type))
            self.state[name] = True
        fence.operands, fence.results = (*fence.operands, *given), (*fence.results, *held)
        instrs[at:at] = movs
        return True

    def give(self, names: list[str], values: list[Value]) -> None:
        """A product holds ``names`` from here on, as ``values``."""
        known = self._names
        for name, value in zip(names, values, strict=True):
            known.assign(name, Typed(value, known.typed(name).type))

    def wait(self, pending: int) -> None:
        """Wait until at most ``pending`` groups are in flight."""
        builder, known = self._builder, self._names
        held: list[tuple[str, Typed, Value]] = []
        for name in self.state:
            entry = known.find(name)
            if not isinstance(entry, Typed):
                what = f"the fragment register {name!r} is out of scope while wgmma may hold it"
                raise InputError(what, hint="wait for the product in the scope of its fragments")
            if isinstance(entry.operand, Value):  # no product holds a constant
                held.append((name, entry, entry.operand))
        results = tuple([builder.kernel.value(value.type, value.hint) for _, _, value in held])
        operands: tuple[Operand, ...] = (*(value for _, _, value in held), integer(B32, pending))
        builder.multi(opcodes.WGMMA_WAIT, ("sync", "aligned"), results, operands)
        for (name, entry, _), result in zip(held, results, strict=True):
            known.assign(name, Typed(result, entry.type))
        self.state = dict.fromkeys(self.state, False) if pending else {}
