"""A progress bar, where there is a terminal to show it on and something to wait for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn


def is_shown() -> bool:
    """Whether there is a terminal for a bar."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def progress(total: int, what: str) -> Iterator[Callable[[], None]]:
    """A bar of ``total`` steps on standard error; what it yields says that one is done.

    It is gone at the end. What is written to standard error meanwhile appears above it.
    """
    if total < 2 or not is_shown():
        yield lambda: None
        return
    from rich.progress import MofNCompleteColumn, TimeRemainingColumn

    with _bar(MofNCompleteColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


@contextmanager
def tally(total: int | None, what: str) -> Iterator[Callable[[int, int, float], None]]:
    """A bar of ``total`` candidates, with failures, rate and time left; told how many are done and failed, and how many
    a second."""
    if not is_shown():
        yield lambda done, failed, rate: None
        return
    from rich.progress import MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    figures = TextColumn("{task.fields[failed]} failed, {task.fields[rate]:.1f}/s")
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with _bar(MofNCompleteColumn(), figures, *times) as bar:
        task = bar.add_task(what, total=total, failed=0, rate=0.0)
        yield lambda done, failed, rate: bar.update(task, completed=done, failed=failed, rate=rate)


@contextmanager
def share(what: str) -> Iterator[Callable[[float], None]]:
    """A bar that is told the share that is done, 0 to 1. It moves to and fro while that is 0, and counts the time."""
    from rich.progress import TaskProgressColumn, TimeElapsedColumn, TimeRemainingColumn

    with _bar(TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done: bar.update(task, total=1.0 if done > 0 else None, completed=done)


def _bar(*columns: ProgressColumn) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    first = (TextColumn("{task.description}"), BarColumn())
    return Progress(*first, *columns, console=console, transient=True, redirect_stdout=False)
