"""Batches of programs under varied pins, which Emmy's passes make kernels of."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from emmy_lab import linear

import ptxc
from ptxc.batching import results


def test_a_program_under_varied_pins(tmp_path: Path) -> None:
    pins: list[dict[str, str]] = [{}, {"WORK": "t64", "REDUCE": "coop"}, {"REDUCE": "nonsense"}]
    candidates = [ptxc.Candidate(linear(), {"pins": pin}, f"{pin}") for pin in pins]
    with ThreadPoolExecutor(1) as executor:
        ptxc.batch(candidates, tmp_path, executor=executor, target="sm_80", check="all")
        again = ptxc.batch(candidates, tmp_path, executor=executor, target="sm_80", check="all")
    assert (again.ok, again.failed, again.before) == (2, 1, 3)
    found = {record["input"]: record for record in results(tmp_path)}
    for pin in pins[:2]:
        record = found[f"{pin}"]
        assert (record["status"], record["checked"]) == ("ok", "values")
        (kernel,) = ptxc.compile(linear(), target="sm_80", pins=pin)
        assert (tmp_path / record["ptx"]).read_text() == kernel.ptx
    assert len({record["key"] for record in found.values()}) == 3
    assert found[f"{pins[2]}"]["error"]["type"] == "UsageError"
