"""The table of targets: its own rules, and what ptxas says of it."""

from __future__ import annotations

import pytest

from ptxc.errors import TargetError, ToolchainError, UsageError
from ptxc.target import PTX_RELEASES, TARGETS, PtxVersion, Requirement, Target, lowest_version, parse_target
from ptxc.toolchain import assemble

SM_80 = Requirement(80, (7, 0))
SM_90A = Requirement(only=("sm_90a",), ptx=(8, 0))
SM_100F = Requirement(only=("sm_100f",), ptx=(8, 8))

VERSIONS = list(PTX_RELEASES)


def test_versions_are_ordered_and_parse_back() -> None:
    assert sorted(VERSIONS) == VERSIONS
    assert [PtxVersion.parse(str(version)) for version in VERSIONS] == VERSIONS
    assert PtxVersion(7, 8) < PtxVersion.parse("8.0")


@pytest.mark.parametrize("text", ["", "7", "7.9", "5.0", "10.0", "7.8.0", "v7.8", " 7.8", "7.08", "٧.٨", "9" * 5000])
def test_unknown_version(text: str) -> None:
    with pytest.raises(UsageError, match=r"no PTX version is called .* known versions are 6\.0, 6\.1, "):
        PtxVersion.parse(text)


def test_parse_target() -> None:
    assert parse_target("sm_90a") is TARGETS["sm_90a"]
    assert parse_target("sm_90a").compute_capability == (9, 0)
    assert parse_target("sm_121").compute_capability == (12, 1)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("80", "sm_80"),
        ("8.0", "sm_80"),
        ("SM_90A", "sm_90a"),
        ("sm90", "sm_90"),
        ("compute_120f", "sm_120f"),
        ("sm_99", "sm_90"),
    ],
)
def test_unknown_target_names_what_was_meant(text: str, meant: str) -> None:
    with pytest.raises(TargetError, match=f"no target is called '{text}'; did you mean {meant}[ ?]"):
        parse_target(text)


def test_unknown_target_lists_all() -> None:
    with pytest.raises(TargetError, match=r"'gfx942'; the known targets are sm_70, sm_72, .*sm_121f"):
        parse_target("gfx942")


def names(requirement: Requirement) -> set[str]:
    return {target.name for target in TARGETS.values() if target.has(requirement)}


def test_later_architectures_keep_what_earlier_ones_have() -> None:
    assert {"sm_70", "sm_72", "sm_75"} == TARGETS.keys() - names(SM_80)
    assert names(Requirement()) == TARGETS.keys()


def test_specific_features_stay_with_their_architecture_or_family() -> None:
    assert names(SM_90A) == {"sm_90a"}
    assert names(SM_100F) == {f"sm_{sm}{suffix}" for sm in (100, 103, 107) for suffix in "af"}
    assert names(Requirement(only=("sm_103f",))) == {f"sm_{sm}{suffix}" for sm in (103, 107) for suffix in "af"}
    assert names(Requirement(only=("sm_90a", "sm_120a"))) == {"sm_90a", "sm_120a"}


def test_a_renamed_architecture_has_what_the_new_name_has() -> None:
    assert names(Requirement(only=("sm_101a",))) == names(Requirement(only=("sm_110a",))) == {"sm_101a", "sm_110a"}
    assert names(Requirement(only=("sm_110f",))) == {"sm_101a", "sm_101f", "sm_110a", "sm_110f"}


def test_lowest_version() -> None:
    assert lowest_version(TARGETS["sm_80"], []) == (7, 0)
    assert lowest_version(TARGETS["sm_80"], [SM_80, Requirement(70, (6, 3)), Requirement(ptx=(7, 4))]) == (7, 4)
    assert lowest_version(TARGETS["sm_90a"], [SM_80, SM_90A]) == (8, 0)
    assert str(lowest_version(TARGETS["sm_103a"], [SM_100F])) == "8.8"
    with pytest.raises(TargetError, match=r"target sm_75 lacks an instruction that needs sm_80 or higher and PTX 7\.0"):
        lowest_version(TARGETS["sm_75"], [SM_80])
    with pytest.raises(TargetError, match=r"target sm_90 lacks an instruction that needs sm_90a and PTX 8\.0"):
        lowest_version(TARGETS["sm_90"], [SM_90A])


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
def test_sizes_fit_each_other(target: Target) -> None:
    assert target.max_shared_static <= target.max_shared_dynamic <= target.shared_per_sm
    assert target.max_threads_per_block <= 32 * target.max_warps_per_sm
    assert target.registers_per_sm % target.register_unit == 0
    plain = TARGETS[target.name.rstrip("af")]
    assert plain.ptx <= target.ptx
    assert plain.shared_per_sm == target.shared_per_sm


def refusal(version: PtxVersion, target: Target, body: str = "ret;") -> str:
    """What ptxas has against an otherwise empty kernel; empty when it accepts it."""
    text = f".version {version}\n.target {target}\n.address_size 64\n.visible .entry k() {{ {body} }}\n"
    try:
        assemble(text, target.name)
    except ToolchainError as error:
        return str(error)
    return ""


@pytest.mark.needs("ptxas")
def test_ptxas_knows_each_target_from_its_first_version_on() -> None:
    known = 0
    for target in TARGETS.values():
        found = refusal(target.ptx, target)
        if "does not know" in found:  # each CUDA knows some of the targets
            continue
        known += 1
        assert found == ""
        before = VERSIONS.index(target.ptx) - 1
        # The PTX ISA introduces sm_88 in 9.0, as ptxas 13.5 has it; ptxas 13.0 accepts it from 7.3 on.
        if before >= 0 and target.name != "sm_88":
            assert f"{VERSIONS[before]} does not support .target {target}" in refusal(VERSIONS[before], target)
    assert known > 10


@pytest.mark.needs("ptxas")
def test_ptxas_agrees_on_who_has_specific_features() -> None:
    setmaxnreg = Requirement(only=("sm_90a", "sm_100f", "sm_110f", "sm_120f"), ptx=(8, 0))
    for target in TARGETS.values():
        version = max(target.ptx, PtxVersion(*setmaxnreg.ptx))
        found = refusal(version, target, "setmaxnreg.inc.sync.aligned.u32 64; ret;")
        if "does not know" not in found:
            assert (found == "") == target.has(setmaxnreg), (target, found)
            assert found == "" or "setmaxnreg" in found


@pytest.mark.parametrize(
    ("target", "threads", "shared", "ctas"),
    [
        ("sm_89", 128, 49 * 1024, 2),
        ("sm_89", 128, 66 * 1024, 1),
        ("sm_90", 128, 49 * 1024, 4),
        ("sm_90", 256, 49 * 1024, 2),
        ("sm_90", 1024, 200 * 1024, 1),
    ],
)
def test_resident_ctas(target: str, threads: int, shared: int, ctas: int) -> None:
    assert TARGETS[target].resident_ctas(threads, shared) == ctas
