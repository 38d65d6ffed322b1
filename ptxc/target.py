"""The GPUs that ptxc compiles for, and the PTX versions: what each has, and what an instruction may ask of them.

Sources: the PTX ISA's release notes and `.target` directive for the versions (tests check them against ptxas), and
CUDA's table of technical specifications per compute capability for the sizes of the hardware.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from ptxc.errors import TargetError, UsageError

KIB: Final = 1024


class PtxVersion(NamedTuple):
    """A version of the PTX ISA, as `.version` names it. Versions are ordered."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """The version that ``text`` (``7.8``) names; a UsageError when there is none."""
        for version in PTX_RELEASES:
            if text == str(version):
                return cls(*version)
        known = ", ".join(map(str, PTX_RELEASES))
        raise UsageError(f"no PTX version is called {text!r}", hint=f"the known versions are {known}")

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


#: Every PTX version that ptxc knows, oldest first, and the CUDA release whose ptxas is the first to read it.
PTX_RELEASES: Final[Mapping[PtxVersion, str]] = {
    PtxVersion(major, minor): release
    for major, releases in (
        (6, "9.0 9.1 9.2 10.0 10.1 10.2"),
        (7, "11.0 11.1 11.2 11.3 11.4 11.5 11.6 11.7 11.8"),
        (8, "12.0 12.1 12.2 12.3 12.4 12.5 12.7 12.8 12.9"),
        (9, "13.0 13.1 13.2 13.3 13.4 13.5"),
    )
    for minor, release in enumerate(releases.split())
}


class Requirement(NamedTuple):
    """What an instruction needs of the target and of the PTX version.

    ``sm`` is the first architecture that has it: all later ones have it too. An instruction that later architectures
    do *not* keep names in ``only`` the targets that introduce it, and ``sm`` says nothing: ``sm_90a`` stands for
    itself alone, ``sm_100f`` for the architecture and the later ones of its family.
    """

    sm: int = 0
    ptx: tuple[int, int] = (6, 0)
    only: tuple[str, ...] = ()

    def __str__(self) -> str:
        targets = " or ".join(self.only) if self.only else f"sm_{self.sm} or higher" if self.sm else ""
        return " and ".join(filter(None, (targets, f"PTX {PtxVersion(*self.ptx)}")))


@dataclass(frozen=True, slots=True)
class Target:
    """One value of `.target`. Sizes of memory are in bytes; a register has 32 bits."""

    name: str
    #: The architecture's number: 90 for sm_90 and sm_90a.
    sm: int
    #: ``a``: with the features of this architecture alone; ``f``: with those of its family; else empty.
    suffix: str
    #: The first PTX version that knows the target.
    ptx: PtxVersion
    max_warps_per_sm: int
    max_blocks_per_sm: int
    shared_per_sm: int
    #: The most shared memory that a block may ask for when it is launched, static and dynamic together.
    max_shared_dynamic: int
    #: The most shared memory that a kernel may declare with a size.
    max_shared_static: int = 48 * KIB
    max_threads_per_block: int = 1024
    registers_per_sm: int = 64 * KIB
    #: A warp's registers are allocated in multiples of this.
    register_unit: int = 256
    #: The parts of a multiprocessor among which warps are dealt, and the registers shared out.
    partitions: int = 4

    @property
    def compute_capability(self) -> tuple[int, int]:
        """The compute capability, (9, 0) for sm_90."""
        return divmod(self.sm, 10)

    @property
    def shared_reserved(self) -> int:
        """The bytes of shared memory that the system takes of every CTA's."""
        return KIB if self.sm >= 80 else 0

    @property
    def shared_unit(self) -> int:
        """A CTA's shared memory is allocated in multiples of so many bytes."""
        return 128 if self.sm >= 80 else 256

    def resident_ctas(self, threads: int, shared: int) -> int:
        """How many CTAs of so many threads and bytes of shared memory fit a multiprocessor beside each other.

        At least one, and not so many that a thread is left with fewer than 128 registers.
        """
        return max(1, min(self.ctas_with_shared(shared), self.fitting_ctas(threads, 128)))

    def fitting_ctas(self, threads: int, registers: int) -> int:
        """How many CTAs fit a multiprocessor if each of so many threads takes so many registers; at least one."""
        by_warps = self.max_warps_per_sm // -(-threads // 32)
        return max(1, min(self.ctas_with_registers(threads, registers), by_warps, self.max_blocks_per_sm))

    def ctas_with_shared(self, shared: int) -> int:
        """How many CTAs of so many bytes of shared memory there is memory for on a multiprocessor."""
        allocated = -(-(shared + self.shared_reserved) // self.shared_unit) * self.shared_unit
        return self.shared_per_sm // max(1, allocated)

    def ctas_with_registers(self, threads: int, registers: int) -> int:
        """How many CTAs of so many threads a multiprocessor has registers for, if each thread takes so many (1 at
        least).

        A warp's registers are those of one partition of the multiprocessor.
        """
        warps = -(-threads // 32)
        of_warp = -(-registers * 32 // self.register_unit) * self.register_unit
        if of_warp * -(-warps // self.partitions) * self.partitions > self.registers_per_sm:
            return 0  # the hardware refuses the launch
        return self.registers_per_sm // self.partitions // of_warp * self.partitions // warps

    def full_registers(self, threads: int) -> int:
        """The registers that each thread has where CTAs of so many threads fill a multiprocessor."""
        warps = -(-threads // 32)
        resident = min(self.max_warps_per_sm // warps, self.max_blocks_per_sm) * warps
        return self.registers_per_sm // (resident * self.register_unit) * (self.register_unit // 32)

    def has(self, requirement: Requirement) -> bool:
        """Whether the target, in a recent enough PTX version, has what ``requirement`` asks for."""
        if requirement.only:
            return any(self._has_specific(TARGETS[name]) for name in requirement.only)
        return self.sm >= requirement.sm

    def with_features(self, requirements: Callable[[], Sequence[Requirement]]) -> Target:
        """The target that a kernel with these requirements is printed for.

        It is this one, but for a kernel that needs what only ``sm_90a`` has on an ``sm_90``: that is printed for the
        target with the suffix, which runs on the same GPU (and on no later one). Without it where neither has all.
        """
        specific = TARGETS.get(f"{self.name}a")
        if specific is None:
            return self
        needs = requirements()
        return self if all(map(self.has, needs)) or not all(map(specific.has, needs)) else specific

    def _has_specific(self, other: Target) -> bool:
        """Whether the target has the features that the suffix of ``other`` stands for."""
        mine, theirs = _RENAMED.get(self.sm, self.sm), _RENAMED.get(other.sm, other.sm)
        if other.suffix == "a":
            return self.suffix == "a" and mine == theirs
        return self.suffix != "" and mine // 10 == theirs // 10 and mine >= theirs

    def __str__(self) -> str:
        return self.name


#: The architectures that PTX 9.0 renamed, by number: the old name stays valid for older versions of ptxas.
_RENAMED: Final = {101: 110}


def _rows() -> Iterable[Target]:
    table = (
        # sm, the PTX versions that introduced sm_N, sm_Na, sm_Nf,
        # warps an SM, blocks an SM, KiB of shared memory an SM, KiB of it a block
        (70, "6.0", None, None, 64, 32, 96, 96),
        (72, "6.1", None, None, 64, 32, 96, 96),
        (75, "6.3", None, None, 32, 16, 64, 64),
        (80, "7.0", None, None, 64, 32, 164, 163),
        (86, "7.1", None, None, 48, 16, 100, 99),
        (87, "7.4", None, None, 48, 16, 164, 163),
        (88, "9.0", None, None, 48, 16, 100, 99),
        (89, "7.8", None, None, 48, 24, 100, 99),
        (90, "7.8", "8.0", None, 64, 32, 228, 227),
        (100, "8.6", "8.6", "8.8", 64, 32, 228, 227),
        (101, "8.6", "8.6", "8.8", 48, 24, 228, 227),
        (103, "8.8", "8.8", "8.8", 64, 32, 228, 227),
        (107, "9.4", "9.4", "9.4", 32, 16, 228, 227),
        (110, "9.0", "9.0", "9.0", 48, 24, 228, 227),
        (120, "8.7", "8.7", "8.8", 48, 24, 100, 99),
        (121, "8.8", "8.8", "8.8", 48, 24, 100, 99),
    )
    for sm, plain, specific, family, warps, blocks, shared, dynamic in table:
        for suffix, ptx in (("", plain), ("a", specific), ("f", family)):
            if ptx:
                yield Target(
                    name=f"sm_{sm}{suffix}",
                    sm=sm,
                    suffix=suffix,
                    ptx=PtxVersion.parse(ptx),
                    max_warps_per_sm=warps,
                    max_blocks_per_sm=blocks,
                    shared_per_sm=shared * KIB,
                    max_shared_dynamic=dynamic * KIB,
                )


#: Every target by name, oldest architecture first.
TARGETS: Final[Mapping[str, Target]] = {target.name: target for target in _rows()}


def parse_target(text: str) -> Target:
    """The target called ``text``; a TargetError with the names that come near when there is none."""
    target = TARGETS.get(text)
    if target is not None:
        return target
    if old := re.fullmatch(r"(?:sm_?|compute_?)?([1-6])\.?(\d)", text.lower()):
        oldest = next(iter(TARGETS))
        hint = f"the known targets are {', '.join(TARGETS)}"
        raise TargetError(f"sm_{old[1]}{old[2]} is older than {oldest}, the oldest that ptxc compiles for", hint=hint)
    near = difflib.get_close_matches(text, TARGETS, n=3)
    if number := re.search(r"(\d+)\.?(\d*)([af]?)$", text.lower()):  # 80, 8.0, compute_80
        meant = f"sm_{''.join(number.groups())}"
        near = [meant] if meant in TARGETS else near
    question = f"did you mean {' or '.join(near)}? " if near else ""
    raise TargetError(f"no target is called {text!r}", hint=f"{question}the known targets are {', '.join(TARGETS)}")


def lowest_version(target: Target, requirements: Iterable[Requirement]) -> PtxVersion:
    """The lowest PTX version that knows ``target`` and has all that ``requirements`` ask for."""
    newest: tuple[int, int] = target.ptx
    for requirement in requirements:
        if not target.has(requirement):
            raise TargetError(f"the target {target} lacks an instruction that needs {requirement}")
        newest = max(newest, requirement.ptx)
    return PtxVersion(*newest)
