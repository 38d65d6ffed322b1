"""Emmy's kernels with bulk copies and warpgroup products: each compiles, and ptxas takes it without a word or a spill.

They are those of the folder ``emmy-corpus`` beside the repository, scheduled for sm_90 and sm_120. By default a sample
of them; ``PTXC_WHOLE_CORPUS=1`` takes all. Some kernels of fp8 spill.
"""

from __future__ import annotations

import json
import os
import zlib

import pytest
from conftest import SHARED

import ptxc
from ptxc.toolchain import assemble

FOLDER = SHARED / "emmy-corpus"
WHOLE = os.environ.get("PTXC_WHOLE_CORPUS") == "1"
#: Of Emmy's statements, those that one of these kernels has.
STATEMENTS = {"TmaLoad", "MbarrierWait", "SetMaxNReg", "WgmmaMma"}


def rows() -> list[dict[str, str]]:
    """The kernels of the manifest that are tested."""
    manifest = FOLDER / "MANIFEST.jsonl"
    found = [json.loads(line) for line in manifest.read_text().splitlines()] if manifest.exists() else []
    found = [row for row in found if STATEMENTS.intersection(row["ops"])]
    return [row for row in found if WHOLE or zlib.crc32(row["file"].encode()) % 20 == 0]


@pytest.mark.needs("ptxas")
@pytest.mark.parametrize("row", rows(), ids=lambda row: row["file"])
def test_ptxas_takes(row: dict[str, str]) -> None:
    (kernel,) = ptxc.compile(FOLDER / row["file"], target=row["target"])
    assert kernel.target.removesuffix("a") == row["target"]
    assert "WgmmaMma" not in row["ops"] or kernel.target == "sm_90a"
    assembly = assemble(kernel.ptx, kernel.target)
    assert not assembly.warnings
    assert kernel.launch is not None
    if not any(parameter.dtype.startswith("f8") for parameter in kernel.launch.parameters):
        used = assembly.kernels[kernel.name]
        assert used.spill_stores == used.spill_loads == 0
