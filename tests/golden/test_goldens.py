"""Whole compilations, byte for byte: the folders of ``golden/``, as ``golden/goldens.toml`` lists them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import PACKAGES, ROOT, SHARED

import ptxc
from ptxc.ir.kernel import Kernel
from ptxc.ir.text import format_kernel

FOLDER = ROOT / "golden"
GOLDENS: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "goldens.toml").read_text())
INPUT = "kernel.ir.json"
CORPUS = SHARED / "bench15"


def outputs(name: str, verify: bool = True) -> dict[str, str]:
    """The files that a golden's folder should hold beside its input, in the order in which they are made."""
    table = GOLDENS[name]
    files = {}

    def dump(rank: int, pass_name: str, kernel: Kernel) -> None:
        files[f"{rank}-{pass_name}.ir"] = format_kernel(kernel)

    options = {"target": table.get("target", "sm_89"), "verify_each": verify, **table.get("options", {})}
    dumped = table.get("dump", False)
    (kernel,) = ptxc.compile(FOLDER / name / INPUT, observe=dump if dumped else None, **options)
    if dumped:
        assert kernel.launch is not None
        files["launch.json"] = json.dumps(kernel.launch.to_dict(), indent=2) + "\n"
    files["out.ptx"] = kernel.ptx
    return files


@pytest.mark.parametrize("name", GOLDENS)
def test_golden(name: str, golden: Callable[[Path, str | None], None]) -> None:
    folder = FOLDER / name
    if "source" in GOLDENS[name] and CORPUS.is_dir():
        golden(folder / INPUT, (CORPUS / "kernels" / GOLDENS[name]["source"]).read_text())
    files = outputs(name)
    for file, text in files.items():
        golden(folder / file, text)
    for path in folder.iterdir():
        if path.name not in (INPUT, *files):
            golden(path, None)


def test_every_folder_is_listed() -> None:
    assert {path.name for path in FOLDER.iterdir() if path.is_dir()} == GOLDENS.keys()


def test_goldens_show_all_of_the_corpus(shared: Path) -> None:
    """Each statement, expression, operator, operation and feature that the corpus's manifest counts is in a golden."""
    manifest = json.loads((shared / "bench15" / "MANIFEST.json").read_text())
    shown = {f"kernels/{table['source']}" for table in GOLDENS.values() if "source" in table}
    kinds = ("stmts", "exprs", "binops", "elementwise", "features")
    missing: set[tuple[str, str]] = set()
    there: set[tuple[str, str]] = set()
    for entry in manifest["files"]:
        if set(entry["non_core"]) <= {"Let", "Select", "WarpBroadcast", "ZeroPrologue"}:
            used = {(kind, what) for kind in kinds for what in entry[kind]}
            there, missing = (there | used, missing) if entry["file"] in shown else (there, missing | used)
    assert not missing - there


def test_goldens_do_not_depend_on_hashes() -> None:
    """Strings hash differently in each process; what is compiled must not differ."""
    digests = [
        subprocess.run(
            [sys.executable, Path(__file__)],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": f"{PACKAGES}:{ROOT / 'tests'}"},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.splitlines()
        for seed in ("0", "1", "2")
    ]
    assert len(digests[0]) == len(GOLDENS)
    assert digests[0] == digests[1] == digests[2]


if __name__ == "__main__":
    for each in GOLDENS:
        text = "\n".join(f"{file}\n{content}" for file, content in outputs(each, verify=False).items())
        print(each, hashlib.sha256(text.encode()).hexdigest())
