"""Batches: thousands of candidates compiled side by side, whatever becomes of each, and gone on with after a kill.

    candidates  what is compiled: from files, folders, JSON lines, Python
    job         what is done for one candidate, and what is known of it then
    check       whether a kernel does what it means
    children    a job in a process of its own, with limits of time and memory
    warm        what makes that quick
    pool        the standard process pool, tied to the process that made it
    journal     the results on disk, a line each, of which none is lost or doubled
    runner      the batch: submits, collects, survives workers that die

docs/batch.md says what a user should know.
"""

from ptxc.batching.candidates import Candidate
from ptxc.batching.children import Limits
from ptxc.batching.journal import results
from ptxc.batching.runner import Progress, Summary, batch

__all__ = ["Candidate", "Limits", "Progress", "Summary", "batch", "results"]
