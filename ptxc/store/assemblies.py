"""What ptxas made, in the store: by the text, the target, the options, and what the assemblers say that they are."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from ptxc.store.folder import UNREADABLE, Value, digest
from ptxc.store.settings import open_store
from ptxc.toolchain import Assembly, Resources, assemble, tool_versions

_CUBIN = "cubin"


def _schema() -> str:
    """The form of what is kept here and by `ptxc.comparison.builds`: what fields there are."""
    return f"2 {','.join(Resources.__dataclass_fields__)} {','.join(Assembly.__dataclass_fields__)}"


#: A part of each key, so that an entry of another form is none. The number is for other changes of the form.
SCHEMA = _schema()


def assemble_kept(ptx: str, target: str, *, options: Sequence[str] = (), cache: bool = True) -> Assembly:
    """`ptxc.toolchain.assemble`, whose result is kept; its time is that of when it was made. Raises ToolchainError."""
    store = open_store(cache)
    if not store.limit:
        return assemble(ptx, target, options=options)
    key = digest(_CUBIN, SCHEMA, tool_versions("ptxas"), target, str(len(options)), *options, ptx)
    found = store.get(_CUBIN, key)
    if found is not None:
        with suppress(*UNREADABLE):
            return _unpacked(found)
    made = assemble(ptx, target, options=options)
    store.put(_CUBIN, key, _packed(made, target))
    return made


def _packed(assembly: Assembly, target: str) -> Value:
    facts = {
        "name": " ".join(assembly.kernels),
        "target": target,
        "kernels": {name: resources_to_json(used) for name, used in assembly.kernels.items()},
        "warnings": assembly.warnings,
        "seconds": assembly.seconds,
    }
    return Value(facts, assembly.cubin)


def _unpacked(value: Value) -> Assembly:
    facts = value.facts
    kernels = {name: resources_from_json(used) for name, used in facts["kernels"].items()}
    return Assembly(value.data, kernels, tuple(facts["warnings"]), facts["seconds"])


def resources_to_json(resources: Resources) -> dict[str, Any]:
    """What a kernel takes, as JSON has it, where keys are strings."""
    banks = {str(bank): size for bank, size in resources.constant_banks.items()}
    return asdict(resources) | {"constant_banks": banks}


def resources_from_json(fields: dict[str, Any]) -> Resources:
    """What :func:`resources_to_json` was given."""
    banks = {int(bank): size for bank, size in fields["constant_banks"].items()}
    return Resources(**fields | {"constant_banks": banks})
