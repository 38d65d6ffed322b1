"""The table of passes and what runs it; the whole pipeline over the samples of ``golden/`` and random kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, docstrings
from random_programs import random_program

from ptxc.errors import CompileError, DivergenceError, InternalError, UsageError
from ptxc.ir import opcodes
from ptxc.ir.kernel import Kernel
from ptxc.ir.text import format_kernel, parse_kernel
from ptxc.ir.verify import check
from ptxc.passes import cse, leave_ssa, simplify
from ptxc.passes.pipeline import BUILD, PIPELINE, Clock, Runner

NAMES = [item.name for item in PIPELINE]
OPTIONAL = [item.name for item in PIPELINE if not item.required]
SAMPLES = sorted((ROOT / "golden").glob("*/10-build.ir"))

SMALL = """\
kernel small target sm_80 threads 64
  param out: u64 align 4
  param n: u32

entry:
    %out:b64 = ld.param.u64 [out]
    %n:b32 = ld.param.u32 [n]
    bra loop(0, 0)

loop(%i:b32, %sum:b32):
    %four:b32 = mul.lo.s32 %n, 4
    %sum.1:b32 = add.s32 %sum, %four
    %i.1:b32 = add.s32 %i, 1
    %more:pred = setp.lt.s32 %i.1, 8
    bra %more, loop(%i.1, %sum.1), done

done:
    st.global.b32 [%out], %sum.1
    ret
"""

DIVERGENT = """\
kernel divergent target sm_80 threads 64

entry:
    %tid:b32 = mov.u32 %tid.x
    %p:pred = setp.lt.s32 %tid, 5
    bra %p, then, end

then:
    bar.sync 0
    bra end

end:
    ret
"""


def small() -> Kernel:
    return parse_kernel(SMALL)


# ------------------------------------------------------------------------------------------------------- the table


def test_ranks_ascend_and_names_are_unique() -> None:
    ranks = [BUILD[0], *(item.rank for item in PIPELINE)]
    assert ranks == sorted(set(ranks))
    assert all(10 <= rank <= 99 for rank in ranks), "two digits name the dumps"
    assert len(NAMES) == len(set(NAMES))
    assert BUILD[1] not in NAMES


def test_what_comes_before_a_pass_does() -> None:
    for at, item in enumerate(PIPELINE):
        for name, reason in item.after:
            assert name in NAMES[:at], (item.name, name)
            assert reason
        assert len({name for name, _ in item.after}) == len(item.after)


@docstrings
def test_every_pass_says_what_it_does() -> None:
    for item in PIPELINE:
        assert item.summary == item.summary.strip(". ")
        assert "\n" not in item.summary
        assert item.run.__doc__
        assert item.module.__doc__


def test_every_file_is_a_pass_of_the_table() -> None:
    """``division`` and ``swizzling`` are parts of simplify."""
    files = {path.stem.replace("_", "-") for path in (ROOT / "passes").glob("*.py")}
    assert files == {*NAMES, "pipeline", "division", "swizzling", "--init--"}


# ------------------------------------------------------------------------------------------------------ the runner


def observed(kernel: Kernel, **options: Any) -> list[str]:
    """The names of the passes that ran, as an observer sees them."""
    seen: list[str] = []
    ranks = {item.name: item.rank for item in PIPELINE}

    def observe(rank: int, name: str, observed: Kernel) -> None:
        assert observed is kernel
        assert rank == ranks[name]
        seen.append(name)

    Runner(observe=observe, **options).run(kernel)
    return seen


def test_all_passes_run_in_their_order() -> None:
    kernel = small()
    assert observed(kernel, verify=True) == NAMES
    assert not kernel.ssa
    assert kernel.registers


def test_disabled_passes_do_not_run() -> None:
    assert observed(small(), disabled=["cse", "hoist"], verify=True) == [n for n in NAMES if n not in ("cse", "hoist")]


@pytest.mark.parametrize("opt", [0, 1, 2])
def test_an_optimisation_level_has_the_passes_of_those_below(opt: int) -> None:
    assert observed(small(), opt=opt, verify=True) == [item.name for item in PIPELINE if item.level <= opt]
    assert any(item.level == opt for item in PIPELINE)


def test_a_run_stops_after_a_pass_that_is_disabled_too() -> None:
    assert observed(small(), stop_after="simplify") == NAMES[: NAMES.index("simplify") + 1]
    assert observed(small(), stop_after="simplify", disabled=["simplify"]) == NAMES[: NAMES.index("simplify")]
    assert observed(small(), stop_after="build", verify=True) == []


def test_a_run_begins_at_a_pass() -> None:
    assert observed(small(), start_at="hoist") == NAMES[NAMES.index("hoist") :]
    assert observed(small(), start_at="cse", stop_after="cse") == ["cse"]
    assert observed(small(), start_at="cse", disabled=["cse"]) == NAMES[NAMES.index("cse") + 1 :]


def test_a_run_can_be_continued_from_its_text() -> None:
    """What a dump holds is all that the passes after it need."""
    for path in SAMPLES[::2]:
        whole = parse_kernel(path.read_text())
        Runner(verify=True).run(whole)
        for name, following in pairwise(NAMES):
            kernel = parse_kernel(path.read_text())
            Runner(stop_after=name).run(kernel)
            read = parse_kernel(format_kernel(kernel))
            Runner(start_at=following, verify=True).run(read)
            assert shape(read) == shape(whole), (path.parent.name, name)


def shape(kernel: Kernel) -> list[list[str]]:
    """The instructions without names, which may count on from another number."""
    return [[".".join((instr.op.name, *instr.mods)) for instr in block.instrs] for block in kernel.blocks]


def test_a_clock_keeps_times_and_instructions() -> None:
    clock = Clock(True)
    kernel = small()
    Runner(disabled=["cse"], clock=clock).run(kernel)
    assert [lap.name for lap in clock.laps] == [name for name in NAMES if name != "cse"]
    assert all(lap.seconds >= 0 for lap in clock.laps)
    assert clock.laps[-1].instructions == sum(1 for _ in kernel.instrs())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"disabled": ["sse"]}, "there is no pass 'sse'"),
        ({"disabled": ["build"]}, "there is no pass 'build'"),
        ({"stop_after": "end"}, "there is no pass 'end'"),
        ({"start_at": "build"}, "there is no pass 'build'"),
        ({"start_at": "cse", "stop_after": "simplify"}, "pass 'simplify' comes before 'cse'"),
        *(({"disabled": [item.name]}, f"pass {item.name!r} cannot be disabled") for item in PIPELINE if item.required),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Runner(**options)
    assert message in str(caught.value)
    assert caught.value.hint


def crash(kernel: Kernel) -> None:
    kernel.blocks.clear()
    raise ZeroDivisionError("by zero")


def spoil(kernel: Kernel) -> None:
    kernel.blocks[-1].instrs.pop()


@pytest.mark.parametrize("broken", [crash, spoil])
def test_a_pass_that_fails_leaves_a_reproducer(
    broken: Callable[[Kernel], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cse, "run", broken)
    kernel = small()
    with pytest.raises(InternalError) as caught:
        Runner(verify=True).run(kernel)
    error = caught.value
    assert error.kernel == "small"
    assert "cse" in str(error)
    if broken is crash:
        assert "ZeroDivisionError: by zero" in str(error)
        assert isinstance(error.__cause__, ZeroDivisionError)
    # The reproducer is the kernel from before the pass, and shows the fault again.
    again = parse_kernel(error.reproducer)
    expected = small()
    Runner(stop_after="simplify").run(expected)
    assert format_kernel(again) == format_kernel(expected)
    with pytest.raises(InternalError):
        Runner(start_at="cse", verify=True).run(again)


def test_without_verification_a_crash_names_the_pass_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leave_ssa, "run", crash)
    with pytest.raises(InternalError, match="pass 'leave-ssa' failed") as caught:
        Runner().run(small())
    assert caught.value.reproducer == ""


def test_what_is_wrong_before_the_first_pass_is_said() -> None:
    kernel = small()
    spoil(kernel)
    with pytest.raises(InternalError, match="after build"):
        Runner(verify=True).run(kernel)


def test_what_a_pass_refuses_is_no_fault_of_ptxc() -> None:
    with pytest.raises(DivergenceError) as caught:
        Runner(verify=True).run(parse_kernel(DIVERGENT))
    assert caught.value.exit_status == CompileError.exit_status
    assert caught.value.kernel == "divergent"


# -------------------------------------------------------------------------------------------------- whole pipeline


def compiled(text: str, **options: Any) -> list[str]:
    """The kernel's text after each pass."""
    kernel = parse_kernel(text)
    texts: list[str] = []
    Runner(observe=lambda rank, name, kernel: texts.append(format_kernel(kernel)), **options).run(kernel)
    return texts


def test_there_are_samples() -> None:
    assert len(SAMPLES) >= 5


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.parent.name)
def test_each_optional_pass_can_be_left_out(path: Path) -> None:
    text = path.read_text()
    for disabled in ([], *([name] for name in OPTIONAL), OPTIONAL):
        kernel = parse_kernel(text)
        Runner(disabled=disabled, verify=True).run(kernel)
        assert not kernel.ssa
        assert not any(instr.op in (opcodes.TILE_COORDS, opcodes.TILE_GUARD) for instr in kernel.instrs())


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.parent.name)
def test_twice_is_the_same(path: Path) -> None:
    """Neither addresses nor what was compiled before shows in the result."""
    text = path.read_text()
    first = compiled(text)
    ballast = [object() for _ in range(1000)]
    kept = parse_kernel(text)
    ballast = ballast[::3]
    assert compiled(text) == first
    assert ballast
    assert format_kernel(kept) == text


def test_the_result_does_not_depend_on_hashes() -> None:
    script = (
        "import sys, hashlib\n"
        "from ptxc.ir.text import format_kernel, parse_kernel\n"
        "from ptxc.passes.pipeline import Runner\n"
        "for path in sys.argv[1:]:\n"
        "    kernel = parse_kernel(open(path).read())\n"
        "    Runner().run(kernel)\n"
        "    print(hashlib.sha256(format_kernel(kernel).encode()).hexdigest())\n"
    )
    found = set()
    for seed in ("1", "2", "3"):
        command = [sys.executable, "-P", "-c", script, *map(str, SAMPLES)]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        found.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(found) == 1


@pytest.mark.parametrize("seed", range(20))
def test_random_kernels_are_the_same_twice(seed: int) -> None:
    text = format_kernel(random_program(seed))
    first = compiled(text, verify=True)
    ballast = [[index] for index in range(seed * 7)]
    assert compiled(text) == first
    assert len(ballast) == seed * 7


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.parent.name)
def test_simplifying_again_changes_little(path: Path) -> None:
    """What passes leave is what they would leave alone: two more rounds of the simplest come to rest."""
    kernel = parse_kernel(path.read_text())
    Runner(stop_after="cse").run(kernel)
    for _ in range(2):
        simplify.run(kernel)
        cse.run(kernel)
        check(kernel)
    text = format_kernel(kernel)
    simplify.run(kernel)
    cse.run(kernel)
    assert format_kernel(kernel) == text
