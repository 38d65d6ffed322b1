"""What the corpus's problems compute at sizes that it has no references of: other runtime sizes, and the full sizes."""

from __future__ import annotations

import numpy as np
from bench15 import Run, reference, reference_file
from launching import Array, Arrays
from meanings import computed
from reference import inputs

from ptxc.compilation import CompiledKernel

#: What is computed where a size is known at run time, by problem and size.
DYNAMIC = {
    "p00_scalar_add.dyn_n": "x + 2.5",
    "p01_vector_add.dyn_n": "x + y",
    "p02_scale_shift.dyn_n": "x * 1.5 - 0.25",
    "p02_scale_shift.channel_dyn": "x * scale + shift",
    "p03_relu_mul.dyn_n": "np.maximum(x, 0) * w",
    "r01_array_sum.dyn_n": "x.sum(keepdims=True)",
    "r04_row_sum.dyn_k": "x.sum(1)",
    "r04_row_sum.dyn_m": "x.sum(1)",
    "f01_rmsnorm.dyn_k": "rms_norm(x, w)",
    "f01_rmsnorm.dyn_m": "rms_norm(x, w)",
    "f02_row_softmax.dyn_k": "softmax(x)",
    "f02_row_softmax.dyn_m": "softmax(x)",
    "f03_l2norm.dyn_k": "l2_norm(x)",
    "f03_l2norm.dyn_m": "l2_norm(x)",
    "m01_matmul_512.dyn_m": "a @ b",
    "m02_matmul_rect.dynlinear_m": "a @ w.T",
    "a01_attention.dyn_seq": "attention(q, k, v)",
}
#: And in full sizes.
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


def case(run: Run, kernels: list[CompiledKernel]) -> tuple[Arrays, dict[str, Array]] | None:
    """A run's inputs, and in float64 what its outputs should be: of the corpus; those that it leaves out are as
    it would make them.

    None where nothing says what a run of its size computes.
    """
    if reference_file(run).exists():
        arrays, expected = reference(run)
        return dict(arrays), expected
    if run.name not in FULL:
        return None
    arrays = inputs(kernels, {}, tag=f"{run.name}:")
    (output,) = (p.name for p in kernels[-1].launch.parameters if p.role == "output")  # type: ignore[union-attr]
    return arrays, {output: np.asarray(computed(FULL[run.name], arrays))}
