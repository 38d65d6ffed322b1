"""The corpus's kernels at sizes that it has no references of: other runtime sizes, and the full sizes.

By default a sample of the former; ``PTXC_WHOLE_CORPUS=1`` takes all.
"""

from __future__ import annotations

import pytest
from bench15 import WHOLE, Run, reference_file, runs, sample
from launching import error, run
from reference import computed, inputs

Sizes = tuple[dict[str, int], ...]


def each(name: str, *values: int) -> Sizes:
    """A runtime integer's values, one after the other."""
    return tuple({name: value} for value in values)


#: What is computed, by problem and size, and the runtime integers to compute it with: ragged grids, single rows.
DYNAMIC: dict[str, tuple[str, Sizes]] = {
    "p00_scalar_add.dyn_n": ("x + 2.5", each("n", 1, 256, 4095)),
    "p01_vector_add.dyn_n": ("x + y", each("n", 1, 257, 4096)),
    "p02_scale_shift.dyn_n": ("x * 1.5 - 0.25", each("n", 1, 255, 3001)),
    "p02_scale_shift.channel_dyn": ("x * scale + shift", each("m", 1, 8, 101)),
    "p03_relu_mul.dyn_n": ("np.maximum(x, 0) * w", each("n", 1, 511, 1024)),
    "r01_array_sum.dyn_n": ("x.sum(keepdims=True)", each("n", 1, 31, 2047)),
    "r04_row_sum.dyn_k": ("x.sum(1)", each("k", 1, 33, 1000)),
    "r04_row_sum.dyn_m": ("x.sum(1)", each("m", 1, 15, 130)),
    "f01_rmsnorm.dyn_k": ("rms_norm(x, w)", each("k", 1, 31, 513)),
    "f01_rmsnorm.dyn_m": ("rms_norm(x, w)", each("m", 1, 9)),
    "f02_row_softmax.dyn_k": ("softmax(x)", each("k", 1, 31, 513)),
    "f02_row_softmax.dyn_m": ("softmax(x)", each("m", 1, 9)),
    "f03_l2norm.dyn_k": ("l2_norm(x)", each("k", 1, 31, 513)),
    "f03_l2norm.dyn_m": ("l2_norm(x)", each("m", 1, 9)),
    "m01_matmul_512.dyn_m": ("a @ b", each("seq_len", 1, 97)),
    "m02_matmul_rect.dynlinear_m": ("a @ w.T", each("seq_len", 1, 97)),
    "a01_attention.dyn_seq": ("attention(q, k, v)", each("seq_len", 1, 9, 33)),
}
FULL = {
    "p00_scalar_add.full_1048576": "x + 2.5",
    "p01_vector_add.full_1048576": "x + y",
    "p01_vector_add.odd_1000003": "x + y",
    "p02_scale_shift.full_1048576": "x * 1.5 - 0.25",
    "p02_scale_shift.odd_1000003": "x * 1.5 - 0.25",
    "p03_relu_mul.full_1048576": "np.maximum(x, 0) * w",
    "p03_relu_mul.odd_1000003": "np.maximum(x, 0) * w",
    "r02_big_sum.full_4194304": "x.sum(keepdims=True)",
    "r03_mean.full_1048576": "x.mean(keepdims=True)",
    "r04_row_sum.full_512x2048": "x.sum(1)",
    "f01_rmsnorm.full_512x2048": "rms_norm(x, w)",
    "f02_row_softmax.full_512x2048": "softmax(x)",
    "f03_l2norm.full_512x2048": "l2_norm(x)",
    "m01_matmul_512.full_512x512x512": "a @ b",
    "m02_matmul_rect.full_512x256x1024": "a @ b",
    "m02_matmul_rect.ragged_320x192x384": "a @ b",
    "a02_attention_128.full_1x8x64x128": "attention(q, k, v)",
    "a02_attention_128.full3_4x256x128": "attention(q, k, v)",
}
#: The largest relative error; more where a sum of a million random numbers is near zero.
BOUND = 4e-6
BOUNDS = {"r02_big_sum.full_4194304": 1e-5, "r03_mean.full_1048576": 1e-4}

PROBLEMS = DYNAMIC | {name: (expression, ({},)) for name, expression in FULL.items()}


@pytest.mark.parametrize(
    "launches", sample(run for run in runs() if run.name in (PROBLEMS if WHOLE else DYNAMIC)), ids=str
)
def test_sizes(launches: Run) -> None:
    expression, bindings = PROBLEMS[launches.name]
    kernels = launches.compile()
    for sizes in bindings:
        arrays = inputs(kernels, sizes)
        expected = computed(expression, arrays)
        assert not run(kernels, arrays)
        (output,) = (p.name for p in kernels[-1].launch.parameters if p.role == "output")  # type: ignore[union-attr]
        assert error(arrays[output], expected) <= BOUNDS.get(launches.name, BOUND), sizes


def test_all_runtime_sizes_are_tried() -> None:
    assert {run.name for run in runs() if "dyn" in run.size} <= PROBLEMS.keys()


def test_sizes_without_a_reference_are_tried() -> None:
    without = {run.name for run in runs() if not reference_file(run).exists()}
    assert {name for name in without if not name.startswith("x05_wide")} <= PROBLEMS.keys()
