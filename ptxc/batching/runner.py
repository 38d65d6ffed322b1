"""The batch: candidates go to workers as these come free, outcomes to the journal as they come back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass, field
from typing import Any

from ptxc.batching.candidates import Task, name_of, task_of
from ptxc.batching.children import Limits, run_apart
from ptxc.batching.job import Built, build, failed
from ptxc.batching.journal import Journal
from ptxc.batching.pool import Given, Pool
from ptxc.compilation import check_flag, make_options
from ptxc.errors import CompileError, CrashError, UsageError

#: Candidates that are submitted and not back yet, at most: so many are in memory, and so many workers can be busy.
_FLYING = 256

#: How often a worker may die over a candidate, and a pool break with no outcome in between.
_TRIES = 4

#: What is done for a candidate.
type Job = Callable[[Task], list[Built]]


@dataclass(slots=True)
class Summary:
    """What became of the candidates."""

    ok: int = 0
    failed: int = 0
    #: Of both: known from an earlier run, and equal to another candidate of this one.
    before: int = 0
    duplicates: int = 0
    #: Of the failed, by status: ``error``, ``wrong``, ``timeout``, ``memory``, ``crash``.
    failures: dict[str, int] = field(default_factory=dict)
    #: The error of the first that failed, after what it is called.
    why: str = ""
    #: Seconds of wall-clock time.
    seconds: float = 0.0

    @property
    def total(self) -> int:
        """How many candidates there were."""
        return self.ok + self.failed


#: Told of the batch so far whenever that changed.
type Progress = Callable[[Summary], None]


def batch(
    candidates: Iterable[Any],
    out: str | os.PathLike[str],
    *,
    executor: Executor | None = None,
    jobs: int | None = None,
    assemble: bool = False,
    check: str = "",
    limits: Limits | None = None,
    retry_failed: bool = False,
    progress: Progress | None = None,
    job: Job = build,
    **options: Any,
) -> Summary:
    """Compile ``candidates`` to the folder ``out``, whatever becomes of each; go on with what is there already.

    A candidate is a :class:`~ptxc.batching.Candidate` or its source: Emmy's ``Graph``, a path, JSON. They are read one
    at a time. ``executor`` is anything that :mod:`concurrent.futures` calls one; by default a process pool of ``jobs``
    (the CPUs), which needs the ``if __name__ == "__main__":`` of :mod:`multiprocessing`. With ``assemble``, ptxas runs.
    ``check`` says which CTAs to execute and compare with what the kernel means: ``all``, or how many. ``job`` is what
    workers do for a candidate; ``options`` are the fields of :class:`~ptxc.compilation.Options`.

    A candidate's error is in its result, docs/batch.md says how. Raises UsageError for what is wrong with the call or
    the folder, CrashError where workers die again and again; then, as after a kill, the same call goes on.
    """
    started = time.monotonic()
    settings = (make_options(options), assemble, check)
    check_flag("assemble", assemble)
    check_flag("retry_failed", retry_failed)
    if jobs is not None and (type(jobs) is not int or jobs < 1):
        raise UsageError(f"jobs is a number of processes, not {jobs!r}", hint="as in jobs=8")
    if not isinstance(check, str):
        raise UsageError(f"check is a str, not {check!r}", hint="as in check='all' or check='4'")
    if check:
        from ptxc.reference.sample import Sample

        Sample.parse(check)
    with Journal(out) as journal:
        pool = Given(executor) if executor is not None else Pool(jobs or os.cpu_count() or 1)
        run = _Run(journal, pool, job, limits or Limits(), retry_failed, progress or (lambda summary: None))
        try:
            for number, candidate in enumerate(candidates):
                run.collect_ready()
                try:
                    task = task_of(candidate, number, *settings)
                except CompileError as error:
                    run.refuse(Task(name_of(candidate, number), str(error).encode(), *settings), error)
                else:
                    run.offer(task)
            run.collect_all()
        finally:
            run.abandon()
            pool.close()
    run.summary.seconds = time.monotonic() - started
    return run.summary


def work(job: Job, task: Task, limits: Limits) -> list[Built]:
    """What a worker does: the job in a process of its own. Errors are in what is returned."""
    try:
        return run_apart(job, task, limits)
    except CompileError as error:
        return [failed(task, error)]


@dataclass
class _Run:
    """A batch on its way."""

    journal: Journal
    pool: Given
    job: Job
    limits: Limits
    retry_failed: bool
    progress: Progress
    summary: Summary = field(default_factory=Summary)
    #: The digests of what workers have, and those who wait for it: the first submitted it.
    flying: dict[Future[list[Built]], str] = field(default_factory=dict)
    waiting: dict[str, list[Task]] = field(default_factory=dict)
    #: The digests of what this run did.
    done: set[str] = field(default_factory=set)
    #: How often a worker died over a candidate, and the pool broke since the last outcome.
    deaths: dict[str, int] = field(default_factory=dict)
    breaks: int = 0

    def offer(self, task: Task) -> None:
        """Submit a candidate, unless it is known what becomes of it. Waits while too many are flying."""
        if self._is_settled(task):
            self._count([task], "before")
        elif task.digest in self.waiting:
            self.waiting[task.digest].append(task)
        elif (known := self._known(task)) is not None:
            self.journal.add([(task, known)])
            self._count([task], "duplicates")
        else:
            while len(self.flying) >= _FLYING:
                self._collect()
            self.waiting[task.digest] = [task]
            self._submit(task.digest)

    def refuse(self, task: Task, error: CompileError) -> None:
        """Note a candidate that cannot be read."""
        if self._is_settled(task):
            self._count([task], "before")
            return
        self.journal.add([(task, [failed(task, error)])])
        self._count([task])

    def collect_ready(self) -> None:
        """Take what is back, without waiting: the next candidate may be long in coming."""
        self._take(wait(self.flying, timeout=0).done, [])

    def collect_all(self) -> None:
        """Wait for all that is flying."""
        while self.flying:
            self._collect()

    def abandon(self) -> None:
        """Have nobody begin what is flying still."""
        for future in self.flying:
            future.cancel()

    def _is_settled(self, task: Task) -> bool:
        """Whether there is a result that stays."""
        status = self.journal.status(task)
        return status is not None and (status == "ok" or not self._is_tried_again(task))

    def _is_tried_again(self, task: Task) -> bool:
        """Whether a failure that is known does not count: it is of an earlier run."""
        return self.retry_failed and task.digest not in self.done

    def _known(self, task: Task) -> list[Built] | None:
        """The outcome of an equal candidate."""
        outcome = self.journal.known(task)
        if outcome is None or (self._is_tried_again(task) and not all(built.is_ok for built in outcome)):
            return None
        return outcome

    def _submit(self, digest: str) -> None:
        try:
            future = self.pool.submit(work, self.job, self.waiting[digest][0], self.limits)
        except BrokenExecutor:
            self._take(wait(self.flying).done, [digest])
        else:
            self.flying[future] = digest

    def _collect(self) -> None:
        """Wait for an outcome, and take all that there are."""
        self._take(wait(self.flying, return_when=FIRST_COMPLETED).done, [])

    def _take(self, finished: Iterable[Future[list[Built]]], lost: list[str]) -> None:
        """Keep outcomes; submit what was ``lost`` with its worker again."""
        outcomes: dict[str, list[Built]] = {}
        again = []
        broken = bool(lost)
        for future in finished:
            digest = self.flying.pop(future)
            try:
                outcomes[digest] = future.result()
            except BrokenExecutor:
                broken = True
                lost.append(digest)
            except Exception as fault:
                if self._is_hopeless(digest):
                    outcomes[digest] = [failed(self.waiting[digest][0], _died(fault))]
                else:
                    again.append(digest)
        self._finish(outcomes)
        if broken and self.flying:  # the rest is lost as well
            self._take(wait(self.flying).done, [*lost, *again])
            return
        if broken:
            self._restart()
        for digest in (*lost, *again):
            self._submit(digest)

    def _finish(self, outcomes: dict[str, list[Built]]) -> None:
        """Keep outcomes, for all who wait for them."""
        found = [(self.waiting.pop(digest), outcome) for digest, outcome in outcomes.items()]
        if not found:
            return
        self.breaks = 0
        self.journal.add([(task, outcome) for tasks, outcome in found for task in {t.name: t for t in tasks}.values()])
        for tasks, _ in found:
            self.done.add(tasks[0].digest)
            self._count(tasks[:1])
            self._count(tasks[1:], "duplicates")

    def _count(self, tasks: Sequence[Task], how: str = "") -> None:
        """Count candidates whose results there are; ``how`` names what else they are."""
        for task in tasks:
            status = self.journal.status(task) or "error"
            if status == "ok":
                self.summary.ok += 1
            else:
                self.summary.failed += 1
                self.summary.failures[status] = self.summary.failures.get(status, 0) + 1
                self.summary.why = self.summary.why or self._why(task)
            if how:
                setattr(self.summary, how, getattr(self.summary, how) + 1)
        if tasks:
            self.progress(self.summary)

    def _why(self, task: Task) -> str:
        """The error of a candidate that failed."""
        for built in self.journal.known(task) or ():
            if not built.is_ok:
                known = {name: text for name, text in built.facts["error"].items() if name != "type"}
                return str(CompileError(known.pop("message"), file=task.name, **known))
        return ""

    def _is_hopeless(self, digest: str) -> bool:
        """Whether workers died over a candidate often enough, one more death counted."""
        self.deaths[digest] = self.deaths.get(digest, 0) + 1
        return self.deaths[digest] >= _TRIES

    def _restart(self) -> None:
        """Start the pool again. Raises CrashError where that is in vain."""
        self.breaks += 1
        if self.breaks >= _TRIES:
            hint = 'in a script, call it below `if __name__ == "__main__":`'
            raise CrashError(f"all workers died, {self.breaks} times", hint=hint)
        self.pool.restart()


def _died(fault: Exception) -> CrashError:
    return CrashError(f"its worker failed {_TRIES} times: {type(fault).__name__}: {fault}")
