"""What the CPU device has to say about a kernel: findings, and where they are collected."""

from __future__ import annotations

from dataclasses import dataclass, field

CHECKS = frozenset({"memory", "race", "init", "sync"})
"""The checks that a launch may ask for."""

THREADS_NAMED = 8
"""How many threads a finding names."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of a kernel, seen while it ran.

    ``check`` is memory, race, init, sync, trap (the kernel gave up) or limit (it ran too long). ``line`` is the line
    of the PTX text, 0 where there is none; ``instruction`` its opcode. ``cta`` and ``threads`` (linear ids in the
    CTA, the first few) are where it was seen first; ``address`` is in ``space``. ``count`` is how many threads met
    it, all told.
    """

    check: str
    message: str
    line: int = 0
    instruction: str = ""
    cta: tuple[int, int, int] = (0, 0, 0)
    threads: tuple[int, ...] = ()
    address: int | None = None
    space: str = ""
    count: int = 1

    def __str__(self) -> str:
        """One line with everything that is known."""
        place = f"PTX line {self.line}: {self.instruction}: " if self.line else ""
        threads = ", ".join(map(str, self.threads))
        where = f" [CTA {self.cta}" + (f", threads {threads}" if threads else "") + "]"
        address = "" if self.address is None else f" at {self.space} {self.address:#x}"
        times = f" (seen by {self.count} threads)" if self.count > len(self.threads) else ""
        return f"{self.check}: {place}{self.message}{address}{where}{times}"


def missing(arrivals: int, nbytes: int) -> str:
    """What keeps a phase of an mbarrier from completing: arrivals to come, and bytes to come or too many."""
    if nbytes >= 0:
        return f"lacks {arrivals} arrivals and {nbytes} bytes"
    return f"{f'lacks {arrivals} arrivals and ' if arrivals else ''}has got {-nbytes} bytes too many"


@dataclass(slots=True)
class Findings:
    """The findings of one launch: one for each fault of each line, however many threads meet it."""

    found: dict[tuple[str, int, str], Finding] = field(default_factory=dict)

    def add(self, finding: Finding, kind: str) -> None:
        """Note ``finding``; the same ``kind`` at the same line again only counts up."""
        key = (finding.check, finding.line, kind)
        known = self.found.get(key)
        if known is None:
            self.found[key] = finding
            return
        self.found[key] = Finding(
            known.check, known.message, known.line, known.instruction, known.cta, known.threads, known.address,
            known.space, known.count + finding.count,
        )  # fmt: skip

    def list(self) -> list[Finding]:
        """All findings, in the order in which they were first seen."""
        return list(self.found.values())
