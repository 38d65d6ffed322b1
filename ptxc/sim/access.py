"""Loads and stores: addresses -> regions and offsets, with every access held against the bounds of what it names.

An access outside any variable, or misaligned for its size, is a ``memory`` finding. With the memory check on, such a
load gives zero, such a store is dropped and the launch goes on; with it off the launch stops there, as hardware
would.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptxc.sim.machine import Active, Machine, Stop
from ptxc.sim.memory import Region
from ptxc.sim.program import WINDOW_SIZE, WINDOWS, Extent
from ptxc.sim.scalar import Array, Index, Mask, container


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """The part of an access that falls into one region.

    ``offsets`` are bytes from the region's start; ``where`` are the positions of this part among the access's
    elements, None if it is the whole of it; ``slots`` are the threads, one an offset.
    """

    region: Region
    offsets: Index
    where: Index | None
    slots: Index


def load(m: Machine, active: Active, space: str, addresses: Array, size: int) -> Array:
    """What ``active`` threads read: ``size`` bytes at each of ``addresses`` (one an active thread, or one for all).

    The result is of the container type of ``size``, as long as ``addresses``.
    """
    pieces = resolve(m, active, space, addresses, size, "load")
    if m.profile is not None:
        m.profile.access(m, active, pieces, size)
    if len(pieces) == 1 and pieces[0].where is None:
        return _read(m, active, pieces[0], size)
    out = np.zeros(addresses.size, container(size))
    for piece in pieces:
        out[piece.where] = _read(m, active, piece, size)
    return out


def store(m: Machine, active: Active, space: str, addresses: Array, values: Array) -> None:
    """Write ``values`` (of a container type, one element for each of ``addresses`` or one for all)."""
    size = values.dtype.itemsize
    pieces = resolve(m, active, space, addresses, size, "store")
    if m.profile is not None:
        m.profile.access(m, active, pieces, size)
    for piece in pieces:
        if not writable(m, piece):
            continue
        part = values if piece.where is None or values.size == 1 else values[piece.where]
        if m.checks.global_race is not None and piece.region.space == "global":
            m.checks.global_race.write(m, piece, size)
        if piece.region is m.shared:
            if m.checks.race is not None:
                m.checks.race.write(m, piece, size)
            if m.checks.init is not None:
                m.checks.init.shared_written(piece.offsets, size)
            if m.checks.proxy is not None:
                m.checks.proxy.written(piece)
        piece.region.view(size)[piece.offsets >> (size.bit_length() - 1)] = part


def _read(m: Machine, active: Active, piece: Piece, size: int) -> Array:
    if piece.region is m.shared:
        if m.checks.race is not None:
            m.checks.race.read(m, piece, size)
        if m.checks.init is not None:
            m.checks.init.shared_read(m, piece, size)
        if m.checks.proxy is not None:
            m.checks.proxy.loaded(piece)
    elif m.checks.global_race is not None and piece.region.space == "global":
        m.checks.global_race.read(m, active, piece, size)
    shift = size.bit_length() - 1
    return piece.region.view(size).take(piece.offsets >> shift if shift else piece.offsets)


def writable(m: Machine, piece: Piece) -> bool:
    """Whether ``piece`` may be written; if its region is read-only, that is a finding."""
    region = piece.region
    if not region.writable:
        address = region.start + int(piece.offsets[0])
        message = f"write to {region.name}, which is read-only"
        m.report("memory", "read-only", message, piece.slots, address=address, space=region.space)
        _stop_unless_checked(m)
        return False
    if m.checks.memory and m.instruction is not None and region.space == "global":
        m.written.setdefault(region, (m.instruction, int(piece.slots[0])))
    return True


def resolve(m: Machine, active: Active, space: str, addresses: Array, size: int, what: str) -> list[Piece]:
    """The pieces of an access of ``size`` bytes; what lies nowhere is reported and left out."""
    if addresses.size == 1:
        # Only global memory and parameters are the same for all threads; elsewhere each thread has its own bytes.
        if space in {"global", "const", "param"} or (space == "" and int(addresses[0]) >= WINDOWS["param"]):
            slots = active.index[:1]
        else:
            addresses, slots = np.repeat(addresses, active.index.size), active.index
    else:
        slots = active.index
    if space == "":
        return _resolve_generic(m, addresses, slots, size, what)
    return _RESOLVERS[space](m, addresses, slots, size, what)


def _resolve_generic(m: Machine, addresses: Array, slots: Index, size: int, what: str) -> list[Piece]:
    """Split by window; global addresses lie above all windows."""
    window = np.minimum(addresses // WINDOW_SIZE, len(WINDOWS) + 1)
    first = int(window[0])
    names = ["global", *WINDOWS, "global"]
    if (window == first).all():
        base = first * WINDOW_SIZE if names[first] != "global" else 0
        return _RESOLVERS[names[first]](m, addresses - base, slots, size, what)
    pieces = []
    for value in np.unique(window):
        where = np.flatnonzero(window == value)
        base = int(value) * WINDOW_SIZE if names[int(value)] != "global" else 0
        for piece in _RESOLVERS[names[int(value)]](m, addresses[where] - base, slots[where], size, what):
            inner = where if piece.where is None else where[piece.where]
            pieces.append(Piece(piece.region, piece.offsets, inner, piece.slots))
    return pieces


def _span(addresses: Array) -> tuple[int, int, int]:
    """The least and the greatest address, and all bits that some address has."""
    if addresses.size == 1:
        only = int(addresses[0])
        return only, only, only
    return (
        int(np.minimum.reduce(addresses)),
        int(np.maximum.reduce(addresses)),
        int(np.bitwise_or.reduce(addresses)),
    )


def _resolve_global(m: Machine, addresses: Array, slots: Index, size: int, what: str) -> list[Piece]:
    low, high, ones = _span(addresses)
    region = m.memory.find(low)
    if region is not None and high + size <= region.end and ones & (size - 1) == 0:
        return [Piece(region, addresses - region.start, None, slots)]
    return _resolve_scattered(m, addresses, slots, size, what)


def _resolve_scattered(m: Machine, addresses: Array, slots: Index, size: int, what: str) -> list[Piece]:
    """Global addresses of several regions, or of none."""
    left = np.arange(addresses.size)
    pieces = []
    while left.size:
        low = int(addresses[left].min())
        region = m.memory.find(low)
        below = addresses[left] < m.memory.start_above(low)
        where, left = left[below], left[~below]
        extents = [] if region is None else [Extent(region.name, region.start, region.end)]
        where = where[_inside(m, "global", addresses[where], slots[where], size, what, extents)]
        if region is not None and where.size:
            pieces.append(_cut(region, addresses, slots, where, region.start))
    return pieces


def _cut(region: Region, addresses: Array, slots: Index, where: Index, start: int) -> Piece:
    return Piece(region, addresses[where] - start, where, slots[where])


def _resolve_shared(m: Machine, addresses: Array, slots: Index, size: int, what: str) -> list[Piece]:
    base = m.shared_base if slots.size == m.threads else m.shared_base[slots]
    return _resolve_private(m, m.shared, m.shared_extents, base, addresses, slots, size, what)


def _resolve_local(m: Machine, addresses: Array, slots: Index, size: int, what: str) -> list[Piece]:
    base = slots * m.local_stride
    return _resolve_private(m, m.local, m.program.local, base, addresses, slots, size, what)


def _resolve_private(
    m: Machine,
    region: Region,
    extents: list[Extent],
    base: Index,
    addresses: Array,
    slots: Index,
    size: int,
    what: str,
) -> list[Piece]:
    """Memory that each CTA or thread has for itself: ``base`` is where its bytes start in ``region``."""
    low, high, ones = _span(addresses)
    inside = any(extent.start <= low and high + size <= extent.end for extent in extents)
    if inside and ones & (size - 1) == 0:
        return [Piece(region, base + addresses, None, slots)]
    good = _inside(m, region.space, addresses, slots, size, what, extents)
    where = np.flatnonzero(good)
    return [Piece(region, base[where] + addresses[where], where, slots[where])] if where.size else []


def _resolve_param(m: Machine, addresses: Array, slots: Index, size: int, what: str) -> list[Piece]:
    region = m.parameters
    good = _inside(m, "param", addresses, slots, size, what, [Extent("parameters", 0, region.data.size)])
    where = np.flatnonzero(good)
    return [_cut(region, addresses, slots, where, 0)] if where.size else []


_RESOLVERS = {
    "global": _resolve_global,
    "const": _resolve_global,
    "shared": _resolve_shared,
    "shared::cta": _resolve_shared,
    "local": _resolve_local,
    "param": _resolve_param,
    "function": _resolve_global,
}


def _inside(
    m: Machine, space: str, addresses: Array, slots: Index, size: int, what: str, extents: list[Extent]
) -> Mask:
    """Which addresses lie wholly in one of ``extents`` and are aligned; the others are reported."""
    inside = np.zeros(addresses.size, np.bool_)
    for extent in extents:
        inside |= (addresses >= extent.start) & (addresses + size <= extent.end)
    if not inside.all():
        _out_of_bounds(m, space, addresses[~inside], slots[~inside], size, what, extents)
    return inside & aligned(m, space, addresses, slots, size, what)


def aligned(m: Machine, space: str, addresses: Array, slots: Index, size: int, what: str) -> Mask:
    """Which addresses are multiples of ``size``; the others are reported."""
    good: Mask = addresses & (size - 1) == 0
    if not good.all():
        address = int(addresses[~good][0])
        message = f"{what} of {size} bytes is misaligned"
        m.report("memory", "misaligned", message, slots[~good], address=address, space=space)
        _stop_unless_checked(m)
    return good


def _out_of_bounds(
    m: Machine, space: str, addresses: Array, slots: Index, size: int, what: str, extents: list[Extent]
) -> None:
    address = int(addresses[0])
    message = f"{what} of {size} bytes is outside of every {space} variable{_nearest(m, space, address, extents)}"
    m.report("memory", "bounds", message, slots, address=address, space=space)
    _stop_unless_checked(m)


def _nearest(m: Machine, space: str, address: int, extents: list[Extent]) -> str:
    """The variable before ``address`` or the one after it, the nearer: a program most likely meant that.

    ``extents`` are in the order of their addresses.
    """
    if space == "global":
        around = (m.memory.find(address), m.memory.find(m.memory.start_above(address)))
        extents = [Extent(region.name, region.start, region.end) for region in around if region is not None]
    before = [extent for extent in extents if extent.start <= address]
    after = [extent for extent in extents if extent.start > address]
    if after and (not before or after[0].start - address < address - before[-1].end):
        return f": {after[0].start - address} bytes before {after[0].name}"
    if not before:
        return ""
    last = before[-1]
    return f": {address - last.start} bytes from the start of {last.name}, which has {last.end - last.start}"


def _stop_unless_checked(m: Machine) -> None:
    if not m.checks.memory:
        raise Stop
