"""Spares registers: how many CTAs shall fit a multiprocessor, and which loads keep their order.

Where threads fill a multiprocessor of 64 warps, each has 32 registers. The assembler tends to spill a word or two
rather than leave room for fewer threads; then the kernel asks for fewer CTAs (``ctas``). Asked for no more CTAs than
shared memory has room for, the assembler does not spill, but takes more registers than it needs. So a kernel in which
few are live asks for more CTAs, as many as fit with some registers to spare, or not at all where one CTA fits. Where
tensor cores multiply what went through registers on its way to shared memory, as on a V100, the assembler takes up to
half more than it needs and room for a CTA goes: such a kernel asks for as many as fit with what is live.

Behind products with many accumulators, what is read non-coherently becomes an ordinary load. The assembler would move
the loads in front of all stores, and have what they load in registers beside the accumulators::

      mma.sync ...                            mma.sync ...
      %s = ld.global.nc.f32 [%scale]    ->    %s = ld.global.f32 [%scale]
"""

from __future__ import annotations

from itertools import chain

from ptxc.ir import cfg, opcodes
from ptxc.ir.kernel import Instr, Kernel
from ptxc.ir.peaks import peaks
from ptxc.target import parse_target

#: How many live words the assembler squeezes into 32 registers by spilling (measured over the benchmark kernels).
_TIGHT = range(31, 37)

#: How many registers beyond the live words a kernel of few is left at least, so that the assembler does not spill.
_MORE = 24

#: From how many live words on the assembler may spill in a kernel that asks for no number of CTAs (measured likewise).
_MANY = 57

#: How many live words the assembler squeezes into 128 registers where tensor cores multiply, and what share of more it
#: finds room for (measured over the products of Emmy's corpus for a V100: none spills).
_SQUEEZED = range(113, 160)
_SHARE = 0.93

#: From how many registers of accumulators on what follows the products is loaded in its order (measured likewise: of
#: those with fewer, some take more registers for it).
_ACCUMULATORS = 128


def run(kernel: Kernel) -> None:
    """Decide on the order of loads, and on the number of CTAs."""
    _keep_order(kernel)
    if not kernel.ctas and not kernel.shared:
        target = parse_target(kernel.target)
        if target.full_registers(kernel.threads) == 32 and _live_words(kernel) in _TIGHT:
            kernel.ctas = target.fitting_ctas(kernel.threads, 40)
    elif not kernel.ctas and _multiplies_staged(kernel):
        kernel.ctas = _fitting(kernel)
    elif kernel.ctas and not _moves_registers(kernel):
        live = _live_words(kernel)
        if live < _MANY:
            enough = parse_target(kernel.target).fitting_ctas(kernel.threads, live + _MORE)
            kernel.ctas = max(kernel.ctas, enough) if kernel.ctas > 1 else 0


def loads_in_time(kernel: Kernel) -> bool:
    """Whether tensor cores multiply, and no loop loads (``ldmatrix``) what its next iteration multiplies.

    The assembler finds registers for such kernels by itself, loading as late as it has to: with a number of CTAs in
    front of it, it spills to keep to that, or takes all registers that it leaves. What one iteration loads for the next
    it cannot load later.
    """
    instrs = [instr for block in kernel.blocks for instr in block.instrs]
    products = [instr for instr in instrs if instr.op in opcodes.PRODUCTS]
    if not products:
        return False
    multiplied = set().union(*[instr.operands for instr in products])
    loaded = {result for instr in instrs if instr.op is opcodes.LDMATRIX for result in instr.results}
    place = {block: at for at, block in enumerate(kernel.blocks)}
    back = [
        edge for at, block in enumerate(kernel.blocks) for edge in block.instrs[-1].targets if place[edge.block] <= at
    ]
    passed = [pair for edge in back for pair in zip(edge.block.params, edge.args, strict=True)]
    return not any([parameter in multiplied and value in loaded for parameter, value in passed])


def _keep_order(kernel: Kernel) -> None:
    """Load coherently behind all products, if many accumulators are read there."""
    instrs = [instr for block in kernel.blocks for instr in block.instrs]
    if opcodes.PRODUCTS.isdisjoint([instr.op for instr in instrs]):
        return
    behind = _behind_products(kernel)
    loads = [instr for instr in behind if instr.op is opcodes.LD and "nc" in instr.mods]
    if not loads:
        return
    results = set().union(*[instr.results for instr in instrs if instr.op in opcodes.PRODUCTS])
    if len(results.intersection(chain.from_iterable([instr.operands for instr in behind]))) >= _ACCUMULATORS:
        for load in loads:
            load.mods = tuple([mod for mod in load.mods if mod != "nc"])


def _behind_products(kernel: Kernel) -> list[Instr]:
    """The instructions after which no product comes, whichever way control goes."""
    before = cfg.predecessors(kernel)
    pending = [block for block in kernel.blocks if any([instr.op in opcodes.PRODUCTS for instr in block.instrs])]
    multiplying, leading = set(pending), set()
    for block in pending:
        for other in before[block]:
            if other not in leading:
                leading.add(other)
                pending.append(other)
    found: list[Instr] = []
    for block in kernel.blocks:
        if block not in leading:
            last = len(block.instrs) if block in multiplying else 0
            while last and block.instrs[last - 1].op not in opcodes.PRODUCTS:
                last -= 1
            found += block.instrs[last:]
    return found


def _multiplies_staged(kernel: Kernel) -> bool:
    """Whether tensor cores multiply what went through registers to shared memory: before sm_80 nothing else can."""
    early = bool(kernel.shared) and parse_target(kernel.target).sm < 80
    return early and any([instr.op is opcodes.MMA for block in kernel.blocks for instr in block.instrs])


def _fitting(kernel: Kernel) -> int:
    """How many CTAs fit with the registers that the assembler can do with; 0 for one, or if memory has no room."""
    live = _live_words(kernel)
    registers = 128 if live in _SQUEEZED else live + 4 if live < _SQUEEZED.start else int(live * _SHARE)
    target, shared = parse_target(kernel.target), sum([array.size for array in kernel.shared])
    wanted = target.fitting_ctas(kernel.threads, registers)
    ctas = min(wanted, target.ctas_with_shared(shared))
    # With more than 128 left for it, the assembler takes more than if it is not told.
    tight = ctas == wanted or target.registers_per_sm // (max(ctas, 1) * kernel.threads) <= 128
    return ctas if ctas > 1 and tight else 0


def _live_words(kernel: Kernel) -> int:
    """The most 32-bit registers of each bank that are live at once."""
    return sum([peak * bank.words for bank, peak in peaks(kernel).items()])


def _moves_registers(kernel: Kernel) -> bool:
    """Whether warps hand registers to one another, for which the assembler has to know how many each begins with."""
    return any([instr.op is opcodes.SETMAXNREG for block in kernel.blocks for instr in block.instrs])
