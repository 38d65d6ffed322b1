"""The goldens compute the same at every optimisation level and without each of the passes that can be left out.

By default the showcases and the goldens that the CPU device executes quickly; ``PTXC_WHOLE_CORPUS=1`` takes all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench15 import WHOLE
from test_golden_values import FOLDER, GOLDENS, OPTIONAL, SHOWCASES, check, compiled

from ptxc.cli import main
from ptxc.passes.pipeline import TOP_LEVEL

#: The ways to compile less, by name.
WAYS: dict[str, dict[str, Any]] = {
    **{f"without {name}": {"disable": (name,)} for name in OPTIONAL},
    "without all": {"disable": tuple(OPTIONAL)},
    **{f"opt {level}": {"opt": level} for level in range(TOP_LEVEL)},
}

#: What runs longest, a tenth of a second of CPU and more; the others show the same statements.
SLOW = {
    "attention_cooperative", "big_sum_serial", "big_sum_split", "loops", "matmul_async_four_stages",
    "matmul_async_masked", "matmul_async_three_stages", "matmul_carried", "matmul_cooperative_vec4",
    "matmul_dynamic_async", "matmul_dynamic_raster", "matmul_ragged_raster", "mma_attention_causal",
    "mma_linear_fp8_weights", "mma_linear_nvfp4", "mma_matmul_f16", "mma_matmul_fp8", "norm_matmul",
}  # fmt: skip

#: The goldens of which a formula says what they compute, and the others.
COMPUTED = [name for name, table in GOLDENS.items() if "computes" in table and (WHOLE or name not in SLOW)]
OTHERS = [name for name, table in GOLDENS.items() if "computes" not in table]


def test_the_list_names_goldens() -> None:
    assert GOLDENS.keys() >= SLOW


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", COMPUTED)
def test_a_golden_computes(name: str, way: str) -> None:
    kernel = compiled(name, **WAYS[way], verify_each=name in SHOWCASES)
    check(name, kernel, GOLDENS[name].get("sizes", [{}])[-1])


@pytest.mark.parametrize("name", OTHERS)
def test_a_golden_without_a_formula_computes_the_same(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the same inputs as at the highest level, in one CTA."""
    table = GOLDENS[name]
    assert "options" not in table
    common = ["run", str(FOLDER / name / "kernel.ir.json"), "--target", table.get("target", "sm_89"), "--ctas", "1"]
    expected = str(tmp_path / "expected.npz")
    assert main([*common, "-o", expected]) == 0
    for way, options in WAYS.items():
        told = [f"--opt={options['opt']}"] if "opt" in options else [f"--disable={one}" for one in options["disable"]]
        assert main([*common, *told, "--expect", expected]) == 0, f"{way}:\n{capsys.readouterr().out}"
