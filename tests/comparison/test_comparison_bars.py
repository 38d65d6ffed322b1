"""What is to be reached, which kernels miss it, and how both are shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from comparison_lab import build, pair

from ptxc.cli.comparisons import report, to_json
from ptxc.comparison import Bar, Comparison, bars_of
from ptxc.comparison.picture import check_picture, draw
from ptxc.errors import ToolchainError, UsageError

NVCC = build(seconds=0.3)


def bars(*rows: Comparison) -> dict[str, Bar]:
    return {bar.name: bar for bar in bars_of(rows)}


def missed(bar: Bar) -> list[tuple[str, str]]:
    return [(row.kernel, text) for row, text in bar.missed or ()]


def test_spills() -> None:
    found = bars(
        pair(build(spilled=16), NVCC, "some"),
        pair(build(spilled=64), NVCC, "many"),
        pair(build(spilled=24), build(spilled=8), "more"),
        pair(build(spilled=8), build(spilled=8), "as many"),
    )
    assert missed(found["spills where nvcc has none"]) == [("many", "64 bytes, nvcc 0"), ("some", "16 bytes, nvcc 0")]
    more = found["more bytes spilled than nvcc"]
    assert (more.value, [name for name, _ in missed(more)]) == (3, ["many", "some", "more"])


def test_registers_and_occupancy() -> None:
    found = bars(
        *(pair(build(registers=count), build(registers=64), f"{count}") for count in (56, 64, 72, 73)),
    )
    assert found["registers at most nvcc's"].figure == "50.0 %"
    assert missed(found["registers at most nvcc's + 8"]) == [("73", "73 registers, nvcc 64")]
    assert found["registers at most nvcc's + 8"].value == 0.75
    assert missed(found["occupancy at least nvcc's"]) == [
        ("72", "37.5 %, nvcc 50.0 % (limited by registers)"), ("73", "37.5 %, nvcc 50.0 % (limited by registers)"),
    ]  # fmt: skip


def test_instructions_for_a_unit_of_work() -> None:
    unrolled, slow_one = build("FFMA R0; FFMA R0; IADD3 R1"), build("FFMA R0; IADD3 R1; MOV R2")
    found = bars(pair(unrolled, NVCC, "unrolled"), pair(slow_one, NVCC, "slow"))
    mean = found["SASS for a unit of work in the hottest loop, ptxc / nvcc, geometric mean"]
    assert mean.value == found["  of the 2 whose regions are alike"].value == pytest.approx(2**0.5)
    slow = missed(found["more than 1.10 of nvcc's SASS for a unit of work"])
    assert slow == [("slow", "2.00 times nvcc's, 4.00 and 2.00 instructions for a float")]
    assert found["SASS in all, ptxc / nvcc, geometric mean"].value == pytest.approx(1.5)


def test_regions_that_are_not_alike() -> None:
    copying = build("FFMA R0; LDG.E R1; LDG.E R2")
    row = pair(copying, build("FFMA R0; LDG.E R1"), "k")
    assert row.per_work == pytest.approx(4 / 3)
    assert not row.alike
    assert pair(copying, build("FFMA R0; LDG.E.64 R1")).alike
    assert not pair(build(), None).alike
    found = bars(row)
    assert not any(name.startswith("  of the") for name in found)
    assert missed(found["more than 1.10 of nvcc's SASS for a unit of work"])[0][1].endswith("(regions not alike)")
    text = report([row, pair(build(), NVCC)])
    assert " 1.33*  " in text
    assert "* the regions are not alike" in text


def test_notes_of_many_are_said_once() -> None:
    rows = [pair(build(), NVCC, name, "built for sm_75", *more) for name, more in (("a", ()), ("b", ("odd",)))]
    text = report(rows)
    assert "2 kernels: built for sm_75\nkernels/b.json: odd\n" in text


def test_cpu_time() -> None:
    slower = build(seconds=0.003)
    found = bars(pair(build(), NVCC), pair(build(), NVCC), pair(slower, NVCC))
    figures = {name: bar.value for name, bar in found.items() if name.startswith("CPU")}
    assert list(figures.values()) == pytest.approx([300, 100, 1e6 * 0.005 / 300, 0.32 / 0.021])


def test_what_one_compiler_alone_builds_is_not_counted() -> None:
    assert bars(pair(build(), None), pair(None, NVCC)) == {}
    assert "no kernel was built by both compilers" in report([pair(build(), None), pair(None, NVCC)])
    assert bars(pair(build(), NVCC), pair(build(spilled=8), None))["more bytes spilled than nvcc"].value == 0


# -------------------------------------------------------------------------------------------------------------- shown


def test_one_kernel_in_full() -> None:
    text = report([pair(build("FFMA R0; FFMA R0; IADD3 R1"), NVCC)])
    assert text.startswith("k for sm_80\n\n")
    lines = [line.split() for line in text.splitlines()]
    assert ["CPU", "ms", "to", "PTX", "1.0", "300.0", "0.003"] in lines
    assert ["instructions", "for", "a", "unit", "2.000", "2.000", "1.000"] in lines
    assert ["integer", "0.500", "0.000"] in lines
    assert ["ptxc", "0x10", "1", "4", "2", "hottest"] in lines
    assert "a unit of work is an operation on floats" in text


def test_a_build_that_there_is_not_is_a_dash_and_a_note() -> None:
    note = "nvcc: Emmy's CUDA lowering fails: odd"
    assert report([pair(build(), None, "k", note)]).endswith(note)
    text = report([pair(build(), None, "a", note), pair(None, None, "b", "ptxc: no", note), pair(build(), NVCC, "c")])
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line[:2] in ("a ", "b ", "c ")}
    assert rows["a"] == ["sm_80", "32/-", "0/-", "100/-", "4/-", "float", "2.00/-", "-", "-"]
    assert rows["b"] == ["sm_80", "-/-", "-/-", "-/-", "-/-", "-", "-/-", "-", "-"]
    assert rows["c"] == ["sm_80", "32/32", "0/0", "100/100", "4/4", "float", "2.00/2.00", "1.00", "300x"]
    assert "kernels/b.json: ptxc: no" in text
    assert "1 kernels built by both, of 3" in text


def test_names_tell_files_apart() -> None:
    long = "a" * 100
    rows = [pair(build(), NVCC, name) for name in ("x/k", "y/k", f"x/{long}")]
    names = [line.split()[0] for line in report(rows).splitlines()[1:4]]
    assert names[:2] == ["x/k", "y/k"]
    assert names[2].startswith("x/aaa")
    assert "..." in names[2]
    assert len(names[2]) <= 72
    twice = [Comparison("k.json", name, "sm_80", build(), NVCC) for name in ("one", "two")]
    assert "k: one" in report(twice)


def test_json_has_all_figures() -> None:
    rows = [pair(build("FFMA R0; IADD3 R1; MOV R2"), NVCC, "slow"), pair(build(), None, "alone", "nvcc: odd")]
    shown = json.loads(to_json(rows))
    slow, alone = shown["kernels"]
    assert (slow["unit"], slow["per_work_ratio"], slow["notes"]) == ("float", 2.0, [])
    assert (alone["nvcc"], alone["per_work_ratio"], alone["notes"]) == (None, None, ["nvcc: odd"])
    ours = slow["ptxc"]
    assert (ours["registers"], ours["ptx_lines"], ours["occupancy"]["share"]) == (32, 100, 1.0)
    assert ours["hottest"] == {
        "address": 16, "depth": 1, "instructions": 4, "kinds": {"fp32": 1, "integer": 2, "control": 1},
        "work": {"product": 0.0, "float": 1.0, "word": 0.0, "kernel": 1.0}, "per_work": 4.0,
    }  # fmt: skip
    assert ours["loops"] == [ours["hottest"]]
    (above,) = [bar for bar in shown["bars"] if bar["name"].startswith("more than 1.10")]
    assert above["missed"][0]["file"] == "kernels/slow.json"


@pytest.mark.parametrize(("form", "begin"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_the_picture(form: str, begin: bytes) -> None:
    pytest.importorskip("matplotlib")
    rows = [pair(build(), NVCC), pair(build("LDG.E R0; STG.E R0"), build("LDG.E R0; STG.E R0")), pair(None, NVCC)]
    assert draw(rows, form).startswith(begin)
    assert draw(rows, form) == draw(rows, form)
    assert draw([], form).startswith(begin)


def test_a_picture_that_cannot_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"'k\.jpg' is no picture's name; it ends with \.svg or \.png"):
        check_picture(Path("k.jpg"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ToolchainError, match=r"needs matplotlib.*; get it with: pip install 'ptxc\[compare\]'"):
        check_picture(Path("k.svg"))
