"""Kernels of Emmy's with products on tensor cores, against plain NumPy.

A CTA of each is evaluated. Some kernels lie in ``data/products``: those of the corpus beside the repository under other
names, and four that Emmy makes of the corpus' programs where it is told to have a warp that only copies
(``WORK=...+p1``), or families of fragments (``LOOPIFY=2``). Of the corpus itself one of each card and set of statements
is taken, all with ``PTXC_WHOLE_CORPUS``.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SHARED
from corpus_products import PARTIAL, PRODUCTS, compare, key
from reference_lab import evaluable

from ptxc.driver import graph_of
from ptxc.frontend.reader import kernel_nodes
from ptxc.reference import buffers
from ptxc.reference.buffers import Array, Buffer
from ptxc.reference.evaluator import evaluate_kernels
from ptxc.reference.sample import Sample

FOLDER = SHARED / "emmy-corpus"
HERE = sorted((Path(__file__).parent / "data" / "products").glob("*.json.gz"))
WHOLE = os.environ.get("PTXC_WHOLE_CORPUS") == "1"


def manifest() -> list[dict[str, Any]]:
    if not FOLDER.is_dir():
        return []
    lines = (FOLDER / "MANIFEST.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if "RegStore" in row["ops"]]


def sampled() -> list[Any]:
    """The kernels to evaluate: of each card one of each set of statements."""
    taken: dict[Any, dict[str, Any]] = {}
    for row in manifest():
        kind = tuple(op for op in row["ops"] if op.startswith(("Frag", "Wgmma", "Tma", "Block", "Cp", "Lambda")))
        taken.setdefault(row["file"] if WHOLE else (row["card"], kind), row)
    return [pytest.param(row, id=row["file"][:60]) for row in taken.values()]


def small_random(buffer: Buffer, seed: int, most: int = 3) -> Array:
    """Random numbers that repeat, made in no time, of which sums of products are exact in float64."""
    size, kind = math.prod(buffer.shape), buffers.dtype_of(buffer.dtype)
    random = np.random.default_rng([seed, zlib.crc32(buffer.name.encode())])
    count = min(size, (1 << 16) + 1)
    if kind.kind == "f" or buffer.dtype in ("bf16", "f8e4m3"):
        some = buffers.encoded(random.standard_normal(count, np.float32) / 2, buffer.dtype)
    else:
        some = random.integers(0, 255, count, kind, endpoint=True)
    return np.resize(some, size).reshape(buffer.shape)


def check(path: Path, monkeypatch: pytest.MonkeyPatch, bindings: dict[str, int]) -> None:
    monkeypatch.setattr(buffers, "_random", small_random)
    graph = graph_of(path)
    (kernel,) = kernel_nodes(graph)
    inputs = graph.nodes[kernel.node_id].inputs
    ops, _, problem = evaluable(graph, None, **{name: min(size, 512) for name, size in bindings.items()})
    evaluation = evaluate_kernels(ops, problem, sample=Sample(numbers=(0,)))
    assert evaluation.faults == []
    for elements, error in compare(problem, evaluation.outputs, inputs).values():
        assert elements > 0
        assert error < 1e-12


@pytest.mark.parametrize("path", HERE, ids=lambda path: path.name.partition(".")[0])
def test_a_kernel_computes_what_numpy_does(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(path, monkeypatch, {})


@pytest.mark.parametrize("row", sampled())
def test_a_kernel_of_the_corpus_computes_what_numpy_does(row: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    check(FOLDER / row["file"], monkeypatch, row["bindings"])


def test_every_kind_of_product_is_known(shared: Path) -> None:
    unknown = set()
    for row in manifest():
        graph = graph_of(FOLDER / row["file"])
        (kernel,) = kernel_nodes(graph)
        node = graph.nodes[kernel.node_id]
        unknown.add(key(node.inputs, node.buffer_names()))
    assert unknown <= {*PRODUCTS, *PARTIAL}
