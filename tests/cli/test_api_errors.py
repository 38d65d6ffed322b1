"""Wrong uses of the Python API."""

from __future__ import annotations

from typing import Any

import pytest
from cli_lab import VECTOR_ADD, ptxc

import ptxc as api
from ptxc.driver import link
from ptxc.errors import TargetError


@pytest.mark.parametrize(("source", "kind"), [(None, "NoneType"), (5, "int"), (b"k.json", "bytes"), ([], "list")])
def test_what_is_no_source(source: object, kind: str) -> None:
    with pytest.raises(api.InputError, match=f"cannot be of type {kind}; give Emmy's Graph, a path, an open binary"):
        api.compile(source)


def test_json_text_as_a_path() -> None:
    with pytest.raises(api.InputError) as caught:
        api.compile(VECTOR_ADD.read_text())
    expected = "the source is JSON text, where a path is expected; give json.loads of the text"
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"target": 90}, "target is a str, not 90; as in target='sm_90'"),
        ({"target": None}, "target is a str, not None; as in target='sm_90'"),
        ({"ptx_version": 8.0}, "ptx_version is a str, not 8.0; as in ptx_version='8.0'"),
        ({"stop_after": None}, "stop_after is a str, not None; as in stop_after='cse'"),
        ({"opt": 3}, "there is no optimisation level 3; it is 0, 1 or 2"),
        ({"opt": True}, "there is no optimisation level True; it is 0, 1 or 2"),
        ({"opt": 1.0}, "there is no optimisation level 1.0; it is 0, 1 or 2"),
        ({"fma": "no"}, "fma is True or False, not 'no'; as in fma=False"),
        ({"fma": None}, "fma is True or False, not None; as in fma=False"),
        ({"cache": "no"}, "cache is True or False, not 'no'; as in cache=False"),
        ({"separate": 1}, "separate is True or False, not 1; as in separate=False"),
        ({"verify_each": 3}, "verify_each is True or False, not 3; as in verify_each=False"),
        ({"time_passes": ""}, "time_passes is True or False, not ''; as in time_passes=False"),
        ({"opt": "2"}, "there is no optimisation level '2'; it is 0, 1 or 2"),
        ({"disable": None}, "disable is a tuple of passes' names, not None; as in disable=('cse',)"),
        ({"disable": "cse"}, "disable is a tuple of passes' names, not 'cse'; as in disable=('cse',)"),
        ({"disable": (1,)}, "disable is a tuple of passes' names, not (1,); as in disable=('cse',)"),
    ],
)
def test_options_of_wrong_types(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(api.UsageError) as caught:
        api.compile(VECTOR_ADD, **options)
    assert str(caught.value) == expected


@pytest.mark.parametrize("target", ["sm_60", "6.0", "compute_60"])
def test_a_target_that_is_too_old(target: str) -> None:
    with pytest.raises(TargetError, match=r"^sm_60 is older than sm_70, the oldest that ptxc compiles for; the known"):
        api.compile(VECTOR_ADD, target=target)
    assert "sm_60 is older than sm_70" in ptxc("compile", VECTOR_ADD, "--target", target).message


def test_two_kernels_of_one_name() -> None:
    with pytest.raises(api.UsageError, match=r"two kernels are called .* each: --split, or in Python ptxc.compile"):
        link(api.compile(VECTOR_ADD) * 2)
