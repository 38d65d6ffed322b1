"""Which missing barriers, waits and guards the CPU device detects.

    python benchmarks/mutation.py [--only TEXT]

From the PTX of each golden, each barrier, wait and guard is removed in turn, and the mutant is executed with all checks
on. It is detected where there is a finding, or else an output that differs from the original's. Prints by kernel how
many mutants there are and what detects them (one mutant may meet several checks), then the survivors, each with the
reason why it computes the same, and the share that is detected by kind. The exit status is 1 where a survivor has no
reason, or a mutant that has one is detected.

What a mutant is, how it is executed and the reasons are in ``tests/sim/mutation_lab.py`` and
``tests/sim/data/mutation.toml``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "sim")]

from mutation_lab import KINDS, SHOWCASES, Key, Subject, Verdict, explained, subjects  # noqa: E402

from ptxc.cli.progress import progress  # noqa: E402

#: What may be found, in the table's order: the checks, an endless loop, and outputs where no check finds anything.
WAYS = ("memory", "race", "init", "sync", "limit", "output")


def judge(chosen: Sequence[Subject]) -> list[Verdict]:
    """Execute all mutants."""
    verdicts = []
    with progress(sum(len(subject.mutants) for subject in chosen), "executing mutants") as advance:
        for subject in chosen:
            for mutant in subject.mutants:
                verdicts.append(subject.judge(mutant))
                advance()
    return verdicts


def report_kernels(verdicts: Sequence[Verdict]) -> None:
    """A line for each kernel."""
    print(f"{'kernel':31} mutants" + "".join(f"{way:>8}" for way in WAYS) + "  survive")
    for name in [*dict.fromkeys(verdict.mutant.key.kernel for verdict in verdicts), ""]:
        own = [verdict for verdict in verdicts if verdict.mutant.key.kernel == name or not name]
        counts = [sum(way in verdict.found for verdict in own) for way in WAYS]
        survivors = sum(verdict.survives for verdict in own)
        print(f"{name or 'all':31}{len(own):8}" + "".join(f"{n or '':8}" for n in counts) + f"{survivors or '':9}")


def report_survivors(verdicts: Sequence[Verdict], reasons: dict[Key, str]) -> bool:
    """What was not detected, and why. Whether all of that was known."""
    survivors = [verdict.mutant for verdict in verdicts if verdict.survives]
    print(f"\n{len(survivors)} survivors")
    for mutant in survivors:
        key = mutant.key
        why = " ".join(reasons.get(key, "NOT EXPLAINED").split())
        print(f"\n{key.kernel}, line {mutant.line}: {mutant.original}\n  {key.statement}\n  {why}")
    stale = [verdict.mutant for verdict in verdicts if not verdict.survives and verdict.mutant.key in reasons]
    for mutant in stale:
        print(f"\n{mutant.key.kernel}, line {mutant.line} is said to survive, and is detected: {mutant.original}")
    return not stale and all(mutant.key in reasons for mutant in survivors)


def report_kinds(verdicts: Sequence[Verdict]) -> None:
    """The share that is detected, by kind and in all."""
    print("\nkind     mutants  detected  removed")
    for kind, text in KINDS.items():
        _report_share(kind, [verdict for verdict in verdicts if verdict.mutant.key.kind == kind], text)
    counted = [verdict for verdict in verdicts if verdict.mutant.key.kind in ("barrier", "wait", "guard")]
    shown = [verdict for verdict in counted if verdict.mutant.key.kernel in SHOWCASES]
    _report_share("all", shown, "barriers, waits and guards of the showcases")
    _report_share("all", counted, "barriers, waits and guards")
    _report_share("all", verdicts, "fences and the ends of loops too")


def _report_share(name: str, verdicts: Sequence[Verdict], text: str) -> None:
    if verdicts:
        share = sum(not verdict.survives for verdict in verdicts) / len(verdicts)
        print(f"{name:8}{len(verdicts):8}{share:9.1%}   {text}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="goldens with this in their names")
    only = parser.parse_args().only
    verdicts = judge([subject for subject in subjects() if only in subject.name])
    report_kernels(verdicts)
    good = report_survivors(verdicts, explained())
    report_kinds(verdicts)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
