"""The race check against its definition, on random programs: a race is two accesses that nothing orders.

Each step of a program is done by some threads of one CTA: they access one word of shared memory, or meet. The oracle
keeps for each thread the set of all accesses that are ordered before what it does next, and knows of nothing else.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from ptx_lab import kernel, launch

THREADS, WORDS = 64, 2
ACCESSES = {"ld": "ld.shared.u32 %r20, [%r10+{word}];", "st": "st.shared.u32 [%r10+{word}], %r1;",
            "red": "red.shared.add.u32 [%r10+{word}], 1;"}  # fmt: skip
MEETINGS = {
    "cta": "bar.sync 0;",
    "pair": "bar.sync 1, 64;",
    "warp": "bar.warp.sync {mask};",
    "shfl": "shfl.sync.idx.b32 %r21, %r1, 0, 31, {mask};",
}


@dataclass(frozen=True)
class Step:
    """What threads of a CTA do: ``kind`` is a key of ACCESSES or MEETINGS."""

    kind: str
    threads: frozenset[int]
    word: int = 0


def program(source: random.Random) -> list[Step]:
    """A random program. Few threads take part in most steps, so that many programs are free of races."""
    kinds = [*ACCESSES, "ld", "warp", "warp", "shfl"] + ["warp", "pair", "cta"] * source.randint(0, 1)
    words = source.randint(1, WORDS)
    return [step(source, source.choice(kinds), words) for _ in range(source.randint(3, 10))]


def step(source: random.Random, kind: str, words: int) -> Step:
    """What some threads do, mostly of the first warp."""
    warp = source.choice([0, 0, 0, 32])
    first, count = warp + source.randint(0, 3), 1
    if kind in {"cta", "pair"}:
        first, count = 0, THREADS
    elif kind in MEETINGS:
        first, count = source.choice([(first, 2), (first, 2), (first, 2), (first, 3), (warp, 32)])
    elif source.random() < 0.1:
        count = 2
    return Step(kind, frozenset(range(first, first + count)), source.randrange(words))


def text(steps: list[Step]) -> str:
    """The program as PTX: each step is guarded by a test of a mask of the CTA's threads."""
    lines = [".shared .align 4 .b8 words[64]; mov.u32 %r10, words; cvt.u64.u32 %d20, %r1; mov.u64 %d21, 1;",
             "and.b32 %r11, %r1, 63; shl.b64 %d21, %d21, %r11;"]  # fmt: skip
    for step in steps:
        mask = sum(1 << thread for thread in step.threads)
        lanes = (mask | mask >> 32) & 0xFFFFFFFF
        what = (ACCESSES | MEETINGS)[step.kind].format(word=4 * step.word, mask=lanes)
        lines.append(f"and.b64 %d22, %d21, {mask}; setp.ne.u64 %p0, %d22, 0; @!%p0 bra L{len(lines)};")
        lines.append(f"{what}\nL{len(lines) - 1}:")
    return "\n".join(lines)


def races(steps: list[Step]) -> bool:
    """Whether two accesses to one word, one of them a write and not both atomic, are unordered."""
    accesses: list[tuple[str, int, int]] = []
    reads_known: list[set[int]] = [set() for _ in range(THREADS)]
    writes_known: list[set[int]] = [set() for _ in range(THREADS)]
    found = False
    for step in steps:
        if step.kind in MEETINGS:
            for known in [reads_known] if step.kind == "shfl" else [reads_known, writes_known]:
                together = set().union(*(known[thread] for thread in step.threads))
                for thread in step.threads:
                    known[thread] = set(together)
            continue
        for thread in step.threads:
            for at, (kind, word, _) in enumerate(accesses):
                ordered = at in (reads_known if kind == "ld" else writes_known)[thread]
                conflict = word == step.word and {kind, step.kind} not in ({"ld"}, {"red"})
                found |= conflict and not ordered
        for thread in step.threads:
            accesses.append((step.kind, step.word, thread))
            reads_known[thread].add(len(accesses) - 1)
            writes_known[thread].add(len(accesses) - 1)
        if step.kind == "st" and len(step.threads) > 1:
            found = True
    return found


@pytest.mark.parametrize("seed", range(20))
def test_races_are_those_of_the_definition(seed: int) -> None:
    source = random.Random(seed)
    outcomes = set()
    for _ in range(25):
        steps = program(source)
        result = launch(kernel(text(steps), []), [], 1, THREADS, sanitize={"race"})
        assert result.completed
        expected = races(steps)
        outcomes.add(expected)
        found = [str(finding) for finding in result.findings]
        assert bool(found) == expected, "\n".join([*map(str, steps), *found])
    assert outcomes == {True, False}


def steps(*parts: tuple[str, int, int]) -> list[Step]:
    """Steps of one word, each by ``count`` threads from ``first`` on."""
    return [Step(kind, frozenset(range(first, first + count))) for kind, first, count in parts]


NAMED = {
    "atomic of the thread that wrote": (steps(("st", 3, 1), ("red", 3, 1), ("red", 2, 1)), True),
    "read that later ones do not know of": (steps(("ld", 0, 1), ("warp", 4, 2), ("ld", 1, 1), ("warp", 1, 2),
                                                  ("st", 2, 1)), True),
    "order through a third lane": (steps(("st", 0, 1), ("warp", 0, 2), ("warp", 1, 2), ("ld", 2, 1)), False),
    "atomics of a warp": (steps(("red", 0, 32), ("warp", 0, 32), ("ld", 1, 1)), False),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_races_that_were_taken_wrongly(name: str) -> None:
    done, expected = NAMED[name]
    assert races(done) == expected
    assert bool(launch(kernel(text(done), []), [], 1, THREADS, sanitize={"race"}).findings) == expected
