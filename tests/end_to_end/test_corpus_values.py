"""Emmy's kernels on the CPU device: ptxc's PTX against the Kernel IR in float64, and against nvcc's PTX.

A few CTAs of each, with all checks on; kernels of each family on each card. By default a sample of them that takes
seconds; ``PTXC_WHOLE_CORPUS=1`` takes at least five of each family and card.

How far an answer may be off follows from what the kernel does, see :mod:`tolerances`.
"""

from __future__ import annotations

import json
import math
import zlib
from functools import cache
from itertools import groupby

import numpy as np
import pytest
from bench15 import WHOLE
from conftest import SHARED
from tolerances import of_kernel

from ptxc.corpus import Entry, entries
from ptxc.driver import compile
from ptxc.frontend.reader import kernel_nodes, read_graph
from ptxc.reference import buffers
from ptxc.reference.buffers import Array, Buffer, problem_of
from ptxc.reference.compare import Tolerance
from ptxc.reference.execution import Settings
from ptxc.reference.sample import Sample
from ptxc.reference.steps import steps_of
from ptxc.reference.verification import NVCC, PTXC, REFERENCE, Verification
from ptxc.sim.findings import CHECKS

FOLDER = SHARED / "emmy-corpus"
#: How many kernels of each family and card are executed, and of how many families of each card without the switch.
EACH = 5 if WHOLE else 1
#: The least positive number of types in which results may be as small as that.
LEAST = {"f8e4m3": 2.0**-9, "f8e5m2": 2.0**-16}


def chosen() -> list[Entry]:
    """The kernels to execute: whichever of their family and card, but always the same."""
    found: list[Entry] = []
    if FOLDER.is_dir():
        for _, group in groupby(sorted(entries(FOLDER), key=_kind), key=_kind):
            members = sorted(group, key=lambda entry: zlib.crc32(entry.path.name.encode()))
            found += members[:EACH]
    return found if WHOLE else found[::12]


def _kind(entry: Entry) -> tuple[str, str]:
    return entry.card, entry.family


def _small(buffer: Buffer, seed: int, most: int = 3) -> Array:
    """Random numbers that repeat after a while, made in no time.

    Those of matrices are small, so that sums of products are about 1: an exponential multiplies the roundoff of what
    it is taken of by its size.
    """
    size, kind = math.prod(buffer.shape), buffers.dtype_of(buffer.dtype)
    random = np.random.default_rng([seed, zlib.crc32(buffer.name.encode())])
    count = min(size, (1 << 16) + 1)
    if kind.kind == "f" or buffer.dtype in ("bf16", "f8e4m3", "f8e5m2"):
        wide = kind.itemsize > 1 and len(buffer.shape) > 1 and max(buffer.shape) > 64
        width = 2 / math.sqrt(max(buffer.shape)) if wide else 0.5
        some = buffers.encoded(random.standard_normal(count, np.float32) * np.float32(width), buffer.dtype)
    elif kind.kind == "i":
        some = random.integers(0, most, count, kind, endpoint=True)
    else:
        some = random.integers(0, 255, count, kind, endpoint=True)
    return np.resize(some, size).reshape(buffer.shape)


@pytest.mark.parametrize("entry", chosen(), ids=lambda entry: entry.path.name[:70])
def test_a_kernel_of_the_corpus_computes(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_random", _small)
    verification = verified(entry)
    assert REFERENCE in verification.answers, verification.notes
    assert not [str(found.finding) for found in verification.findings if found.who == PTXC]
    assert not verification.wrong
    assert not WHOLE or entry.target == "sm_70" or NVCC in verification.answers, verification.notes


def verified(entry: Entry) -> Verification:
    """The answers for a kernel: by its meaning, by ptxc, and with the switch by nvcc."""
    graph = read_graph(entry.path)
    (node,) = kernel_nodes(graph)
    kernels = compile(graph, target=entry.target)
    steps = steps_of(kernels)
    problem = problem_of(steps, bindings()[entry.path.name], {}, 0)
    outputs = {buffer.name: buffer.dtype for buffer in problem.written}
    settings = Settings(sanitize=frozenset(CHECKS), sample=Sample(count=2))
    # Beside what is relative, a number below the normal ones of a type is off by one step of those.
    steps_of_eight = max(LEAST.get(dtype, 0.0) for dtype in outputs.values())
    allowed = Tolerance(of_kernel(node.op, outputs.values(), problem.arrays()), steps_of_eight)
    found = Verification(problem, allowed, settings)
    found.evaluate(graph, steps)
    found.execute(PTXC, {step.entry: kernels[0].ptx for step in steps}, steps)
    if WHOLE and entry.target != "sm_70":  # nvcc 13 knows no sm_70
        found.compile_with_nvcc(graph, kernels[0].target)
    return found


@cache
def bindings() -> dict[str, dict[str, int]]:
    """The sizes that each kernel was measured at."""
    rows = map(json.loads, (FOLDER / "MANIFEST.jsonl").read_text().splitlines())
    return {row["file"]: row["bindings"] for row in rows}
