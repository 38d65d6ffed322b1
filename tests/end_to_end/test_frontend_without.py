"""The benchmark's patches that leave out an optimisation of the frontend: what they leave computes the same."""

from __future__ import annotations

import pytest
from conftest import patches
from frontend_without import WITHOUT
from test_golden_values import GOLDENS, check, compiled

pytestmark = patches

#: A golden for each that it changes, and others.
CHANGES = {
    "unrolling": "softmax_fast",
    "rounds": "sum_serial_dynamic",
    "limits of unrolling": "softmax_fast",
    "starts within a step": "big_sum_split",
    "counted units": "matmul_scalar",
    "small bodies": "big_sum_serial",
    "large bodies": "matmul_dynamic_raster",
    "nounroll": "attention_row",
    "sparing registers": "mma_attention_causal",
    "constants of descriptors": "wgmma_matmul",
    "epilogues in blocks": "mma_linear_residual",
    "non-coherent loads": "softmax_rows",
    "order of loads": "mma_many_accumulators",
    "base plus offset": "attention_row",
    "shared products": "vector_add_tail",
    "32-bit indices": "rms_norm",
    "value ranges": "matmul_pipeline_raster",
    "quotients put together": "write_swizzle_vec4_B32",
    "empty copies": "matmul_dynamic_async",
    "swizzle parts": "cpasync_swizzle_B128",
    "remembered registers": "matmul_pipeline_raster",
    "vector accesses": "scalar_add_vec4",
    "resident CTAs": "matmul_carried",
}
OTHERS = ["cond_else", "cpasync_swizzle_B64", "l2_norm", "named_barrier", "rms_norm", "scan"]


def test_each_is_tried() -> None:
    assert CHANGES.keys() == WITHOUT.keys()


@pytest.mark.parametrize("name", WITHOUT)
def test_it_changes_what_it_says_for_as_long_as_it_lasts(name: str) -> None:
    golden = CHANGES[name]
    usual = compiled(golden).ptx
    with WITHOUT[name].applied():
        assert compiled(golden).ptx != usual
    assert compiled(golden).ptx == usual


@pytest.mark.parametrize("name", WITHOUT)
def test_kernels_compute_the_same(name: str) -> None:
    for golden in dict.fromkeys([CHANGES[name], *OTHERS]):
        with WITHOUT[name].applied():
            kernel = compiled(golden, verify_each=True)
        check(golden, kernel, GOLDENS[golden].get("sizes", [{}])[-1])
