"""What a compilation is told, and what it gives: the words that the driver shares with all around it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ptxc.errors import UsageError
from ptxc.ir.kernel import Kernel
from ptxc.launch import Launch
from ptxc.target import PtxVersion

if TYPE_CHECKING:
    from ptxc.passes.pipeline import PassTime

#: Called with the rank and name of a pass, and the kernel after it.
Observer = Callable[[int, str, Kernel], None]


#: How options are given, for errors.
_EXAMPLES = {
    "target": "target='sm_90'", "ptx_version": "ptx_version='8.0'", "stop_after": "stop_after='cse'",
    "golden": "golden='golden.json'", "realization": "realization='matmul.square.512'",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Options:
    """What a compilation may be told. The command line's options of the same names."""

    target: str = "sm_89"
    #: ``"8.0"``; empty for the lowest that has what the kernel uses.
    ptx_version: str = ""
    #: ``precise``: CUDA's default arithmetic. ``fast``: ``nvcc --use_fast_math``.
    math: str = "precise"
    #: Whether multiplications and additions may be fused.
    fma: bool = True
    #: The optimisation level: 0 only has the passes that a kernel needs, 1 those that make it smaller too, 2 all.
    opt: int = 2
    #: Passes to leave out.
    disable: tuple[str, ...] = ()
    #: The pass after which to stop; then there is no PTX text.
    stop_after: str = ""
    #: Check the IR after each pass.
    verify_each: bool = False
    #: For a graph that is not Kernel IR yet: Emmy's knobs by name, which decide its schedule.
    pins: Mapping[str, str] = field(default_factory=dict)
    #: And a golden file of Emmy's, with the row in it whose recorded schedule to take.
    golden: str = ""
    realization: str = ""
    #: And whether its operations are lowered one by one, each to a kernel, where Emmy would fuse what it can.
    separate: bool = False
    #: Measure each step's CPU time. Reading that clock takes microseconds, which add up in a small kernel.
    time_passes: bool = False
    #: Keep the result, and take one that is kept (docs/cache.md). What watches the compilation never is.
    cache: bool = True

    def __post_init__(self) -> None:
        if self.math not in ("precise", "fast"):
            raise UsageError(f"there is no math mode {self.math!r}", hint="it is 'precise' or 'fast'")
        for name in ("target", "ptx_version", "stop_after", "golden", "realization"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise UsageError(f"{name} is a str, not {value!r}", hint=f"as in {_EXAMPLES[name]}")
        for name in ("fma", "verify_each", "separate", "time_passes", "cache"):
            check_flag(name, getattr(self, name))
        if type(self.opt) is not int or self.opt not in (0, 1, 2):
            raise UsageError(f"there is no optimisation level {self.opt!r}", hint="it is 0, 1 or 2")
        if not isinstance(self.pins, Mapping) or not all(isinstance(text, str) for text in self.pins):
            raise UsageError(f"pins is a mapping of names, not {self.pins!r}", hint="as in pins={'TILE': 'n16/u2x4'}")
        names = self.disable
        if isinstance(names, str) or not isinstance(names, Collection) or not all(isinstance(n, str) for n in names):
            raise UsageError(f"disable is a tuple of passes' names, not {names!r}", hint="as in disable=('cse',)")

    @property
    def has_schedule(self) -> bool:
        """Whether something is said of how a graph becomes kernels."""
        return bool(self.pins or self.golden or self.realization or self.separate)

    def is_watched(self, observe: Observer | None = None) -> bool:
        """Whether someone watches how the result is made, or times that, or wants no text but IR."""
        return observe is not None or self.verify_each or self.time_passes or bool(self.stop_after)

    def is_kept(self, observe: Observer | None = None) -> bool:
        """Whether the result may come from the store."""
        return self.cache and not self.is_watched(observe)


def check_flag(name: str, value: object) -> None:
    """Raise UsageError for an option's value that is neither True nor False: ``"no"`` would count as True."""
    if not isinstance(value, bool):
        raise UsageError(f"{name} is True or False, not {value!r}", hint=f"as in {name}=False")


def make_options(options: Mapping[str, Any]) -> Options:
    """The options of these names. Raises UsageError for one that there is not."""
    try:
        return Options(**options)
    except TypeError:
        unknown = sorted(set(options) - set(Options.__dataclass_fields__))
        raise UsageError(
            f"there is no option {unknown[0]!r}", hint=f"options are {', '.join(Options.__dataclass_fields__)}"
        ) from None


@dataclass(frozen=True, slots=True)
class Stats:
    """What is known of a compilation."""

    #: The steps' CPU times; empty unless :attr:`Options.time_passes` is set.
    passes: tuple[PassTime, ...]
    lines: int
    #: Registers of each bank, as the text declares them.
    registers: dict[str, int]


class Again:
    """Compiles a kernel once more for its IR, when that is first asked for."""

    __slots__ = ("_kernel", "_make")

    def __init__(self, make: Callable[[], CompiledKernel]) -> None:
        """With what compiles it."""
        self._make = make
        self._kernel: Kernel | None = None

    def kernel(self) -> Kernel:
        """The IR, the same each time."""
        if self._kernel is None:
            self._kernel = self._make().kernel
        return self._kernel


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """One compiled kernel. ``ptx`` is a whole module; empty where the pipeline was stopped before the end."""

    name: str
    ptx: str
    launch: Launch | None
    stats: Stats
    #: The kernel's IR where its compilation was watched, else what compiles it once more: see :attr:`kernel`.
    ir: Kernel | Again = field(repr=False, compare=False)
    version: PtxVersion
    #: What the text's ``.target`` says: the target asked for, with its suffix where the kernel needs that.
    target: str

    @property
    def kernel(self) -> Kernel:
        """The IR after the last pass. Few ask for it, so it is made when it is asked for."""
        return self.ir.kernel() if isinstance(self.ir, Again) else self.ir
