"""The corpus's kernels with runtime sizes, at other sizes than those of its references: ragged grids, single rows."""

from __future__ import annotations

import pytest
from bench15 import Run, runs, sample
from launching import error, run
from reference import computed, inputs

#: What is computed, by problem and size: the expression, the runtime integer, and the values that it takes.
PROBLEMS = {
    "p00_scalar_add.dyn_n": ("x + 2.5", "n", (1, 256, 4095)),
    "p01_vector_add.dyn_n": ("x + y", "n", (1, 257, 4096)),
    "p02_scale_shift.dyn_n": ("x * 1.5 - 0.25", "n", (1, 255, 3001)),
    "p02_scale_shift.channel_dyn": ("x * scale + shift", "m", (1, 8, 101)),
    "p03_relu_mul.dyn_n": ("np.maximum(x, 0) * w", "n", (1, 511, 1024)),
    "r01_array_sum.dyn_n": ("x.sum(keepdims=True)", "n", (1, 31, 2047)),
    "r04_row_sum.dyn_k": ("x.sum(1)", "k", (1, 33, 1000)),
    "r04_row_sum.dyn_m": ("x.sum(1)", "m", (1, 15, 130)),
    "f01_rmsnorm.dyn_k": ("rms_norm(x, w)", "k", (1, 31, 513)),
    "f01_rmsnorm.dyn_m": ("rms_norm(x, w)", "m", (1, 9)),
    "f02_row_softmax.dyn_k": ("softmax(x)", "k", (1, 31, 513)),
    "f02_row_softmax.dyn_m": ("softmax(x)", "m", (1, 9)),
    "f03_l2norm.dyn_k": ("l2_norm(x)", "k", (1, 31, 513)),
    "f03_l2norm.dyn_m": ("l2_norm(x)", "m", (1, 9)),
    "m01_matmul_512.dyn_m": ("a @ b", "seq_len", (1, 97)),
    "m02_matmul_rect.dynlinear_m": ("a @ w.T", "seq_len", (1, 97)),
    "a01_attention.dyn_seq": ("attention(q, k, v)", "seq_len", (1, 9, 33)),
}


def dynamic() -> list[Run]:
    """The corpus's runs of kernels with runtime sizes."""
    return [run for run in runs() if f"{run.problem}.{run.size}" in PROBLEMS]


@pytest.mark.parametrize("launches", sample(dynamic()), ids=str)
def test_sizes(launches: Run) -> None:
    expression, symbol, values = PROBLEMS[f"{launches.problem}.{launches.size}"]
    kernels = launches.compile()
    for value in values:
        arrays = inputs(kernels, {symbol: value})
        expected = computed(expression, arrays)
        assert not run(kernels, arrays)
        (output,) = (p.name for p in kernels[-1].launch.parameters if p.role == "output")  # type: ignore[union-attr]
        assert error(arrays[output], expected) <= 4e-6, value


def test_all_runtime_sizes_are_tried() -> None:
    assert {f"{run.problem}.{run.size}" for run in runs() if "dyn" in run.size} <= PROBLEMS.keys()
