"""Everything a task's other side, or a task itself, may write, read by the one function that takes it."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import pytest
import trio
import trio.lowlevel
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.base.codec import encode
from mesh.base.crypto import Context, SigningKey
from mesh.base.errors import PeerFault, Refused
from mesh.base.names import MeshId, NodeId, node_id
from node.messages import (
    TASK_MESSAGES,
    TASK_PURPOSES,
    AnswerBody,
    Offer,
    OfferBody,
    Output,
    OutputGap,
    TaskSpec,
)
from node.tasks.checkout import _read_trees_untrusted
from node.tasks.incoming import read_offer_untrusted
from node.tasks.log import FRAME_BYTES_MAX, SEGMENTS_MAX, LogWriter
from node.tasks.outgoing import Inflow
from node.tasks.output import Frame, Gap, LogReader
from node.tasks.place import open_folder
from node.tasks.supervisor import read_order
from node.tasks.tether import read_exit
from node.tasks.trees import measure, parse_tree_untrusted
from tests.fakes.machines import Fleet

MESH = MeshId(b"mesh-of-the-fuzz")
KEY = SigningKey(b"k" * 32)
ME = NodeId(b"w" * 16)
SOUND = encode(OfferBody(b"t" * 16, 1, node_id(KEY.public), ME, TaskSpec(1, (b"make", b"x"), "p", None, None, 60), 0, 1, 2))

messages = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda at, byte: SOUND[: at % len(SOUND)] + bytes([byte]) + SOUND[at % len(SOUND) + 1 :], st.integers(0, 999), st.integers(0, 255)),
    st.builds(lambda cut: SOUND[:cut], st.integers(0, len(SOUND))),
)


@given(messages)
def test_messages_are_messages_or_malformed(data: bytes):
    try:
        TASK_MESSAGES.decode_untrusted(data, bytes_max=60_000)
    except PeerFault:
        return


@given(messages, st.booleans())
def test_offers_are_offers_or_faults(data: bytes, signed: bool):
    """Even a member that signs whatever it likes gets a fault, never another error."""
    signature = KEY.sign(Context.OFFER, MESH, data) if signed else bytes(64)
    try:
        body = read_offer_untrusted(Offer(data, signature), MESH, node_id(KEY.public), KEY.public, ME)
    except PeerFault:
        return
    assert signed
    assert (body.requester, body.worker) == (node_id(KEY.public), ME)
    assert body.spec.argv[0]


@given(st.integers(0, len(SOUND) - 1), st.integers(1, 255))
def test_every_changed_byte_of_an_offer_is_noticed(at: int, flip: int):
    changed = SOUND[:at] + bytes([SOUND[at] ^ flip]) + SOUND[at + 1 :]
    with pytest.raises(PeerFault):
        read_offer_untrusted(Offer(changed, KEY.sign(Context.OFFER, MESH, SOUND)), MESH, node_id(KEY.public), KEY.public, ME)


lines = st.builds(
    lambda mode, name, target: mode + b" " + name + b"\0" + target,
    st.sampled_from([b"100644", b"100755", b"40000", b"120000", b"160000", b"0", b""]),
    st.one_of(st.binary(max_size=20), st.sampled_from([b".git", b"..", b"git~1", b"a"])),
    st.binary(min_size=20, max_size=20),
)


@given(st.one_of(st.binary(max_size=300), st.lists(lines, max_size=6).map(b"".join)))
def test_trees_are_trees_or_bad(data: bytes):
    try:
        entries = parse_tree_untrusted(data, id_bytes=20)
        measure(b"r", {b"r": entries}, {entry.object_id: 1 for entry in entries})
    except PeerFault:
        return
    assert all(b"/" not in entry.name and entry.name not in (b"", b".", b"..", b".git") for entry in entries)


@given(st.lists(st.lists(lines, max_size=4).map(b"".join), max_size=4))
def test_what_git_says_about_trees_is_read(bodies: list[bytes]):
    said = b"".join(hashlib.sha1(body).hexdigest().encode() + b" tree %d\n" % len(body) + body + b"\n" for body in bodies)
    try:
        trees = _read_trees_untrusted(said, 20)
    except PeerFault:
        return
    assert len(trees) == len(set(bodies))


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 500), st.binary(max_size=120), max_size=4), st.integers(0, 600), st.integers(0, 600))
def test_any_bytes_in_a_log_are_read_in_order_without_an_error(segments: dict[int, bytes], offset: int, end: int):
    """A task may write into its own log; the reader neither fails, nor loops, nor goes back."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "log").mkdir()
        for start, content in segments.items():
            (Path(folder) / "log" / f"{start:016x}").write_bytes(content)
        opened = open_folder(folder)
        reader = LogReader(opened, offset)
        at = offset
        for _ in range(1_000):
            pieces = reader.read_to(end)
            if not pieces:
                break
            for piece in pieces:
                start = piece.offset if isinstance(piece, Frame) else piece.start
                assert start == at
                at = start + len(piece.data) if isinstance(piece, Frame) else piece.end
                assert isinstance(piece, Frame | Gap)
        else:
            raise AssertionError("it never ends")
        reader.close()
        os.close(opened)
        assert at >= min(end, offset)


@given(st.binary(max_size=200))
def test_exit_files_and_orders_are_read_or_none(data: bytes):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "exit").write_bytes(data)
        read_exit(Path(folder))
    assert read_order(data) is None or data.endswith(b"\0end=\0")


pieces = st.one_of(
    st.builds(Output, st.integers(0, 300), st.sampled_from([1, 2]), st.binary(min_size=1, max_size=40)),
    st.builds(OutputGap, st.integers(0, 300), st.integers(0, 1 << 50)),
)


@settings(deadline=None, max_examples=40)
@given(st.lists(pieces, max_size=120))
def test_whatever_a_worker_sends_is_stored_in_few_files_or_is_a_fault(sent: list[Output | OutputGap]):
    with tempfile.TemporaryDirectory() as folder:
        at = open_folder(folder)
        log = LogWriter(at, 17 * FRAME_BYTES_MAX)
        inflow = Inflow(log)
        try:
            for piece in sent:
                before = log.end
                inflow.take_untrusted(piece)
                assert log.end >= before
        except PeerFault:
            assert log.end == before
        log.close()
        os.close(at)
        assert not (Path(folder) / "log").exists() or len(os.listdir(Path(folder) / "log")) <= SEGMENTS_MAX


@settings(deadline=None, max_examples=15)
@given(st.lists(st.tuples(st.sampled_from(list(TASK_PURPOSES)), messages), min_size=1, max_size=8))
def test_no_sequence_of_requests_brings_a_worker_down(requests: list[tuple[int, bytes]]):
    async def main() -> None:
        with tempfile.TemporaryDirectory() as folder:
            fleet = Fleet(Path(folder))
            mini, laptop = fleet.machine("mini"), fleet.machine("laptop")
            channels = fleet.network.join(laptop.node)
            with trio.fail_after(20):
                async with mini.up() as works:
                    for purpose, request in requests:
                        channel = await channels.open_channel(mini.node, purpose, request)
                        await channel.aclose()
                    await trio.lowlevel.checkpoint()
                    assert works.tasks(all_=True) == []

    trio.run(main)


@given(st.binary(max_size=200))
def test_answers_are_judged_or_malformed(data: bytes):
    from mesh.base.codec import decode_untrusted

    try:
        body = decode_untrusted(AnswerBody, data, bytes_max=512)
    except (PeerFault, Refused):
        return
    assert body.decision in (1, 2)
