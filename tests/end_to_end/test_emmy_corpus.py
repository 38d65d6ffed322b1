"""ptxc compiles the kernels of Emmy's own tuning, each for the GPU that it was tuned for, and ptxas takes them.

By default a sample of the folder ``emmy-corpus`` beside the repository; ``PTXC_WHOLE_CORPUS=1`` takes all.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from bench15 import WHOLE
from conftest import SHARED

import ptxc
from ptxc.frontend.operations import statement_classes
from ptxc.frontend.statements import STATEMENTS
from ptxc.toolchain import assemble

FOLDER = SHARED / "emmy-corpus"
MISSING = {cls.__name__ for cls in statement_classes()} - {cls.__name__ for cls in STATEMENTS}
#: What only one architecture has, the one that the suffix ``a`` asks for.
SPECIFIC = {"BlockScaleLoad", "WgmmaMma"}
#: Volta's fragments are not supported.
VOLTA = ("sm_70", "RegFragment")


def kernels() -> list[dict[str, Any]]:
    """The manifest's entries that ptxc has all statements of; one in 25, or all."""
    if not FOLDER.exists():
        return []
    entries = map(json.loads, (FOLDER / "MANIFEST.jsonl").read_text().splitlines())
    return [
        entry
        for entry in entries
        if MISSING.isdisjoint(entry["ops"])
        and not (entry["target"] == VOLTA[0] and VOLTA[1] in entry["ops"])
        and (WHOLE or zlib.crc32(entry["file"].encode()) % 25 == 0)
    ]


@pytest.mark.needs("ptxas")
@pytest.mark.parametrize("entry", kernels(), ids=lambda entry: entry["file"].removesuffix(".json"))
def test_a_kernel_of_emmys_tuning(entry: dict[str, Any]) -> None:
    target = entry["target"] + ("a" if SPECIFIC.intersection(entry["ops"]) else "")
    (kernel,) = ptxc.compile(FOLDER / entry["file"], target=target)
    # Volta's successor takes its code, and CUDA 13 knows no Volta.
    assert not assemble(kernel.ptx, "sm_75" if target == VOLTA[0] else target).warnings
