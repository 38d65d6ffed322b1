"""``ptxc cache``: what is kept of earlier compilations."""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ptxc.cli.arguments import Commands, examples
from ptxc.cli.files import show
from ptxc.cli.messages import printable, say, table
from ptxc.errors import UsageError

if TYPE_CHECKING:
    from ptxc.store import Entry, Store

_DESCRIPTION = """\
Shows, empties and checks the folder in which ptxc keeps results, so that what was compiled or assembled once is not
again: $PTXC_CACHE_DIR, else ptxc's folder where this platform has its users' caches. $PTXC_CACHE_SIZE bounds it, 1G
where it is not set; with 0 nothing is kept. What was not used for longest goes first.

  info      the folder, its limit, and how much is in it
  list      the entries, the one used last first
  clear     remove all entries, or some
  verify    check all entries; damaged ones are removed, and make the exit status 1"""

_EXAMPLES = (
    ("ptxc cache info", "where it is, and how full"),
    ("ptxc cache clear --unused-for 30d", "what was not used for 30 days"),
    ("ptxc cache clear --kind cubin", "what ptxas made"),
)

#: What entries hold.
_KINDS = {
    "kernel": "PTX, the launch description and figures of a compiled kernel",
    "file": "which kernels are in a file",
    "cubin": "machine code by ptxas, and what it takes",
    "cuda": "Emmy's CUDA text (ptxc compare)",
    "nvcc": "nvcc's PTX of it (ptxc compare)",
    "sass": "machine code as text (ptxc compare)",
}

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def add(commands: Commands) -> None:
    """Make the command's parser."""
    kinds = "kinds of entries:\n" + "\n".join(f"  {kind:8}{what}" for kind, what in _KINDS.items())
    parser = commands.add_parser(
        "cache",
        help="show, empty or check what is kept of earlier compilations",
        description=_DESCRIPTION,
        epilog=examples(_EXAMPLES, f"{kinds}\n\ndocs/cache.md says more."),
        usage="ptxc cache info|list|clear|verify [option...]",
    )
    parser.set_defaults(run=run)
    parser._negative_number_matcher = re.compile("-[0-9]")  # `-3d` is no option but a wrong time
    parser.add_argument("action", choices=tuple(_ACTIONS), help="what to do")
    parser.add_argument(
        "--kind", choices=tuple(_KINDS), action="append", default=[], help="list, clear: only entries of this kind"
    )
    parser.add_argument(
        "--unused-for", type=_age, metavar="TIME", help="clear: only entries not used for so long: 30d, 12h, 45m, 10s"
    )


def _age(text: str) -> int:
    match = re.fullmatch(r"(\d{1,9})([smhd])", text, re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; give it as in 30d, 12h, 45m or 10s")
    return int(match[1]) * _SECONDS[match[2]]


def run(args: argparse.Namespace) -> int:
    """Do what is asked for."""
    from ptxc.store import open_store

    if args.kind and args.action not in ("list", "clear"):
        raise UsageError(f"--kind changes nothing for {args.action}", hint="leave it out")
    if args.unused_for is not None and args.action != "clear":
        raise UsageError(f"--unused-for changes nothing for {args.action}", hint="leave it out")
    store = open_store()
    if os.path.exists(store.folder) and not os.path.isdir(store.folder):
        raise UsageError(
            f"{store.folder!r}, where results would be kept, is no folder", hint="set PTXC_CACHE_DIR to one"
        )
    return _ACTIONS[args.action](store, args)


def _info(store: Store, args: argparse.Namespace) -> int:
    entries = list(store.entries())
    rows = [("folder", store.folder), ("limit", _size(store.limit) if store.limit else "0, nothing is kept")]
    rows.append(("size", _size(_bytes(entries))))
    rows.append(("entries", str(len(entries))))
    for kind in sorted({entry.kind for entry in entries}):
        some = [entry for entry in entries if entry.kind == kind]
        rows.append((f"  {kind}", f"{len(some)}, {_size(_bytes(some))}"))
    show(table(rows))
    return 0


def _list(store: Store, args: argparse.Namespace) -> int:
    rows = [("key", "kind", "target", "bytes", "used", "name")]
    for entry in sorted(store.entries(), key=lambda entry: (-entry.used, entry.key)):
        if args.kind and entry.kind not in args.kind:
            continue
        value = store.read(entry)
        if value is None:
            continue
        used = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.used))
        target, name = (printable(str(value.facts.get(fact, ""))) for fact in ("target", "name"))
        rows.append((entry.key[:16], entry.kind, target, str(entry.size), used, name))
    show(table(rows, right=(3,)))
    return 0


def _clear(store: Store, args: argparse.Namespace) -> int:
    removed = store.remove(args.kind, args.unused_for or 0.0)
    say(f"ptxc: removed {_counted(removed)}")
    return 0


def _verify(store: Store, args: argparse.Namespace) -> int:
    count, damaged = store.verify()
    for entry in damaged:
        say(f"ptxc: damaged, removed: {entry.path}")
    show(f"{count} entries, {len(damaged)} damaged" if damaged else f"{count} entries, all whole")
    return int(bool(damaged))


_ACTIONS = {"info": _info, "list": _list, "clear": _clear, "verify": _verify}


def _bytes(entries: Iterable[Entry]) -> int:
    return sum(entry.size for entry in entries)


def _counted(entries: list[Entry]) -> str:
    return f"{len(entries)} {'entry' if len(entries) == 1 else 'entries'}, {_size(_bytes(entries))}"


def _size(count: float) -> str:
    """Bytes for people."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"
