"""ptxas takes what ptxc makes, and gives no kernel a spill that nvcc's build of it has not.

By default a sample of the corpus; ``PTXC_WHOLE_CORPUS=1`` takes all.
"""

from __future__ import annotations

import tomllib
import zlib

import pytest
from bench15 import FOLDER, WHOLE, entries
from conftest import ROOT
from emmy_cuda import resources

import ptxc
from ptxc.toolchain import assemble

PAIRS = [
    (file, target)
    for file, entry in entries().items()
    for target in entry["targets"]
    if WHOLE or zlib.crc32(f"{file} {target}".encode()) % 25 == 0
]


@pytest.mark.needs("ptxas")
@pytest.mark.needs("nvcc")
@pytest.mark.parametrize(("file", "target"), PAIRS)
def test_ptxas(file: str, target: str) -> None:
    (kernel,) = ptxc.compile(FOLDER / file, target=target)
    assembly = assemble(kernel.ptx, target)
    assert not assembly.warnings
    used = assembly.kernels[kernel.name]
    assert used.barriers <= 16
    if max(used.spill_stores, used.spill_loads) > 0:
        (other,) = resources([file], target)
        assert used.spill_stores <= other.spill_stores
        assert used.spill_loads <= other.spill_loads


GOLDENS = tomllib.loads((ROOT / "golden" / "goldens.toml").read_text())


@pytest.mark.needs("ptxas")
@pytest.mark.parametrize("name", GOLDENS)
def test_ptxas_takes_goldens(name: str) -> None:
    text = (ROOT / "golden" / name / "out.ptx").read_text()
    target = text.split(".target ", 1)[1].split("\n", 1)[0]  # with its suffix, where the kernel needs that
    assert target.removesuffix("a") == GOLDENS[name].get("target", "sm_89").removesuffix("a")
    assert not assemble(text, target).warnings
