"""What kernels of the corpus compute, by plain NumPy: products of matrices with what is before and after them.

A kernel is known by its buffers' names without what tells placements apart. ``expected`` computes the elements of an
output that a sample of CTAs wrote, from the rows and columns of the operands that they need and no more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from emmy.compiler.dtype import decode_f4x2

from ptxc.reference.buffers import Array, Problem, decoded, encoded

#: Computes a matrix' elements at rows and columns.
Part = Callable[[Array, Array], Array]


def key(inputs: Iterable[str], outputs: Iterable[str]) -> str:
    """The buffers' names, without what tells kernels of one program apart."""
    return re.sub(r"__place_[0-9a-f]+", "", f"{' '.join(inputs)} -> {' '.join(outputs)}")


def times(x: Array, w: Array) -> Part:
    """``x @ w``."""
    return lambda rows, columns: x[rows] @ w[:, columns]


def times_rows(x: Array, w: Array) -> Part:
    """``x @ w.T``."""
    return lambda rows, columns: x[rows] @ w[columns].T


def silu_times(gate: Part, up: Part, one: Array) -> Part:
    """The one in the sigmoid is a buffer of the kernel's."""

    def part(rows: Array, columns: Array) -> Array:
        g = gate(rows, columns)
        result: Array = g / (one.item() + np.exp(-g)) * up(rows, columns)
        return result

    return part


def scaled(part: Part, *scales: Array) -> Part:
    return lambda rows, columns: part(rows, columns) * np.prod([scale.item() for scale in scales])


def plus(part: Part, *others: Array) -> Part:
    return lambda rows, columns: part(rows, columns) + sum(other[np.ix_(rows, columns)] for other in others)


def of_blocks(x: Array, bits: Array, scale: Array) -> Part:
    """``x @ (bits * scale).T``, a scale for each 128 x 128 block."""
    scale = scale[:, 0, :, 0]

    def part(rows: Array, columns: Array) -> Array:
        result: Array = x[rows] @ (bits[columns] * np.repeat(scale[columns // 128], 128, axis=1)).T
        return result

    return part


def of_pairs(x: Array, x_scale: Array, w: Array, w_scale: Array, *scales: Array) -> Part:
    """A product of pairs of e2m1 with a scale for each 16, whose sign does not count."""

    def numbers(pairs: Array, scale: Array) -> Array:
        values: Array = decode_f4x2(pairs.astype(np.uint8)).astype(np.float64)
        result: Array = values * np.repeat(np.abs(scale), 16, axis=-1)
        return result

    def part(rows: Array, columns: Array) -> Array:
        a = numbers(x.reshape(-1, x.shape[-1])[rows], x_scale.reshape(-1, w_scale.shape[-1])[rows])
        result: Array = a @ numbers(w[columns], w_scale[columns]).T
        return result

    return scaled(part, *scales)


def attention(q: Array, k: Array, v: Array, scale: Array, causal: bool) -> Part:
    """Rows are those of all heads below one another."""
    length = q.shape[-2]

    def part(rows: Array, columns: Array) -> Array:
        found = []
        for row in rows:
            head, at = divmod(int(row), length)
            group = head // (q.shape[1] // k.shape[1])
            seen = at + 1 if causal else k.shape[-2]
            scores = k[0, group, :seen] @ q[0, head, at] * scale.item()
            powers = np.exp(scores - scores.max())
            found.append(powers / powers.sum() @ v[0, group, :seen][:, columns])
        return np.array(found)

    return part


#: By the key: the outputs, from the inputs in order.
PRODUCTS: dict[str, Callable[..., Sequence[Part]]] = {
    "x1 x0 -> matmul": lambda x1, x0: [times(x0, x1)],
    "x1 x0 -> linear": lambda x1, x0: [times_rows(x0, x1)],
    "linear_wt input -> linear": lambda w, x: [times(x, w)],
    "reshape_0 linear_wt -> reshape": lambda x, w: [times(x, w)],
    "reshape_0 linear_wt -> reshape_0": lambda x, w: [times(x, w)],
    "add_2_0 linear_3_wt -> add_2_0": lambda x, w: [times(x, w)],
    "add_2_0 linear_3_wt__source -> add_2_0": lambda x, w: [times_rows(x, w)],
    "reshape_0 linear_2_wt linear_1_wt -> reshape_1 reshape_2": lambda x, w2, w1: [times(x, w1), times(x, w2)],
    "add_2_0 linear_1_wt linear_2_wt -> add_2_0 add_2_1": lambda x, w1, w2: [times(x, w1), times(x, w2)],
    "reshape_0 linear_6_wt linear_3_wt -> reshape_0 reshape_1": lambda x, w6, w3: [times(x, w3), times(x, w6)],
    "add_7_0 linear_4_wt linear_5_wt -> add_7_0 add_7_1": lambda x, w4, w5: [times(x, w4), times(x, w5)],
    "add_7_0 linear_1_wt linear_2_wt -> add_7_0 add_7_0": lambda x, w1, w2: [times(x, w2), times(x, w1)],
    "add_7_0 linear_wt__source -> add_7_0": lambda x, w: [times_rows(x, w)],
    "add_7_0 linear_2_wt__source -> add_7_0": lambda x, w: [times_rows(x, w)],
    "add_7_0 linear_3_wt__source -> add_7_0": lambda x, w: [times_rows(x, w)],
    "add_7_0 linear_6_wt__source -> add_7_0": lambda x, w: [times_rows(x, w)],
    "add_2_0 silu_one linear_1_wt linear_2_wt -> add_2_0": lambda x, one, w1, w2: [
        silu_times(times(x, w1), times(x, w2), one)
    ],
    "add_7_0 silu_one linear_4_wt__source linear_5_wt__source -> add_7_0": lambda x, one, w4, w5: [
        silu_times(times_rows(x, w4), times_rows(x, w5), one)
    ],
    "add_2_0 add_2_0 add_2_0 residual linear_3_wt -> add_2": lambda x, _, y, r, w: [plus(times(x, w), y, r)],
    "add_3_0 add_3_0 add_3_0 residual p_mlp_down_proj_weight_bits p_mlp_down_proj_weight_scale -> add_3": (
        lambda x, _, y, r, w, s: [plus(of_blocks(x, w, s), y, r)]
    ),
    "p_o_proj_weight_bits gate p_o_proj_weight_scale attn_out -> add_3_0": lambda w, g, s, x: [
        of_blocks(x / (1 + np.exp(-g)), w, s)
    ],
    "add_2_0 p_o_proj_weight_scale attn_out_static_fp8_scale p_o_proj_weight_bits -> add_2_0": lambda x, s, t, w: [
        scaled(times_rows(x, w), s, t)
    ],
    "add_2_0 add_2_0 add_2_0 add_2_0 silu_one p_mlp_down_proj_weight_scale mul_2_static_fp8_scale residual "
    "p_mlp_down_proj_weight_bits -> add_2": lambda y, a, x, b, _, s, t, r, w: [
        plus(scaled(times_rows(x, w), s, t), y, r)
    ],
    "add_2_0 add_2_0 silu_one mul_2_static_fp8_scale mean_count residual add_1_c1 p_mlp_gate_proj_weight_scale "
    "mul_1_static_fp8_scale p_mlp_gate_proj_weight_bits p_mlp_up_proj_weight_scale p_mlp_up_proj_weight_bits -> "
    "add_2_0": (
        lambda y, x, one, q, m, r, c, gs, t, g, us, u: [
            scaled(silu_times(scaled(times_rows(x, g), gs, t), scaled(times_rows(x, u), us, t), one), 1 / q)
        ]
    ),
    "reshape_0 reshape_0 mean_count hidden add_c1 mul_1_static_fp8_scale p_q_proj_weight_scale p_q_proj_weight_bits -> "
    "reshape": lambda y, x, m, h, c, t, s, w: [scaled(times_rows(x, w), s, t)],
    "reshape_0 p_v_proj_weight_scale mul_1_static_fp8_scale p_v_proj_weight_bits p_k_proj_weight_scale "
    "p_k_proj_weight_bits -> reshape_1 reshape_2": lambda x, vs, t, v, ks, k: [
        scaled(times_rows(x, k), ks, t), scaled(times_rows(x, v), vs, t),
    ],
    "p_mlp_down_proj_weight_scale_2 mul_3_static_fp4_scale_2 p_mlp_down_proj_weight_scale_bits "
    "mul_3_static_fp4_scale_bits p_mlp_down_proj_weight_bits mul_3_static_fp4_bits p_mlp_down_proj_weight_f4_pairs "
    "mul_3_static_fp4_bf16_f4_pairs add -> add_3": lambda a, b, ws, xs, w, x, p, q, y: [
        plus(of_pairs(x, xs, w, ws, a, b), y)
    ],
    "p_v_proj_weight_scale_2 type_as_static_fp4_scale_2 p_v_proj_weight_scale_bits type_as_static_fp4_scale_bits "
    "p_v_proj_weight_bits type_as_static_fp4_bits p_v_proj_weight_f4_pairs type_as_static_fp4_bf16_f4_pairs -> "
    "reshape_2": lambda a, b, ws, xs, w, x, p, q: [of_pairs(x, xs, w, ws, a, b)],
    "p_block_mlp_gate_proj_weight_scale_2 type_as_1_static_fp4_scale_2 p_block_mlp_gate_proj_weight_scale_bits "
    "type_as_1_static_fp4_scale_bits p_block_mlp_gate_proj_weight_bits type_as_1_static_fp4_bits "
    "p_block_mlp_gate_proj_weight_f4_pairs type_as_1_static_fp4_bf16_f4_pairs p_block_mlp_up_proj_weight_scale_2 "
    "p_block_mlp_up_proj_weight_scale_bits p_block_mlp_up_proj_weight_bits p_block_mlp_up_proj_weight_f4_pairs -> "
    "mul_18_static_fp4_scale_bits_0 mul_18_static_fp4_scale_bits_1": lambda a, b, gs, xs, g, x, p, q, c, us, u, r: [
        of_pairs(x, xs, u, us, c, b), of_pairs(x, xs, g, gs, a, b),
    ],
    "reshape_0 v_a k_a q_a -> reshape_0 reshape_0 reshape_1": lambda x, v, k, q: [
        times_rows(x, q), times_rows(x, v), times_rows(x, k),
    ],
    "scaled_dot_product_attention_scale x1 x0 x2 -> scaled_dot_product_attention": lambda s, k, q, v: [
        attention(q, k, v, s, False)
    ],
    "scaled_dot_product_attention_scale scaled_dot_product_attention_mask_fill_c "
    "scaled_dot_product_attention_mask_zero_c x1 x0 x2 -> scaled_dot_product_attention": lambda s, _, z, k, q, v: [
        attention(q, k, v, s, True)
    ],
}  # fmt: skip


#: Sums over a part of the reduced dimension: the operands of each product, the second as ``x @ w`` takes it.
PARTIAL: dict[str, Callable[..., tuple[Array, list[Array]]]] = {
    "x1 x0 -> linear__partial": lambda x1, x0: (x0, [x1.T]),
    "linear_wt input -> linear__partial": lambda w, x: (x, [w]),
    "reshape_0 linear_wt -> reshape_0__partial": lambda x, w: (x, [w]),
    "reshape_0 linear_wt -> reshape__partial": lambda x, w: (x, [w]),
    "add_2_0 linear_3_wt -> add_2_0__partial": lambda x, w: (x, [w]),
    "reshape_0 linear_6_wt linear_3_wt -> reshape_0__partial": lambda x, w6, w3: (x, [w3, w6]),
    "reshape_0 linear_2_wt__source linear_1_wt__source -> reshape_1__partial": lambda x, w2, w1: (x, [w1.T, w2.T]),
}


def sums(operands: tuple[Array, list[Array]], parts: int) -> Part:
    """The products below one another, of each all parts."""
    x, others = operands
    size = x.shape[1] // parts

    def part(rows: Array, columns: Array) -> Array:
        found = []
        for row in rows:
            rest, at = divmod(int(row), x.shape[0])
            which, number = divmod(rest, parts)
            reduced = slice(number * size, (number + 1) * size)
            found.append(x[at, reduced] @ others[which][reduced, columns])
        return np.array(found)

    return part


def numbers(problem: Problem, name: str) -> Array:
    """An input in float64; pairs of e2m1 are bytes."""
    return decoded(problem.begin[name], problem.buffers[name].dtype).astype(np.float64)


def compare(problem: Problem, outputs: dict[str, Array], inputs: Sequence[str]) -> dict[str, tuple[int, float]]:
    """How many elements of each output were written, and the largest error relative to the root mean square."""
    named, arrays = key(inputs, outputs), [numbers(problem, name) for name in inputs]
    if named in PARTIAL:
        (output,) = outputs.values()
        parts: Sequence[Part] = [sums(PARTIAL[named](*arrays), output.shape[-3])]
    else:
        parts = PRODUCTS[named](*arrays)
    found = {}
    for (name, output), part in zip(outputs.items(), parts, strict=True):
        written = np.nonzero(~np.isnan(output))
        if not written[0].size:
            found[name] = (0, 0.0)
            continue
        row, column = _place(output.shape, written, name, problem)
        rows, at_row = np.unique(row, return_inverse=True)
        columns, at_column = np.unique(column, return_inverse=True)
        expected = part(rows, columns)[at_row, at_column]
        if problem.buffers[name].dtype == "f8e4m3":
            expected = decoded(encoded(expected, "f8e4m3"), "f8e4m3")
        scale = np.sqrt(np.mean(expected**2)) + 1e-300
        found[name] = (written[0].size, float(np.abs(output[written] - expected).max() / scale))
    return found


def _place(shape: tuple[int, ...], at: tuple[Any, ...], name: str, problem: Problem) -> tuple[Array, Array]:
    """The row and column of elements in the matrix that the output is, however it lies."""
    if name.endswith("__partial"):
        return np.ravel_multi_index(at[:-1], shape[:-1]), at[-1]
    if len(shape) == 4:  # heads
        return at[1] * shape[2] + at[2], at[3]
    if len(shape) == 3 and shape[0] == 8:  # heads first
        return at[1], at[0] * shape[2] + at[2]
    if len(shape) == 3:
        return at[0], at[1] * shape[2] + at[2]
    return (at[1], at[0]) if shape == (1024, 512) else (at[0], at[1])
