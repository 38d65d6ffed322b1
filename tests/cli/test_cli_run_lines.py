"""From a line of ptxc's PTX to the Kernel IR statement that it comes from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli_lab import KERNELS, TWO_KERNELS, ptxc

import ptxc as api
from ptxc.codegen.lines import statements_of_lines
from ptxc.driver import CompiledModule
from ptxc.target import parse_target

#: What a statement looks like from which an instruction comes.
STATEMENTS = {
    r"\bcp\.async\.(ca|cg)": r"cp\.async\[\d+B\]",
    r"\bcp\.async\.commit_group": r"cp\.async\.commit_group",
    r"\bcp\.async\.wait_group": r"cp\.async\.wait_group",
    r"\bred\.global": r"\(atomic\)",
    r"\bld\.global": r" = load \w+\[",
    r"\bst\.global": r" = \S",
    r"\bbar\.sync": r"Sync|TreeHalve",
    r"\bshfl": r"WarpShuffle|TreeHalve|WarpBroadcast",
}


def statements(module: CompiledModule) -> dict[int, str]:
    kernels = [kernel.kernel for kernel in module.kernels]
    return statements_of_lines(kernels, parse_target("sm_90"), max(kernel.version for kernel in module.kernels))


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_lines_come_from_statements_that_ask_for_them(path: Path) -> None:
    module = api.compile_module(path, target="sm_90")
    found, seen = statements(module), 0
    for number, line in enumerate(module.ptx.splitlines(), 1):
        if not line.startswith("    ") or line.startswith("    ."):
            assert number not in found, line
            continue
        for instruction, statement in STATEMENTS.items():
            if re.search(instruction, line):
                assert re.search(statement, found[number]), (line, found[number])
                seen += 1
                break
        assert "ld.param" not in line or number not in found
    assert seen >= 2


def test_lines_of_a_second_kernel_are_of_its_statements() -> None:
    module = api.compile_module(TWO_KERNELS, target="sm_90")
    lines = module.ptx.splitlines()
    second = max(number for number, line in enumerate(lines, 1) if ".entry" in line)
    loads = {number: text for number, text in statements(module).items() if "ld.global" in lines[number - 1]}
    assert {"load x[" in text for number, text in loads.items() if number < second} == {True}
    assert {"load y__partial[" in text for number, text in loads.items() if number > second} == {True}


def test_findings_of_a_second_kernel_have_their_line(tmp_path: Path) -> None:
    text = TWO_KERNELS.read_text()
    short = tmp_path / "k.json"
    match = re.search(r"Load\(names=\('\w+',\), input='y__partial', index=\(Var\(name='(\w+)'\),\)", text)
    assert match
    beyond = match[0].replace(
        f"(Var(name='{match[1]}'),)",
        f"(BinaryExpr(op='+', left=Var(name='{match[1]}'), right=Literal(value=5, dtype='int')),)",
    )
    short.write_text(text.replace(match[0], beyond))
    result = ptxc("run", short)
    assert result.status == 1
    pattern = r"^k_y_reduce: memory: PTX line (\d+): .*\n  \1 \| ld\.global.*\n +\| .*load y__partial"
    found = re.search(pattern, result.out, re.MULTILINE)
    assert found
    assert "ld.global" in ptxc("compile", short).out.splitlines()[int(found[1]) - 1]
