"""The benchmark problems in Triton's language, without masks, as the sizes are multiples of the blocks."""

# These functions are Triton's, not Python's: what they take has no Python type.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def vector_add(x, y, z, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(z + at, tl.load(x + at) + tl.load(y + at))


@triton.jit
def row_sum(x, y, K: tl.constexpr):
    row = tl.program_id(0)
    tl.store(y + row, tl.sum(tl.load(x + row * K + tl.arange(0, K)), 0))


@triton.jit
def rmsnorm(x, w, y, EPS: tl.constexpr, K: tl.constexpr):
    at = tl.arange(0, K)
    row = tl.program_id(0) * K
    values = tl.load(x + row + at)
    scale = tl.rsqrt(tl.sum(values * values, 0) / K + EPS)
    tl.store(y + row + at, values * scale * tl.load(w + at))


@triton.jit
def softmax(x, y, K: tl.constexpr):
    at = tl.program_id(0) * K + tl.arange(0, K)
    values = tl.load(x + at)
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(y + at, powers / tl.sum(powers, 0))


@triton.jit
def matmul(
    a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """``c = a @ b``, programs in groups of GROUP rows of blocks as the benchmark's kernel has them."""
    program = tl.program_id(0)
    in_group = GROUP * (N // BN)
    rows = (program // in_group * GROUP + program % GROUP) * BM + tl.arange(0, BM)
    columns = program % in_group // GROUP * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        left = tl.load(a + rows[:, None] * K + (start + k)[None, :])
        right = tl.load(b + (start + k)[:, None] * N + columns[None, :])
        total = tl.dot(left, right, total, input_precision="ieee")
    tl.store(c + rows[:, None] * N + columns[None, :], total)


@triton.jit
def attention(
    q, k, v, o, SCALE: tl.constexpr, LENGTH: tl.constexpr, WIDTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    """All of a head's attention in one kernel, with the running softmax of flash attention."""
    head = tl.program_id(1) * LENGTH * WIDTH
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.arange(0, WIDTH)
    queries = tl.load(q + head + rows[:, None] * WIDTH + columns[None, :]) * SCALE
    most = tl.full((BM,), float("-inf"), tl.float32)
    weight = tl.zeros((BM,), tl.float32)
    total = tl.zeros((BM, WIDTH), tl.float32)
    for start in range(0, LENGTH, BN):
        keys = start + tl.arange(0, BN)
        transposed = tl.load(k + head + keys[None, :] * WIDTH + columns[:, None])
        scores = tl.dot(queries, transposed, input_precision="ieee")
        larger = tl.maximum(most, tl.max(scores, 1))
        powers = tl.exp(scores - larger[:, None])
        shrink = tl.exp(most - larger)
        weight = weight * shrink + tl.sum(powers, 1)
        values = tl.load(v + head + keys[:, None] * WIDTH + columns[None, :])
        total = tl.dot(powers, values, total * shrink[:, None], input_precision="ieee")
        most = larger
    tl.store(o + head + rows[:, None] * WIDTH + columns[None, :], total / weight[:, None])
