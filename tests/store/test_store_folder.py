"""The store's folder: entries are whole or absent, damage shows, and there is never too much."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from ptxc.errors import StoreWarning, UsageError
from ptxc.store import Store, Value, digest, open_store
from ptxc.store.settings import DEFAULT_LIMIT, default_folder, limit_of

KEY = digest("one")
VALUE = Value({"name": "k", "list": [1, 2.5, None, "ü"]}, b"\x00\xff\nbytes\n")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store", 1 << 20)


def the_file(store: Store) -> Path:
    (entry,) = store.entries()
    return Path(entry.path)


def test_what_is_kept_is_found(store: Store) -> None:
    assert store.get("kernel", KEY) is None
    store.put("kernel", KEY, VALUE)
    assert store.get("kernel", KEY) == VALUE
    assert store.get("cubin", KEY) is None
    assert store.get("kernel", digest("two")) is None
    store.put("kernel", KEY, Value({}))
    assert store.get("kernel", KEY) == Value({})
    assert [(entry.key, entry.kind) for entry in store.entries()] == [(KEY, "kernel")]


def test_a_value_is_made_once(store: Store) -> None:
    assert store.find("cuda", KEY, lambda: {"x": [1, 2.5]}, name="k") == {"x": [1, 2.5]}
    assert store.find("cuda", KEY, lambda: pytest.fail("it is known")) == {"x": [1, 2.5]}
    assert store.find("cuda", digest("two"), lambda: None) is None
    assert store.find("cuda", digest("two"), lambda: pytest.fail("it is known")) is None


def test_what_raises_is_not_kept(store: Store) -> None:
    def fail() -> None:
        raise UsageError("no")

    with pytest.raises(UsageError):
        store.find("cuda", KEY, fail)
    assert not list(store.entries())


def test_digests_tell_parts_apart() -> None:
    assert digest("one", "two") == digest(b"one", "two")
    assert len({digest("onetwo"), digest("one", "two"), digest("onet", "wo"), digest("one", "two", ""), KEY}) == 5


# -------------------------------------------------------------------------------------------------------------- damage


def test_an_entry_cut_anywhere_is_dropped(store: Store) -> None:
    store.put("kernel", KEY, VALUE)
    whole = the_file(store).read_bytes()
    for length in range(len(whole)):
        the_file(store).write_bytes(whole[:length])
        assert store.get("kernel", KEY) is None, length
        assert not list(store.entries())
        store.put("kernel", KEY, VALUE)
        assert store.get("kernel", KEY) == VALUE


def test_an_entry_with_any_byte_changed_is_dropped(store: Store) -> None:
    store.put("kernel", KEY, VALUE)
    whole = the_file(store).read_bytes()
    for at in range(len(whole)):
        for wrong in {0, 255, whole[at] ^ 1, whole[at] ^ 32} - {whole[at]}:
            the_file(store).write_bytes(whole[:at] + bytes([wrong]) + whole[at + 1 :])
            assert store.get("kernel", KEY) is None, at
            store.put("kernel", KEY, VALUE)


@pytest.mark.parametrize("extra", [b"\0", b"\n", b"x" * 5000])
def test_an_entry_with_more_at_its_end_is_dropped(store: Store, extra: bytes) -> None:
    store.put("kernel", KEY, VALUE)
    with open(the_file(store), "ab") as file:
        file.write(extra)
    assert store.get("kernel", KEY) is None


def test_an_entry_under_another_ones_name_is_dropped(store: Store) -> None:
    store.put("kernel", KEY, VALUE)
    content = the_file(store).read_bytes()
    other = KEY[:-1] + ("0" if KEY[-1] != "0" else "1")
    for path in (the_file(store).with_name(f"{other}.kernel"), the_file(store).with_name(f"{KEY}.cubin")):
        path.write_bytes(content)
        assert store.get(path.suffix[1:], path.stem) is None
        assert not path.exists()
    assert store.get("kernel", KEY) == VALUE


def test_a_folder_in_place_of_an_entry_is_no_entry(store: Store) -> None:
    store.put("kernel", KEY, VALUE)
    path = the_file(store)
    path.unlink()
    path.mkdir()
    assert store.get("kernel", KEY) is None
    with pytest.warns(StoreWarning, match="cannot be written: Is a directory"):
        store.put("kernel", KEY, VALUE)
    assert not [file for file in path.parent.iterdir() if file.name.startswith(".")]


def test_verify_removes_what_is_damaged(store: Store) -> None:
    for number in range(5):
        store.put("kernel", digest(str(number)), VALUE)
    assert store.verify() == (5, [])
    first, second, *_ = sorted(store.entries(), key=lambda entry: entry.key)
    os.truncate(first.path, 10)
    os.truncate(second.path, 0)
    count, damaged = store.verify()
    assert (count, {entry.key for entry in damaged}) == (5, {first.key, second.key})
    assert store.verify() == (3, [])


# ---------------------------------------------------------------------------------------------------------------- size


def test_the_size_is_bounded(store: Store) -> None:
    store.limit = 100_000
    for number in range(60):
        store.put("kernel", digest(str(number)), Value({}, bytes(5000)))
        assert sum(entry.size for entry in store.entries()) <= store.limit
    assert sum(entry.size for entry in store.entries()) > store.limit / 2


def test_what_was_not_used_for_longest_goes_first(store: Store) -> None:
    store.limit = 100_000
    keys = [digest(str(number)) for number in range(18)]
    for age, key in enumerate(keys):
        store.put("kernel", key, Value({}, bytes(5000)))
        os.utime(next(entry.path for entry in store.entries() if entry.key == key), (0, 1000 + age))
    for key in keys[:4]:
        assert store.get("kernel", key) is not None  # used now, whenever they were written
    store.put("kernel", digest("new"), Value({}, bytes(5000)))
    left = {entry.key for entry in store.entries()}
    assert {*keys[:4], keys[17], digest("new")} <= left
    assert not {keys[4], keys[5]} & left


def test_large_stores_are_looked_through_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    monkeypatch.setattr(Store, "trim", lambda self: looks.append(self))
    store = Store(tmp_path, 6_400_000)
    for number in range(500):  # 5 % of the limit, which is looked through at every 64th on average
        store.put("kernel", digest(str(number)), Value({}, bytes(500)))
    assert len(looks) < 30


def test_what_is_larger_than_the_store_is_not_kept(store: Store) -> None:
    store.limit = 1000
    store.put("kernel", KEY, Value({}, bytes(1000)))
    assert not list(store.entries())


def test_with_no_room_nothing_is_kept(tmp_path: Path) -> None:
    store = Store(tmp_path / "none", 0)
    assert store.find("cuda", KEY, lambda: 1) == 1
    assert store.find("cuda", KEY, lambda: 2) == 2
    assert not (tmp_path / "none").exists()


def test_what_others_keep_in_the_folder_stays(store: Store) -> None:
    store.put("kernel", KEY, VALUE)
    shard = the_file(store).parent
    others = [shard / "notes.txt", Path(store.folder, "ab.txt"), Path(store.folder, "src", f"{KEY}.kernel")]
    for other in others:
        other.parent.mkdir(exist_ok=True)
        other.write_text("mine")
    store.limit = 1
    store.trim()
    store.verify()
    store.remove()
    assert not list(store.entries())
    assert all(other.read_text() == "mine" for other in others)


def test_entries_are_removed_by_kind_and_age(store: Store) -> None:
    for kind in ("kernel", "cubin"):
        for number in range(2):
            store.put(kind, digest(str(number)), VALUE)
    old = next(entry for entry in store.entries() if entry.kind == "kernel")
    os.utime(old.path, (0, time.time() - 100))
    assert [entry.key for entry in store.remove(unused_for=50)] == [old.key]
    assert {entry.kind for entry in store.remove(["cubin"])} == {"cubin"}
    assert len(store.remove()) == 1


# ------------------------------------------------------------------------------------------------- trouble and killing


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "x", 1 << 20)
    with pytest.warns(StoreWarning, match=r"are not kept, as the folder '.*/file/x' cannot be written: Not a dir"):
        assert store.find("cuda", KEY, lambda: 1) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        assert store.find("cuda", KEY, lambda: 2) == 2
    assert (list(store.entries()), store.verify(), store.remove()) == ([], (0, []), [])


#: Writes large entries again and again.
_WRITER = """
import itertools, sys
from ptxc.store import Store, Value, digest
store = Store(sys.argv[1], 1 << 20)
for number in itertools.count():
    store.put("kernel", digest(str(number % 4)), Value({}, bytes(200_000)))
"""


@pytest.mark.parametrize("seed", range(8))
def test_a_killed_writer_leaves_no_half_entry(store: Store, seed: int) -> None:
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, store.folder])
    while not list(store.entries()):
        time.sleep(0.001)
    time.sleep(random.Random(seed).uniform(0.0, 0.02))
    writer.kill()
    writer.wait()
    assert store.verify()[1] == []
    assert all(value == Value({}, bytes(200_000)) for value in map(store.read, store.entries()))


def test_what_a_killed_writer_left_is_removed(store: Store) -> None:
    store.put("kernel", KEY, VALUE)
    left = the_file(store).with_name(".0123456789abcdef.new")
    left.write_bytes(b"half")
    store.verify()
    assert left.exists()  # someone may be writing it
    os.utime(left, (0, time.time() - 4000))
    store.verify()
    assert not left.exists()


# ------------------------------------------------------------------------------------------------------------ settings


def test_where_the_store_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PTXC_CACHE_DIR")
    monkeypatch.delenv("PTXC_CACHE_SIZE")
    assert (open_store().folder, open_store().limit) == (default_folder(), DEFAULT_LIMIT)
    monkeypatch.setenv("PTXC_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PTXC_CACHE_SIZE", "5M")
    assert (open_store().folder, open_store().limit) == (str(tmp_path), 5 << 20)
    assert open_store(False).limit == 0


@pytest.mark.parametrize(
    ("text", "count"), [("0", 0), ("1000", 1000), ("1k", 1024), ("1.5 MB", 3 << 19), ("2GiB", 2 << 30), ("1T", 1 << 40)]
)
def test_sizes(text: str, count: int) -> None:
    assert limit_of(text) == count


@pytest.mark.parametrize("text", ["", "much", "-1", "1X", "1e9", "٣"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="which is no size"):
        limit_of(text)


@pytest.mark.parametrize("text", ["9" * 400, "9" * 20, "9999999999T"])
def test_limits_that_no_machine_has(text: str) -> None:
    with pytest.raises(UsageError, match="more bytes than there are"):
        limit_of(text)
