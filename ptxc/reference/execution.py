"""Steps on a device: one launch after the other, on the same arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ptxc.device.cuda import CudaDevice, Timing
from ptxc.device.cuda import Module as CudaModule
from ptxc.errors import UsageError
from ptxc.reference.buffers import Array, extents
from ptxc.reference.placement import Placement
from ptxc.reference.sample import ALL, Sample
from ptxc.reference.steps import Step
from ptxc.sim.device import DEFAULT_MAX_STEPS, CpuDevice, LaunchResult, Module, Progress, Statistics
from ptxc.sim.geometry import Dim3

#: Instructions of threads: a grid of more is not executed whole where nobody asks for it, but so many CTAs that they
#: have about this many, and at least these. The CPU device does some tens of millions a second, or more.
_WHOLE, _PART, _LEAST = 1_000_000_000, 200_000_000, 8


@dataclass(frozen=True, slots=True)
class Settings:
    """How a run is executed and what is watched."""

    sanitize: frozenset[str] = frozenset()
    sample: Sample = ALL
    max_steps: int = DEFAULT_MAX_STEPS
    profile: bool = False
    #: Whether a grid may begin before the one ahead has ended; None: if it waits for that one.
    dependent: bool | None = None
    #: How many more launches to time, on a GPU.
    repeat: int = 0


@dataclass(frozen=True, slots=True)
class Launched:
    """One launch that was executed. What a GPU executes has no findings, and of the statistics only the CTAs."""

    step: Step
    grid: Dim3
    #: How many of its CTAs.
    ctas: int
    result: LaunchResult
    timing: Timing | None = None


@dataclass(frozen=True, slots=True)
class _Planned:
    step: Step
    grid: Dim3
    places: list[Dim3] | None
    integers: dict[str, int]

    @property
    def ctas(self) -> int:
        return math.prod(self.grid) if self.places is None else len(self.places)


type AnyModule = Module | CudaModule


def load(texts: Mapping[str, str], device: CpuDevice | CudaDevice | None = None) -> dict[str, AnyModule]:
    """Modules on ``device``, else a CPU device of their own, by the names of their entries. ``texts`` are the entries'
    PTX texts.

    Raises InputError where a text is not PTX or lacks its entry, UnsupportedError for what is not executed.
    """
    device = CpuDevice() if device is None else device
    known: dict[str, AnyModule] = {}
    modules = {}
    for entry, text in texts.items():
        if text not in known:
            known[text] = device.load(text)
        modules[entry] = module = known[text]
        if isinstance(module, Module):
            module.program(entry)
    return modules


def execute(
    modules: Mapping[str, AnyModule],
    steps: Sequence[Step],
    arrays: Mapping[str, Array],
    integers: Mapping[str, int],
    settings: Settings,
    progress: Progress | None = None,
) -> list[Launched]:
    """Launch ``steps`` in order on ``arrays``, which are written in place, until one does not complete.

    A grid without CTAs is none that could be launched, by CUDA either: what is to be zero is filled, no more.

    ``modules`` hold the entries by name; ``progress`` counts the CTAs of all launches. Raises UsageError for a launch
    that does not fit its entry.
    """
    plan = [launch for step in steps for launch in _launches(step, integers, settings.sample)]
    total, before = sum(launch.ctas for launch in plan), 0
    done: list[Launched] = []
    for launch in plan:
        for name in launch.step.launch.zero:
            arrays[name][...] = 0

        def report(finished: float, _: int, start: int = before) -> None:
            assert progress is not None
            progress(start + finished, total)

        result, timing = _launch(modules, launch, arrays, settings, report if progress is not None else None)
        done.append(Launched(launch.step, launch.grid, launch.ctas, result, timing))
        before += launch.ctas
        if not result.completed:
            break
    return done


def affordable(
    modules: Mapping[str, AnyModule],
    steps: Sequence[Step],
    arrays: Mapping[str, Array],
    integers: Mapping[str, int],
    settings: Settings,
) -> Sample:
    """All CTAs; where those of the only step would take the CPU device minutes, so many as take it seconds.

    How long is estimated from the instructions of the first CTA, which is executed on ``arrays`` with the checks of
    ``settings``: with them a launch goes on after a fault that stops one without. Where it stops all the same there is
    nothing to compare but what few CTAs tell. What of a grid is left to a later step decides what that one reads, so
    several steps are executed whole.
    """
    launches = [launch for step in steps for launch in _launches(step, integers, ALL)]
    if len(launches) != 1 or launches[0].ctas <= _LEAST:
        return ALL
    first = replace(settings, sample=Sample(numbers=(0,)))
    (trial,) = execute(modules, steps, arrays, integers, first)
    instructions = trial.result.statistics.instructions
    if not trial.result.completed:
        return Sample(count=_LEAST)
    if instructions * launches[0].ctas <= _WHOLE:
        return ALL
    return Sample(count=max(_LEAST, _PART // instructions))


def _launches(step: Step, integers: Mapping[str, int], sample: Sample) -> list[_Planned]:
    """The launches of a step: one, or one for each value of the integer that counts them."""
    values = [dict(integers)]
    for integer in step.launch.runtime:
        if integer.serial:
            values = [{**value, integer.name: at} for value in values for at in range(integer.serial)]
    plan = []
    for value in values:
        x, y, z = extents(step.launch.grid, value)
        plan.append(_Planned(step, (x, y, z), sample.places((x, y, z)), value))
    return plan


def _launch(
    modules: Mapping[str, AnyModule],
    launch: _Planned,
    arrays: Mapping[str, Array],
    settings: Settings,
    progress: Progress | None,
) -> tuple[LaunchResult, Timing | None]:
    if not launch.ctas:
        return LaunchResult([], Statistics(), completed=True), None
    entry, description = launch.step.entry, launch.step.launch
    module, timing = modules[entry], None
    try:
        with Placement(module.device, arrays, launch.integers, description.tensor_maps) as placement:
            args = [placement.argument(parameter) for parameter in description.parameters]
            if isinstance(module, CudaModule):
                zero = [arrays[name] for name in description.zero]
                how = (entry, launch.grid, description.block, args)
                if settings.repeat:
                    timing = module.time(*how, shared=description.dynamic_shared, zero=zero, repeat=settings.repeat)
                result = module.launch(*how, shared=description.dynamic_shared)
            else:
                result = module.launch(
                    entry,
                    launch.grid,
                    description.block,
                    args,  # type: ignore[arg-type]  # tables of addresses are arrays on the CPU device
                    shared=description.dynamic_shared,
                    ctas=launch.places,
                    sanitize=settings.sanitize,
                    max_steps=settings.max_steps,
                    profile=settings.profile,
                    dependent=settings.dependent,
                    progress=progress,
                )
            beside = placement.collect()
    except UsageError as error:
        error.at(kernel=entry)
        raise
    if "memory" in settings.sanitize or isinstance(module, CudaModule):
        result.findings += beside
    return result, timing
