import hashlib
import os
from pathlib import Path

import pytest

from kvikk.errors import ModelError
from kvikk.files.identity import content_digest, file_digest


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("KVIKK_HOME", str(home))
    return home


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(b"weights" * 1000)
    return path


def sha256(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


def test_the_digest_is_sha256_of_the_content_first_time_and_later(file: Path) -> None:
    assert file_digest(file) == sha256(file)
    assert file_digest(file) == sha256(file)


def test_a_file_is_read_once(file: Path, home: Path) -> None:
    before = file_digest(file)
    (remembered,) = (home / "digests").iterdir()
    # What is remembered is believed: a marker in it comes back instead of the content's digest.
    marker = bytes(32)
    remembered.write_text(remembered.read_text().replace(before.hex(), marker.hex()))
    assert file_digest(file) == marker


def test_a_file_replaced_under_its_name_has_a_new_digest(file: Path) -> None:
    before = file_digest(file)
    status = file.stat()
    replacement = file.with_name("new")
    replacement.write_bytes(b"WEIGHTS" * 1000)
    replacement.replace(file)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))  # as a copying tool may do
    assert file_digest(file) == sha256(file) != before


def test_a_file_rewritten_in_place_with_its_time_put_back_has_a_new_digest(file: Path) -> None:
    before = file_digest(file)
    status = file.stat()
    file.write_bytes(b"WEIGHTS" * 1000)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file_digest(file) == sha256(file) != before


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\xff\xfe", b"[]\nabcd\n"])
def test_a_damaged_memory_is_not_believed(file: Path, home: Path, content: bytes) -> None:
    file_digest(file)
    for remembered in (home / "digests").iterdir():
        remembered.write_bytes(content)
    assert file_digest(file) == sha256(file)


def test_a_cache_folder_that_cannot_be_written_does_no_harm(file: Path, home: Path) -> None:
    home.write_text("a file where the folder should be")
    assert file_digest(file) == sha256(file)


def test_the_order_of_files_counts_and_their_names_do_not(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"other")
    renamed = tmp_path / "renamed"
    renamed.write_bytes(b"other")
    assert content_digest((file, other)) == content_digest((file, renamed))
    assert content_digest((file, other)) != content_digest((other, file))


def test_an_absent_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"absent: cannot be read: No such file"):
        file_digest(tmp_path / "absent")
