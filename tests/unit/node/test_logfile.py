"""The log: bounded, calm, and without secrets."""

from __future__ import annotations

import json
import logging
import os
import stat
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.base.errors import OurFault
from node.logfile import (
    BURST,
    KINDS_MAX,
    LINE_BYTES_MAX,
    WINDOW_S,
    Floods,
    JsonLines,
    LogFile,
    open_log,
    without_secrets,
)

NIGHT_S = 8 * 3600


def record(text: str, *args: object, level: int = logging.WARNING, name: str = "mesh.dialer") -> logging.LogRecord:
    return logging.LogRecord(name, level, "", 0, text, args, None)


def lines_of(path: Path) -> list[dict[str, str]]:
    files = sorted(path.parent.glob(path.name + "*"), key=lambda file: file.name, reverse=True)
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_a_retry_loop_that_never_ends_stays_under_the_cap_and_the_last_error_is_readable(tmp_path):
    """O-V6: a peer that refuses links, every 3 s for a simulated night, with a traceback each time.

    A week only turns the files over more often.
    """
    now = 0.0
    handler = LogFile(tmp_path / "node.log", 1 << 20, steady_s=lambda: now)
    try:
        raise ValueError("x" * 200)
    except ValueError:
        trace = sys.exc_info()
    for second in range(0, NIGHT_S, 3):
        now = float(second)
        failed = record("%s refuses: %d", "mini", second)
        failed.exc_info = trace
        handler.handle(failed)
    now += WINDOW_S
    handler.handle(record("the end of it"))
    handler.close()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 1 << 20
    lines = lines_of(tmp_path / "node.log")
    assert any("refuses" in line["text"] and "ValueError" in line.get("error", "") for line in lines)
    assert "the end of it" in [line["text"] for line in lines[-2:]]
    assert any("more like: %s refuses" in line["text"] for line in lines)


def test_repeated_messages_are_written_a_few_times_and_then_counted():
    """O-V6: collapsed with a count, whatever their arguments."""
    floods = Floods()
    key = ("room", 30, "%s refuses")
    told = [floods.admit(key, at / 10) for at in range(100)]
    assert sum(write for write, _ in told) == BURST
    assert floods.admit(key, WINDOW_S + 1) == (True, [(key, 100 - BURST)])
    assert floods.admit(("room", 30, "else"), WINDOW_S + 1) == (True, [])


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 30)), max_size=300))
def test_every_message_is_either_written_or_counted(steps):
    floods, now = Floods(), 0.0
    written = held = 0
    for kind, wait in steps:
        now += wait
        write, due = floods.admit(("room", 30, str(kind)), now)
        written += write
        held += sum(count for _, count in due)
    held += sum(count for _, count in floods.settle())
    assert written + held == len(steps)


def test_the_kinds_counted_are_bounded():
    floods = Floods()
    key = ("room", 30, "first")
    for _ in range(BURST + 3):
        floods.admit(key, 0.0)
    due = [one for at in range(KINDS_MAX) for one in floods.admit(("room", 30, str(at)), 1.0)[1]]
    assert due == [(key, 3)]


@pytest.mark.parametrize(
    "secret",
    ["hmq_abcdefghij_0123456789abcdef_zz", "hmi_AbC-dEf_0123456789", "Bearer abcdef.GHI-jkl_mno=", "authorization: bearer 0123456789abcdef"],
)
def test_what_looks_like_a_secret_never_reaches_the_file(tmp_path, secret):
    handler = LogFile(tmp_path / "node.log", 1 << 20)
    try:
        raise ValueError(f"in a traceback: {secret}")
    except ValueError:
        trace = sys.exc_info()
    said = record("in an argument: %s, and more", secret)
    said.exc_info = trace
    handler.handle(said)
    handler.close()
    text = (tmp_path / "node.log").read_text()
    assert secret.split("_", 1)[-1].split()[-1] not in text
    assert "and more" in text
    assert "in a traceback" in text


@given(st.text())
def test_taking_secrets_out_twice_changes_nothing_more(text):
    once = without_secrets(text)
    assert without_secrets(once) == once


def test_a_line_is_cut_in_its_middle():
    line = JsonLines().format(record("a%sz", "x" * 100_000))
    assert len(line.encode()) <= LINE_BYTES_MAX
    text = json.loads(line)["text"]
    assert text.startswith("ax")
    assert text.endswith("xz")


def test_files_are_private_and_turned_over(tmp_path):
    before = os.umask(0)
    try:
        with open_log(tmp_path / "node.log", "info", 1 << 20) as handler:
            log = logging.getLogger("node.test")
            log.debug("not this")
            for at in range(200):
                log.info("line %d " + "x" * at, at)
                handler.flush()
            log.info("big %s", "y" * 100)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}
    lines = lines_of(tmp_path / "node.log")
    assert lines[0] == {"at": lines[0]["at"], "level": "info", "room": "node.test", "text": "line 0 "}
    assert "not this" not in (tmp_path / "node.log").read_text()


def test_a_full_disk_neither_stops_the_node_nor_the_log_for_good(tmp_path, monkeypatch):
    handler = LogFile(tmp_path / "node.log", 1 << 20)
    kept = handler.stream

    class Full:
        def write(self, text: str) -> None:
            raise OSError(28, "No space left on device")

        def flush(self) -> None:
            """Nothing was written."""

        def seek(self, *where: int) -> None:
            """Like a file."""

        def tell(self) -> int:
            return 0

        def close(self) -> None:
            """Like a file."""

    handler.stream = Full()
    handler.handle(record("lost"))
    handler.stream = kept
    handler.handle(record("kept"))
    handler.close()
    assert [line["text"] for line in lines_of(tmp_path / "node.log")] == ["kept"]


def test_a_log_that_cannot_be_opened_is_one_line(tmp_path):
    with pytest.raises(OurFault, match="cannot be written"), open_log(tmp_path / "no" / "node.log", "info", 1 << 20):
        pytest.fail("opened")
