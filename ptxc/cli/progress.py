"""A progress bar, where there is a terminal to show it on and something to wait for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(total: int, what: str) -> Iterator[Callable[[], None]]:
    """A bar of ``total`` steps on standard error; what it yields says that one is done.

    It is gone at the end. What is written to standard error meanwhile appears above it.
    """
    if total < 2 or sys.stderr is None or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)
