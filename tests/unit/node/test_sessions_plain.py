import os

import pytest

from node.sessions.plain import open_plain, read_plain


def test_the_first_and_the_last_bytes(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    assert read_plain(path, 4) == b"0123"
    assert read_plain(path, 4, from_end=True) == b"6789"
    assert read_plain(path, 99, from_end=True) == b"0123456789"


def test_links_are_followed_only_on_request(tmp_path):
    (tmp_path / "f").write_bytes(b"x")
    os.symlink(tmp_path / "f", tmp_path / "link")
    assert read_plain(tmp_path / "link", 9) is None
    assert read_plain(tmp_path / "link", 9, follow=True) == b"x"


@pytest.mark.parametrize("name", ["folder", "pipe", "device", "missing", "bad\0name"])
def test_nothing_else_is_opened_and_no_handle_stays(tmp_path, name):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    os.symlink("/dev/zero", tmp_path / "device")
    before = len(os.listdir("/proc/self/fd"))
    assert open_plain(tmp_path / name, follow=True) is None
    assert read_plain(tmp_path / name, 10, follow=True) is None
    assert len(os.listdir("/proc/self/fd")) == before
