"""`ptxc run --profile`: its tables and its JSON."""

from __future__ import annotations

import json
import re

from cli_lab import COPIES, ROW_MAX, TWO_KERNELS, ptxc


def test_the_tables_of_a_profile() -> None:
    result = ptxc("run", ROW_MAX, "--profile")
    assert result.status == 0
    assert "profile of k_y_reduce" in result.out
    kinds, memory, hottest = result.out.partition("profile of")[2].split("\n\n")[1:4]
    assert re.match(r"kind +warp instructions +share +active lanes\n", kinds)
    assert re.search(r"^load global +[\d,]+ +\d+\.\d % +\d+\.\d$", kinds, re.MULTILINE)
    assert re.search(r"^total +[\d,]+ +\d+\.\d$", kinds, re.MULTILINE)
    assert re.search(r"^global +[\d,]+ +[\d,]+ sectors +[\d,]+ +\d\.\d\d +\d\.\d\d$", memory, re.MULTILINE)
    assert re.search(r"^shared +[\d,]+ +[\d,]+ passes +[\d,]+ +1\.00 +1\.00$", memory, re.MULTILINE)
    rows = hottest.splitlines()
    assert len(rows) == 11
    ptx = ptxc("compile", ROW_MAX).out.splitlines()
    for row in rows[1:]:
        number, text = int(row.split()[0]), re.split(r"  +", row)[-1]
        assert ptx[number - 1].strip() == text


def test_a_memory_that_is_not_used() -> None:
    result = ptxc("run", COPIES, "--profile", "--sanitize", "none")
    assert result.status == 0
    assert result.out.splitlines()[-1] == "nothing was checked"
    scalar = ptxc("run", TWO_KERNELS, "--profile").out
    assert scalar.count("profile of") == 2
    assert re.search(r"^shared +0 +0 passes +0$", scalar, re.MULTILINE)


def test_a_profile_for_programs() -> None:
    kernels = json.loads(ptxc("run", TWO_KERNELS, "--profile", "--json").out)["kernels"]
    assert [kernel["name"] for kernel in kernels] == ["k_y_reduce__partial", "k_y_reduce"]
    for kernel in kernels:
        profile = kernel["profile"]
        assert profile["thread_instructions"] == kernel["statistics"]["instructions"]
        assert profile["lines"][0].keys() == {
            "line", "instruction", "kind", "warps", "threads", "global_memory", "shared_memory",
        }  # fmt: skip
    plain = json.loads(ptxc("run", TWO_KERNELS, "--json").out)["kernels"]
    assert [kernel["profile"] for kernel in plain] == [None, None]
