"""Statements in which threads combine their values: shuffles and trees.

Sources: ``WarpShuffle``, ``WarpBroadcast`` and ``TreeHalve`` of ``emmy.compiler.ir.kernel.ir``,
``render_merge_program`` of ``emmy.compiler.ir.stmt.base``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from emmy.compiler.ir.kernel.ir import TreeHalve, WarpBroadcast, WarpShuffle

from ptxc.reference.buffers import Array
from ptxc.reference.values import Value, element_type

if TYPE_CHECKING:
    from ptxc.reference.evaluator import Evaluator


def shuffle(e: Evaluator, stmt: WarpShuffle, path: str) -> None:
    """Combine a state over aligned groups of ``length`` lanes: a butterfly, or with ``prefix`` an inclusive scan."""
    type = element_type(stmt.dtype.name)
    lane = e.tid % 32
    distance = 1 if stmt.prefix else stmt.length // 2
    while 0 < distance < stmt.length:
        if stmt.prefix:
            reached = lane % stmt.length >= distance
            partner = np.where(reached, e.tid - distance, e.tid)
        else:
            reached, partner = np.ones(1, np.bool_), e.tid ^ distance
        others = [_of_thread(e, e.find(name), partner) for name in stmt.state]
        merged = merge(e, stmt.combine_states, stmt.state, stmt.state_b, others, type)
        with e.taking(reached):
            for name, value in zip(stmt.state, merged, strict=True):
                e.assign(name, value)
        distance = distance * 2 if stmt.prefix else distance // 2


def broadcast(e: Evaluator, stmt: WarpBroadcast, path: str) -> None:
    """The last lane's state in each aligned group of ``length`` lanes, to all of the group."""
    last = e.tid // stmt.length * stmt.length + stmt.length - 1
    for name in stmt.state:
        e.assign(name, _of_thread(e, e.find(name), last))


def _of_thread(e: Evaluator, value: Value, thread: Array) -> Value:
    """Another thread's value; a thread that the CTA does not have gives one's own."""
    thread = np.where(thread < e.threads, thread, e.tid)
    return Value(e.spread(value.array)[e.base + thread], value.type)


def merge(
    e: Evaluator, program: Iterable[Any], state: Sequence[str], state_b: Sequence[str], others: Sequence[Value],
    type: str,
) -> list[Value]:  # fmt: skip
    """The state after ``program``, which reads another one under the names ``state_b`` and computes in ``type``."""
    mine = {name: e.find(name) for name in state}
    with e.scope(**mine, **dict(zip(state_b, others, strict=True))):
        for step in program:
            args = [e.numbers.convert(e.find(name), type) for name in step.args]
            value = e.numbers.assign(step.op.name, args, type)
            e.declare(step.name, e.numbers.convert(value, mine[step.name].type) if step.name in mine else value)
        return [e.find(name) for name in state]


def tree(e: Evaluator, stmt: TreeHalve, path: str) -> None:
    """Combine ``length`` partial states in shared memory into the first, which every thread then reads.

    The upper half is folded onto the lower, until one is left. With ``inner`` the arrays are segments, folded slot by
    slot.
    """
    type = element_type(stmt.dtype.name)
    if stmt.tid_var == "warp" and stmt.inner is None and stmt.barrier_id == 0 and stmt.length <= 32:
        _tree_in_warp(e, stmt, path)
        return
    thread = e.numbers.as_index(e.find(stmt.tid_var))
    root = e.numbers.as_index(e.find(stmt.inner[0])) if stmt.inner is not None else np.zeros((), np.int64)
    scale = stmt.inner[1] if stmt.inner is not None else 1
    half = stmt.length // 2
    while half:
        with e.taking(thread < half):
            _fold(e, stmt, thread * scale + root, (thread + half) * scale + root, type)
        half //= 2
    for buffer, name in zip(stmt.bufs, stmt.state, strict=True):
        e.assign(name, e.memory.read(buffer, root))


def _tree_in_warp(e: Evaluator, stmt: TreeHalve, path: str) -> None:
    """The same by the first warp's registers: of the arrays only the first element changes."""
    lane = e.tid % 32
    states = {
        name: e.numbers.convert(e.memory.read(buffer, lane % stmt.length), element_type(stmt.dtype.name))
        for buffer, name in zip(stmt.bufs, stmt.state, strict=True)
    }
    with e.scope(**states):
        shuffle(e, WarpShuffle(stmt.state, stmt.state_b, stmt.combine_states, stmt.length, stmt.dtype), path)
        with e.taking(e.tid == 0):
            for buffer, name in zip(stmt.bufs, stmt.state, strict=True):
                e.memory.write(buffer, np.zeros((), np.int64), e.find(name))
    for buffer, name in zip(stmt.bufs, stmt.state, strict=True):
        e.assign(name, e.memory.read(buffer, np.zeros((), np.int64)))


def _fold(e: Evaluator, stmt: TreeHalve, low: Array, high: Array, type: str) -> None:
    """``bufs[low] = combine(bufs[low], bufs[high])``."""
    others = [e.numbers.convert(e.memory.read(buffer, high), type) for buffer in stmt.bufs]
    mine = [e.numbers.convert(e.memory.read(buffer, low), type) for buffer in stmt.bufs]
    with e.scope(**dict(zip(stmt.state, mine, strict=True))):
        merged = merge(e, stmt.combine_states, stmt.state, stmt.state_b, others, type)
    for buffer, value in zip(stmt.bufs, merged, strict=True):
        e.memory.write(buffer, low, value)
