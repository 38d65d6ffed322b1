"""Emmy's own CUDA text of kernels of the corpus, compiled by nvcc: what ptxc's PTX is compared with."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench15 import FOLDER
from conftest import SHARED

from ptxc.toolchain import Resources, assemble

TOOL = SHARED / "tools" / "emmy_reference.py"


def resources(files: Sequence[str], target: str, tool: Path = TOOL) -> list[Resources]:
    """What ptxas says of nvcc's PTX of the kernels in ``files``, each of one kernel."""
    with tempfile.TemporaryDirectory(prefix="ptxc-") as folder:
        links = [Path(folder, f"{index}.json") for index in range(len(files))]
        for link, file in zip(links, files):
            link.symlink_to(FOLDER / file)
        subprocess.run([sys.executable, tool, *links, "--target", target, "--out", folder, "--ptx"], check=True)
        found = []
        for link in links:
            (kernel,) = assemble(link.with_suffix(".ptx").read_text(), target).kernels.values()
            found.append(kernel)
        return found
