"""A batch in a process that tests kill: python batch_script.py CANDIDATES OUT LOG [SCHEDULER].

CANDIDATES are JSON lines. LOG gets a line for each candidate that is begun, its digest.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from functools import partial

from batch_lab import logged

from ptxc.batching import Limits, batch
from ptxc.batching.candidates import candidates_in
from ptxc.batching.pool import dask_cluster

#: Enough for the test's kernels on a busy machine, and not long to wait for.
LIMITS = Limits(float(os.environ.get("BATCH_SECONDS", "8")), 1 << 30)


def main(candidates: str, out: str, log: str, scheduler: str = "") -> None:
    with dask_cluster(scheduler) if scheduler else nullcontext() as executor:
        assemble = bool(os.environ.get("BATCH_ASSEMBLE"))
        job = partial(logged, log)
        print(
            batch(
                candidates_in([candidates]), out, executor=executor, jobs=2, assemble=assemble, limits=LIMITS, job=job
            )
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
