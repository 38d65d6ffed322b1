"""The Python API from many threads: an autotuner compiles its candidates so."""

from __future__ import annotations

import subprocess
import sys

from conftest import ROOT

SCRIPT = """
import gc, sys, threading
from concurrent.futures import ThreadPoolExecutor
import ptxc
sys.setswitchinterval(1e-5)
start = threading.Barrier(8)
def compile(index):
    start.wait()
    return [kernel.ptx for kernel in ptxc.compile(sys.argv[1 + index % (len(sys.argv) - 1)])]
with ThreadPoolExecutor(8) as pool:
    texts = list(pool.map(compile, range(8)))
again = [[kernel.ptx for kernel in ptxc.compile(path)] for path in sys.argv[1:]]
assert all(text == again[index % len(again)] for index, text in enumerate(texts))
assert gc.isenabled()
"""


def test_the_first_kernels_may_be_compiled_by_many_threads_at_once() -> None:
    paths = [str(ROOT / "golden" / name / "kernel.ir.json") for name in ("row_sum_tree", "softmax_rows")]
    for _ in range(3):
        result = subprocess.run([sys.executable, "-P", "-c", SCRIPT, *paths], capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
