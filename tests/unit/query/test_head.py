import pytest

from query.head import read_head


def test_it_follows_loose_packed_and_detached_heads(kettle, run_git):
    head = run_git(kettle, "rev-parse", "HEAD")
    assert read_head(kettle) == head
    run_git(kettle, "pack-refs", "--all")
    assert not (kettle / ".git/refs/heads/main").exists()
    assert read_head(kettle) == head
    run_git(kettle, "checkout", "-q", "--detach")
    assert read_head(kettle) == head


def test_a_bare_repository_has_a_head_too(kettle, run_git, tmp_path):
    run_git(tmp_path, "clone", "-q", "--bare", str(kettle), "bare.git")
    assert read_head(tmp_path / "bare.git") == run_git(kettle, "rev-parse", "HEAD")


def test_a_repository_that_is_gone_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_head(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["", "ref: refs/heads/none", "ref: ../../etc/passwd", "ref: refs/../../x", "garbage", "\xff"])
def test_what_cannot_be_read_is_unknown(kettle, text):
    (kettle / ".git/HEAD").write_bytes(text.encode("latin-1"))
    assert read_head(kettle) is None


def test_links_between_references_are_followed_a_few_times(kettle):
    (kettle / ".git/HEAD").write_text("ref: refs/heads/loop")
    (kettle / ".git/refs/heads/loop").write_text("ref: refs/heads/loop")
    assert read_head(kettle) is None
