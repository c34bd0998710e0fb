"""Signed registers: what the door says, and the algebra of the join."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh import kinds
from mesh.base.clock import FUTURE_MS_MAX, VERSION_MAX
from mesh.base.codec import Malformed, encode
from mesh.base.crypto import Context, content_id
from mesh.base.names import NodeId, node_id
from mesh.certificates import Expulsion, RotationBody
from mesh.kinds import DAY_MS, SKEW_MS, Subject, rule_of
from mesh.records import (
    RECORD_BYTES_MAX,
    Record,
    Verdict,
    admit,
    expires_ms,
    join,
    make,
    parse_untrusted,
    quota_group,
    subject_of,
)
from mesh.schemas import BODIES, AboutBody, SealedBody
from tests.fakes.meshes import NOW, Mesh

MESH = Mesh("records")
MINE = MESH.machine("mine")
BENS = MESH.machine("bens", owner=MESH.signing_key())
MEMBERS = MESH.members()
SEALED = encode(SealedBody(0, bytes(60)))


def at(ms: int) -> int:
    return max(ms, 0) << 16 | 1


def lesson(key: bytes = b"k", body: bytes = SEALED, version: int | None = None) -> Record:
    return MESH.sign(MINE, kinds.LESSON, key, body, at(NOW.wall_ms) if version is None else version)


# The shape and the signature ---------------------------------------------------------------------------------------


def test_a_record_is_its_head_and_a_signature_and_is_named_by_its_head():
    record = lesson()
    assert parse_untrusted(record.wire) == record
    assert record.record_id == content_id(record.wire[:-64])
    assert record.order == (record.version, record.record_id)
    assert record.register == (MINE.node, kinds.LESSON, b"k")
    assert MESH.judge(record, MEMBERS) is Verdict.ADMIT


def test_every_changed_byte_of_a_record_is_refused():
    record = lesson()
    for place, change in itertools.product(range(len(record.wire)), (1, 0x80)):
        wire = bytearray(record.wire)
        wire[place] ^= change
        try:
            changed = parse_untrusted(bytes(wire))
        except Malformed:
            continue
        assert MESH.judge(changed, MEMBERS) is not Verdict.ADMIT


@pytest.mark.parametrize("wire", [b"", bytes(64), bytes(65), b"\x80" + bytes(64), bytes(RECORD_BYTES_MAX + 1)])
def test_what_is_no_record_is_refused(wire: bytes):
    with pytest.raises(Malformed):
        parse_untrusted(wire)


def test_the_id_does_not_depend_on_who_carried_it_or_on_the_signature():
    """O-G9: an author can make several signatures of the same bytes; they are one record, and relays add nothing."""
    record = lesson()
    forged = parse_untrusted(record.wire[:-64] + bytes(64))
    assert forged.record_id == record.record_id
    assert MESH.judge(forged, MEMBERS) is Verdict.FORGED


def test_a_record_of_one_mesh_is_nothing_in_another():
    """SECURITY 10: the same key in two meshes; its records of the one are forged in the other."""
    other = Mesh("another")
    other.records.append(
        make(other.founder.key, other.mesh, kinds.CERTIFICATE, MINE.node, other.version(), other.certificate(MINE.key, MINE.owner))
    )
    assert other.judge(make(MINE.key, other.mesh, kinds.LESSON, b"k", at(NOW.wall_ms), SEALED)) is Verdict.ADMIT
    for record in [*MESH.records, lesson(), MESH.sign(MINE, 999, b"k", b"x")]:
        assert other.judge(record) in (Verdict.UNKNOWN_AUTHOR, Verdict.FORGED)
    assert other.judge(lesson()) is Verdict.FORGED


@pytest.mark.parametrize("context", [c for c in Context if c is not Context.RECORD])
def test_nothing_signed_for_another_purpose_is_a_record(context: Context):
    """SECURITY 10: every object offered as every other type."""
    record = lesson()
    head = record.wire[:-64]
    posed = parse_untrusted(head + MINE.key.sign(context, MESH.mesh, head))
    assert MESH.judge(posed, MEMBERS) is Verdict.FORGED


def test_another_machines_signature_does_not_count():
    head = lesson().wire[:-64]
    posed = parse_untrusted(head + BENS.key.sign(Context.RECORD, MESH.mesh, head))
    assert MESH.judge(posed, MEMBERS) is Verdict.FORGED


# Time ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age_ms", "verdict"),
    [
        (0, Verdict.ADMIT),
        (-FUTURE_MS_MAX, Verdict.ADMIT),
        (-FUTURE_MS_MAX - 1, Verdict.HOLD),
        (-75 * 365 * DAY_MS, Verdict.HOLD),
        (180 * DAY_MS + SKEW_MS, Verdict.ADMIT),
        (180 * DAY_MS + SKEW_MS + 1, Verdict.EXPIRED),
        (50 * 365 * DAY_MS, Verdict.EXPIRED),
    ],
)
def test_the_future_is_held_back_and_the_past_is_over(age_ms: int, verdict: Verdict):
    """SECURITY 29, O-G7: held, not refused for ever: the same record is admitted once its time has come."""
    record = lesson(version=NOW.wall_ms - age_ms << 16)
    assert MESH.judge(record, MEMBERS) is verdict
    if verdict is Verdict.HOLD:
        assert MESH.judge(record, MEMBERS, now_ms=NOW.wall_ms - age_ms) is Verdict.ADMIT


CLOCKS_MS = {
    "-50 y": -50 * 365 * DAY_MS,
    "-200 d": -200 * DAY_MS,
    "-10 min": -600_000,
    "+11 min": 660_000,
    "+1 d": DAY_MS,
    "+75 y": 75 * 365 * DAY_MS,
}


@pytest.mark.parametrize("clock", CLOCKS_MS)
@pytest.mark.parametrize("kind", [kinds.EXPULSION, kinds.ROTATION, kinds.GRANT_REVOCATION])
def test_terminal_kinds_apply_on_receipt_whatever_the_clock_says(kind: int, clock: str):
    """SECURITY 7: author clocks x terminal kinds."""
    body = {
        kinds.EXPULSION: encode(Expulsion(MINE.node, ())),
        kinds.ROTATION: encode(RotationBody(MINE.key.public, bytes(32), bytes(64))),
        kinds.GRANT_REVOCATION: encode(AboutBody(MINE.node, b"revoked")),
    }[kind]
    author = MESH.founder if kind == kinds.EXPULSION else MINE
    record = MESH.sign(author, kind, MINE.node, body, at(NOW.wall_ms + CLOCKS_MS[clock]))
    assert MESH.judge(record, MEMBERS) is Verdict.ADMIT
    assert expires_ms(rule_of(kind), record.version) is None


@pytest.mark.parametrize("clock", CLOCKS_MS)
def test_ordinary_kinds_do_not(clock: str):
    record = lesson(version=at(NOW.wall_ms + CLOCKS_MS[clock]))
    assert (MESH.judge(record, MEMBERS) is Verdict.ADMIT) is (clock == "-10 min")


def test_a_mended_clock_goes_on_where_it_was_held():
    """O-G7: what was written in the future is held, and what is written after the clock was mended is admitted."""
    jumped = lesson(version=at(NOW.wall_ms + 50 * 365 * DAY_MS))
    mended = lesson(version=at(NOW.wall_ms + 1))
    assert [MESH.judge(r, MEMBERS) for r in (jumped, mended)] == [Verdict.HOLD, Verdict.ADMIT]


def test_certificates_times_do_not_matter_at_the_door():
    """SECURITY 29: else stores diverge when a certificate runs out."""
    mesh = Mesh("expiring")
    late = mesh.machine("late", not_after_s=mesh.now_s - 1)
    early = mesh.machine("early", not_before_s=mesh.now_s + 10**6)
    for machine in (late, early):
        assert mesh.judge(mesh.sign(machine, kinds.LESSON, b"k", SEALED)) is Verdict.ADMIT


# Size and schema -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*kinds.KINDS, 999])
def test_a_body_over_the_kinds_size_is_refused_before_the_signature_is_looked_at(kind: int):
    record = MESH.sign(MINE, kind, b"", bytes(rule_of(kind).body_bytes_max + 1))
    unsigned = parse_untrusted(record.wire[:-64] + bytes(64))
    assert MESH.judge(unsigned, MEMBERS) is Verdict.UNSOUND


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 64), (1 << 64) - 1) | st.binary(max_size=64) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=6),
    max_leaves=12,
)
bodies = st.binary(max_size=80) | plain.map(cbor2.dumps) | st.lists(plain, max_size=12).map(cbor2.dumps)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([*kinds.KINDS, 14, 999]), st.binary(max_size=32), bodies)
def test_any_body_of_any_kind_is_admitted_or_refused(kind: int, key: bytes, body: bytes):
    """SECURITY 17: the door never raises, and says ADMIT only of what the kind's schema allows."""
    if len(body) > 3072:
        return
    record = MESH.sign(MESH.founder, kind, key, body, at(NOW.wall_ms))
    verdict = MESH.judge(record, MEMBERS)
    assert verdict in (Verdict.ADMIT, Verdict.FORBIDDEN, Verdict.UNSOUND)
    if verdict is Verdict.ADMIT and kind in BODIES and body:
        BODIES[kind](key, body, NOW.wall_ms)


def test_who_a_record_is_about():
    author_of = MEMBERS.author
    owner = MEMBERS.certificates[MINE.node].owner
    assert subject_of(MINE.node, owner, None, author_of) is Subject.SELF
    assert subject_of(MINE.node, owner, MINE.node, author_of) is Subject.SELF
    assert subject_of(MINE.node, owner, MESH.founder.node, author_of) is Subject.SAME_OWNER
    assert subject_of(MINE.node, owner, BENS.node, author_of) is Subject.OTHER
    assert subject_of(MINE.node, owner, NodeId(bytes(16)), author_of) is Subject.OTHER


def test_an_expelled_author_has_no_say_but_what_the_fold_must_weigh_is_kept():
    """SECURITY 9: a kept certificate and a mutual expulsion must reach every store, in whatever order they travel."""
    mesh = Mesh("expelled")
    admin = mesh.machine("admin", roles=kinds.Role.ADMIN | kinds.Role.MEMBER)
    other = mesh.machine("other", roles=kinds.Role.ADMIN)
    key = mesh.signing_key()
    wire = mesh.certificate(key, mesh.ana, issuer=admin.key)
    certificate = mesh.sign(admin, kinds.CERTIFICATE, node_id(key.public), wire)
    counter = mesh.sign(admin, kinds.EXPULSION, other.node, encode(Expulsion(other.node, ())))
    mesh.expel(other.key, admin.node, keep=(content_id(wire),))
    members = mesh.members()
    assert mesh.judge(mesh.sign(admin, kinds.LESSON, b"k", SEALED), members) is Verdict.EXPELLED
    assert mesh.judge(mesh.sign(admin, kinds.GRANT, b"k", encode(AboutBody(admin.node, b""))), members) is Verdict.EXPELLED
    assert mesh.judge(certificate, members) is Verdict.ADMIT
    assert mesh.judge(counter, members) is Verdict.ADMIT


# The join ----------------------------------------------------------------------------------------------------------


def fake(author: int, kind: int, key: int, version: int, salt: int, *, empty: bool = False) -> Record:
    """A record as the join sees it; it reads no signature, so none is made."""
    body = b"" if empty else bytes([salt])
    record_id = content_id(repr((author, kind, key, version, salt, empty)).encode())
    return Record(kind, NodeId(bytes([author]) * 16), bytes([key]), version, body, record_id, b"")


SMALL_QUOTAS = [kinds.ROTATION, kinds.PRESENCE, kinds.POLICY, 999, 1000, kinds.LESSON]
records = st.builds(
    fake, st.integers(0, 1), st.sampled_from(SMALL_QUOTAS), st.integers(0, 9), st.integers(1, 6), st.integers(0, 1), empty=st.booleans()
)  # fmt: skip
histories = st.lists(records, max_size=40)
Store = dict[tuple[bytes, int, bytes], Record]


def joined(*stores: Store) -> Store:
    return join(record for store in stores for record in store.values())


@settings(max_examples=300, deadline=None)
@given(histories, histories, histories)
def test_the_join_is_associative_commutative_and_idempotent(a: list[Record], b: list[Record], c: list[Record]):
    """T1, PROTOCOL 5: the store is a join semilattice."""
    x, y, z = join(a), join(b), join(c)
    assert joined(x, y) == joined(y, x)
    assert joined(joined(x, y), z) == joined(x, joined(y, z))
    assert joined(x, x) == x
    assert join(x.values()) == x
    assert joined(x, y) == join([*a, *b])


@settings(max_examples=300, deadline=None)
@given(histories, st.randoms(use_true_random=False))
def test_batches_order_and_duplicates_make_no_difference(history: list[Record], chance: random.Random):
    shuffled = [*history, *chance.choices(history, k=len(history) // 2)] if history else []
    chance.shuffle(shuffled)
    store: Store = {}
    while shuffled:
        take = chance.randint(1, 7)
        store = join([*store.values(), *shuffled[:take]])
        shuffled = shuffled[take:]
    assert store == join(history)


@settings(max_examples=200, deadline=None)
@given(histories)
def test_the_greatest_version_stays_and_no_quota_is_exceeded(history: list[Record]):
    store = join(history)
    for register, record in store.items():
        assert record.register == register
        assert record.order == max(r.order for r in history if r.register == register)
    for author, group in {(r.author, quota_group(r.kind)) for r in history}:
        group_records = [r for r in store.values() if (r.author, quota_group(r.kind)) == (author, group)]
        registers = {r.register for r in history if (r.author, quota_group(r.kind)) == (author, group)}
        assert len(group_records) == min(len(registers), rule_of(group).quota)


def test_equivocation_ends_the_same_everywhere():
    """O-G3, PROTOCOL 5: two bodies of one version; the greater id wins wherever and however often they arrive."""
    two = [lesson(body=encode(SealedBody(0, bytes([n]) * 60)), version=at(NOW.wall_ms)) for n in range(4)]
    winner = max(two, key=lambda r: r.record_id)
    assert all(MESH.judge(r, MEMBERS) is Verdict.ADMIT for r in two)
    for order in itertools.permutations(two):
        assert list(join(order).values()) == [winner]


def test_unknown_kinds_of_one_author_share_one_quota():
    """SECURITY 16: a hundred thousand invented kinds do not fill a disk."""
    flood = [fake(1, 1000 + n, 0, n + 1, 0) for n in range(5000)]
    assert len(join(flood)) == kinds.UNKNOWN_QUOTA
    assert min(r.version for r in join(flood).values()) == 5001 - kinds.UNKNOWN_QUOTA


# Replicas over time -------------------------------------------------------------------------------------------------


End = Callable[[Record], int]


def by_version(record: Record) -> int:
    """The rule: a record's end is a function of its version and its kind."""
    return expires_ms(rule_of(record.kind), record.version) or 0


def by_choice(record: Record) -> int:
    """What the protocol does not do: let each record choose its own end."""
    return by_version(record) - record.body.count(1) * 150 * DAY_MS


class Replica:
    """What a store does with time: take, offer, expire."""

    def __init__(self, end: End) -> None:
        self.end = end
        self.held: Store = {}
        self.away = False

    def take(self, records: Sequence[Record], now_ms: int) -> None:
        fit = [r for r in records if r.version >> 16 <= now_ms + FUTURE_MS_MAX and self.end(r) + SKEW_MS >= now_ms]
        self.held = join([*self.held.values(), *fit])

    def offer(self, now_ms: int) -> list[Record]:
        return [r for r in self.held.values() if self.end(r) > now_ms + SKEW_MS]

    def sweep(self, now_ms: int) -> None:
        self.held = {k: r for k, r in self.held.items() if self.end(r) + SKEW_MS >= now_ms}

    def shown(self, now_ms: int) -> Store:
        return {k: r for k, r in self.held.items() if self.end(r) > now_ms}


def live_through(seed: int, end: End = by_version) -> bool:
    """Five replicas with skewed clocks write, withdraw, meet, sleep and forget for a while.

    Returns:
        Whether a replica showed an older version of a register than it had shown before.
    """
    chance = random.Random(seed)
    replicas = [Replica(end) for _ in range(5)]
    skews_ms = [chance.randint(-SKEW_MS // 2, SKEW_MS // 2) for _ in replicas]
    shown: dict[tuple[int, tuple[bytes, int, bytes]], int] = {}
    newest = [0] * len(replicas)
    now_ms = NOW.wall_ms
    for _ in range(120):
        now_ms += chance.choice([1000, 60_000, DAY_MS, 40 * DAY_MS])
        who = chance.randrange(len(replicas))
        here = replicas[who]
        clock_ms = now_ms + skews_ms[who]
        action = chance.random()
        if action < 0.35:
            newest[who] = max(clock_ms << 16, newest[who] + 1)
            kind, key = chance.choice([(kinds.LESSON, chance.randrange(3)), (999, chance.randrange(90))])
            here.take([fake(who, kind, key, newest[who], chance.randrange(9), empty=chance.random() < 0.3)], clock_ms)
        elif action < 0.45:
            here.away = not here.away
        elif action < 0.85:
            there = replicas[other := chance.randrange(len(replicas))]
            if not (here.away or there.away):
                there.take(here.offer(clock_ms), now_ms + skews_ms[other])
                here.take(there.offer(now_ms + skews_ms[other]), clock_ms)
        else:
            here.sweep(clock_ms)
        for number, replica in enumerate(replicas):
            for register, record in replica.shown(now_ms + skews_ms[number]).items():
                if record.version < shown.get((number, register), 0):
                    return True
                shown[number, register] = record.version
    return False


def test_old_versions_never_come_back():
    """PROTOCOL 5: what superseded or evicted a value outlives it. 200 histories; more with --soak."""
    assert [seed for seed in range(200) if live_through(seed)] == []


def test_these_histories_would_show_a_record_that_chose_its_own_end():
    assert any(live_through(seed, by_choice) for seed in range(60))


@pytest.mark.soak
def test_old_versions_never_come_back_in_thousands_of_histories():
    assert [seed for seed in range(200, 6000) if live_through(seed)] == []


def test_versions_end_where_the_protocol_ends():
    record = lesson(version=VERSION_MAX)
    assert parse_untrusted(record.wire).version == VERSION_MAX
    assert MESH.judge(record, MEMBERS) is Verdict.HOLD
    with pytest.raises(Malformed):
        lesson(version=VERSION_MAX + 1)
    with pytest.raises(Malformed):
        lesson(version=0)


def test_the_root_is_an_author_like_others():
    record = make(MESH.root, MESH.mesh, kinds.EXPULSION, MINE.node, at(1), encode(Expulsion(MINE.node, ())))
    assert admit(record, mesh=MESH.mesh, author_of=MEMBERS.author, bodies=BODIES, now_ms=NOW.wall_ms) is Verdict.ADMIT
