"""Drops what nobody needs.

An instruction is needed if it has an effect, ends a block, or defines a value that something needed uses; a block
parameter is needed if something uses it, and then so is what is passed for it. Loads are not effects, nor are shuffles
and the products of tensor cores, which all threads then do without. Ignored results of ``atom`` make it ``red``.
"""

from __future__ import annotations

from ptxc.ir import cfg, opcodes
from ptxc.ir.kernel import Edge, Instr, Kernel
from ptxc.ir.slices import backward_slice, slice_block
from ptxc.ir.values import Operand

#: What is needed for its effect.
_EFFECTS = frozenset(op for op in opcodes.OPCODES.values() if op.effect in ("WRITE", "SYNC", "END"))


def run(kernel: Kernel) -> None:
    """Drop instructions and block parameters that nothing needs."""
    needed, kept = backward_slice(cfg.reverse_postorder(kernel), _EFFECTS)
    for block in kernel.blocks:
        # What cannot be reached makes nothing else needed.
        block.instrs = kept[block] if block in kept else slice_block(block, {*needed}, _EFFECTS)
        _drop_arguments(block.instrs[-1], needed)
    for block in kernel.blocks:
        block.params = [value for value in block.params if value in needed]
        for instr in block.instrs:
            if (
                instr.op is opcodes.ATOM
                and instr.results[0] not in needed
                and opcodes.RED.modifiers.issuperset(instr.mods)
            ):
                instr.op, instr.results = opcodes.RED, ()


def _drop_arguments(terminator: Instr, needed: set[Operand]) -> None:
    if any(edge.args for edge in terminator.targets):
        terminator.targets = tuple(
            Edge(block, tuple([arg for arg, value in zip(args, block.params, strict=True) if value in needed]))
            for block, args in terminator.targets
        )
