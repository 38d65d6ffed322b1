"""Emmy's settings, which are the process's (its target, the knobs in the environment), and its failures."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ptxc.errors import CompileError, UnsupportedError

#: Emmy has one target, and one environment.
_lock = threading.RLock()


@contextmanager
def emmys_target(target: str) -> Iterator[None]:
    """Emmy's target is ``target`` in here, and then what it was; one thread at a time, which may nest uses."""
    from emmy.compiler import target as emmys

    with _lock:
        before = getattr(emmys, "_OVERRIDE", None)
        emmys.set_target(emmys.parse_sm(target.rstrip("af")))
        try:
            yield
        finally:
            emmys.set_target(before)


@contextmanager
def no_ambient_knobs() -> Iterator[None]:
    """None of Emmy's knobs is pinned by the environment in here; for who holds :func:`emmys_target`."""
    from emmy import config
    from emmy.compiler.pipeline.knob import registry

    known = {config.knob_var(name) for name in registry()} | {config.KNOBS, config.READABLE}
    ambient = {name: os.environ[name] for name in [*os.environ] if name.partition("@")[0] in known}
    for name in ambient:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(ambient)


@contextmanager
def emmys_failures(what: str) -> Iterator[None]:
    """Make an UnsupportedError of whatever Emmy raises, which is whatever is at hand; ``what`` of Emmy's fails then."""
    try:
        yield
    except CompileError:
        raise
    except Exception as error:
        failed = f"Emmy's {what} fails: {type(error).__name__}: {str(error)[:500]}"
        raise UnsupportedError(failed, hint="see what `emmy compile` says of it") from error
