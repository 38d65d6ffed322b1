"""Values as JSON, which has no infinities and no NaN: those become ``"inf"``, ``"-inf"`` and ``"nan"``."""

from __future__ import annotations

import json
import math
from typing import Any


def dumps(value: Any) -> str:
    """``value`` as JSON, each item on a line of its own."""
    return json.dumps(_finite(value), indent=1)


def compact(value: Any, indent: str = "") -> str:
    """``value`` as JSON: over several lines what holds objects, the rest on one."""
    items = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    if not any("{" in json.dumps(_finite(item)) for item in items):
        return json.dumps(_finite(value))
    deeper = indent + "  "
    parts = [compact(item, deeper) for item in items]
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {part}" for key, part in zip(value, parts, strict=True)]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{deeper}" + f",\n{deeper}".join(parts) + f"\n{indent}{closing}"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
