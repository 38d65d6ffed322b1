"""Random programs: many threads that diverge at will must compute what each of them computes alone."""

from __future__ import annotations

import random

import numpy as np
import pytest
from ptx_lab import kernel, launch

from ptxc.device import device

VARIABLES = [f"%r{at}" for at in range(20, 28)]
"""The registers that programs compute with."""

OPERATIONS = ["add.u32", "sub.u32", "mul.lo.u32", "xor.b32", "and.b32", "or.b32", "max.u32", "min.s32"]


class Generator:
    """Makes structured programs: assignments, predicated ones, branches, loops with breaks, early exits, calls."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._labels = 0
        self._loops: list[tuple[str, str]] = []

    def program(self) -> str:
        """The body of a kernel that leaves a hash of its variables in ``%r28``."""
        start = [f"mad.lo.u32 {v}, %r0, {self._random.randrange(1, 99)}, {at};" for at, v in enumerate(VARIABLES)]
        lines = ["mov.u32 %r28, 1;", *start, *self._block(3), "STORE:"]
        lines += [f"mad.lo.u32 %r28, %r28, 31, {v};" for v in VARIABLES]
        return "\n".join(lines)

    def _label(self) -> str:
        self._labels += 1
        return f"L{self._labels}"

    def _value(self) -> str:
        return self._random.choice([*VARIABLES, str(self._random.randrange(9))])

    def _condition(self) -> str:
        comparison = self._random.choice(["eq", "ne", "lt", "ge"])
        mask = self._random.choice([1, 3, 7, 15])
        return f"and.b32 %r29, {self._random.choice(VARIABLES)}, {mask}; setp.{comparison}.u32 %p0, %r29, {mask // 2};"

    def _block(self, depth: int) -> list[str]:
        lines: list[str] = []
        for _ in range(self._random.randrange(1, 5)):
            lines += self._statement(depth)
        return lines

    def _statement(self, depth: int) -> list[str]:
        kinds = [self._assign, self._predicated]
        if depth:
            kinds += [self._branch, self._loop, self._switch]
        if self._loops:
            kinds.append(self._leave)
        return self._random.choice(kinds)(depth)

    def _assign(self, depth: int) -> list[str]:
        target, operation = self._random.choice(VARIABLES), self._random.choice(OPERATIONS)
        return [f"{operation} {target}, {self._random.choice(VARIABLES)}, {self._value()};"]

    def _predicated(self, depth: int) -> list[str]:
        sign = self._random.choice(["", "!"])
        return [self._condition(), *(f"@{sign}%p0 {line}" for line in self._assign(depth))]

    def _branch(self, depth: int) -> list[str]:
        other, join = self._label(), self._label()
        first, second = self._block(depth - 1), self._block(depth - 1)
        return [self._condition(), f"@%p0 bra {other};", *first, f"bra {join};", f"{other}:", *second, f"{join}:"]

    def _switch(self, depth: int) -> list[str]:
        labels = [self._label() for _ in range(4)]
        table, join = self._label(), labels[3]
        lines = [f"and.b32 %r29, {self._random.choice(VARIABLES)}, 3; min.u32 %r29, %r29, 2;"]
        lines += [f"{table}: .branchtargets {', '.join(labels[:3])};", f"brx.idx %r29, {table};"]
        for label in labels[:3]:
            lines += [f"{label}:", *self._block(depth - 1), f"bra {join};"]
        return [*lines, f"{join}:"]

    def _loop(self, depth: int) -> list[str]:
        head, done, counter = self._label(), self._label(), f"%r{40 + len(self._loops)}"
        trips = f"and.b32 {counter}, {self._random.choice(VARIABLES)}, {self._random.choice([1, 3, 7])};"
        self._loops.append((head, done))
        body = self._block(depth - 1)
        self._loops.pop()
        step = f"sub.u32 {counter}, {counter}, 1; bra {head};"
        return [trips, f"{head}:", f"setp.eq.u32 %p1, {counter}, 0; @%p1 bra {done};", *body, step, f"{done}:"]

    def _leave(self, depth: int) -> list[str]:
        target = self._random.choice([self._loops[-1][1], self._loops[0][1], "STORE"])
        return [self._condition(), f"@%p0 bra {target};"]


@pytest.mark.parametrize("seed", range(25))
def test_diverging_threads_compute_what_each_computes_alone(seed: int) -> None:
    body = Generator(seed).program()
    store = "mul.wide.u32 %d10, %r0, 4; add.u64 %d10, %d10, %d0; st.global.u32 [%d10], %r28;"
    together = np.zeros(192, np.uint32)
    result = launch(kernel(f"{body}\n{store}", ["u64 out"]), [together], 2, 96, sanitize={"memory", "init", "sync"})
    assert result.completed
    assert not result.findings, [str(f) for f in result.findings]
    alone = np.zeros(192, np.uint32)
    shift = f"ld.param.u64 %d1, [first]; cvt.u32.u64 %r0, %d1;\n{body}\n{store}"
    module = device("cpu").load(kernel(shift, ["u64 out", "u64 first"]))
    some = [0, 1, 5, 31, 32, 63, 95, 96, 150, 191]
    for thread in some:
        assert module.launch("k", [1], [1], [alone, thread]).completed
    assert alone[some].tolist() == together[some].tolist()
