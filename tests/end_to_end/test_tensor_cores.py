"""nvcc's PTX of Emmy's kernels for tensor cores and TMA computes on the CPU device what it should, with no findings.

By default one kernel of each kind; ``PTXC_WHOLE_CORPUS=1`` takes all products, linears and attentions.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from bench15 import WHOLE
from tensor_cores import FOLDER, compile_with_nvcc, error_of, execute, manifest
from tolerances import of_kernel

from ptxc.frontend.reader import kernel_nodes, read_graph

SAMPLE = (
    "v100_sm70.008.",  # m8n8k4
    "rtx4080_sm89.005.",  # ldmatrix, m16n8k16
    "h100_sm90.005.",  # wgmma, both matrices by TMA
    "h100_sm90.033.",  # wgmma with A in registers, attention
    "rtx5090_sm120.010.",  # TMA of three dimensions, two swizzles
    "rtx5090_sm120.054.",  # causal attention
    "rtx5090_sm120.133.",  # block-scaled fp4
)


def _chosen() -> list[str]:
    if not WHOLE:
        return [file for file in manifest() if file.startswith(SAMPLE)]
    kinds = ("matmul.", "attention.", "linear.", "nvfp4")
    return [file for file, row in manifest().items() if any(kind in row["row"] for kind in kinds)]


@pytest.mark.needs("nvcc")
@pytest.mark.parametrize("file", _chosen())
def test_nvcc_text(file: str, tmp_path: Path) -> None:
    ptx, meta = compile_with_nvcc(file, tmp_path)
    outputs = [argument for argument in meta["args"] if argument["kind"] == "output"]
    if len(outputs) > 1 or meta["zero_outputs"] or outputs[0]["name"].endswith("__partial"):
        pytest.skip("a part of a product")
    run = execute(ptx, meta, 2)
    assert run.result.completed
    # Emmy's attention for the H100 feeds wgmma by cp.async without the fence that the ISA asks for.
    known = "no fence.proxy.async" if "attention" in manifest()[file]["row"] else "none"
    findings = [str(finding) for finding in run.result.findings if known not in finding.message]
    assert not findings, "\n".join(findings)
    (node,) = kernel_nodes(read_graph(FOLDER / file))
    assert error_of(run, manifest()[file]["row"]) < of_kernel(node.op, [outputs[0]["dtype"]], run.arrays)
