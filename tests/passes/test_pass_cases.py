"""Each pass on its own, in small cases: a file of ``<pass>/`` holds a kernel and what the pass makes of it.

The first lines say what the case shows. After the kernel, a line ``// ---- after <pass>`` begins the result, which
``make goldens`` rewrites. Where the pass refuses the kernel instead, ``// error: …`` stands behind the instruction
whose statement the error names, once for each thing that the message says.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ptxc.errors import CompileError, InputError
from ptxc.ir.kernel import Instr, Kernel
from ptxc.ir.text import format_kernel, parse_kernel
from ptxc.ir.verify import check
from ptxc.passes.pipeline import PIPELINE

HERE = Path(__file__).parent
PASSES = {item.name: item for item in PIPELINE}
CASES = sorted(path for name in PASSES for path in (HERE / name).glob("*.ir"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_case(path: Path, golden: Callable[[Path, str | None], None]) -> None:
    item = PASSES[path.parent.name]
    text = path.read_text(encoding="utf-8").partition("\n// ---- ")[0].rstrip("\n") + "\n"
    assert text.startswith("// "), "the first line says what the case shows"
    kernel = parse_kernel(text, path.name)
    check(kernel, error=InputError)
    refused = refusals(kernel, text)
    if refused:
        ((instr, messages),) = refused
        with pytest.raises(CompileError) as caught:
            item.run(kernel)
        assert caught.value.statement == str(instr.loc)
        assert [message for message in messages if message not in str(caught.value)] == [], caught.value
        return
    item.run(kernel)
    check(kernel, item.name)
    golden(path, f"{text}\n// ---- after {item.name}\n{format_kernel(kernel)}")


def refusals(kernel: Kernel, text: str) -> list[tuple[Instr, list[str]]]:
    """The instructions behind which ``// error:`` stands, and what it says."""
    lines = [line for line in text.splitlines() if line.startswith("    ")]
    return [
        (instr, line.split(" // error: ")[1:])
        for instr, line in zip(kernel.instrs(), lines, strict=True)
        if " // error: " in line
    ]


def test_every_pass_has_cases() -> None:
    assert {path.parent.name for path in CASES} == PASSES.keys()
