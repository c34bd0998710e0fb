"""The rights table, cell by cell, against a table written out by hand, in the table itself and at the door."""

from __future__ import annotations

import itertools

import pytest

from mesh import kinds
from mesh.base.codec import encode
from mesh.base.crypto import Context
from mesh.base.names import NodeId
from mesh.certificates import EpochBody, Expulsion, LeavingBody, PolicyBody, RotationBody
from mesh.copies import ProofBody
from mesh.kinds import DAY_MS, KINDS, Lane, Role, Subject, may_author, role_names, roles_named, rule_of
from mesh.members import Members
from mesh.presence import Presence
from mesh.records import Author, Verdict, admit, make
from mesh.schemas import BODIES, AboutBody, SealedBody
from tests.fakes.meshes import NOW, Machine, Mesh

SELF, SAME, OTHER = Subject.SELF, Subject.SAME_OWNER, Subject.OTHER
V, M, W, R, A = Role.VIEWER, Role.MEMBER, Role.WORKER, Role.RELAY, Role.ADMIN

# LAYOUT, "Record kinds": who may author which kind about whom. What is not written here is forbidden.
ALLOWED: dict[str, set[tuple[Role, Subject]]] = {
    "certificate": {(A, SELF), (A, SAME), (A, OTHER)},
    "epoch": {(A, SELF), (A, SAME), (A, OTHER)},
    "policy": {(A, SELF), (A, SAME), (A, OTHER)},
    "expulsion": {(A, SELF), (A, SAME), (A, OTHER)},
    "rotation": {(V, SELF), (M, SELF), (W, SELF), (R, SELF), (A, SELF)},
    "grant": {(M, SELF), (M, SAME)},
    "grant revocation": {(M, SELF), (M, SAME), (A, SELF), (A, SAME), (A, OTHER)},
    "copy proof": set(itertools.product(Role, Subject)),
    "fleet epoch": {(M, SELF)},
    "leaving": {(V, SELF), (M, SELF), (W, SELF), (R, SELF), (A, SELF)},
    "presence": {(V, SELF), (M, SELF), (W, SELF), (R, SELF), (A, SELF)},
    "session": {(M, SELF)},
    "waiting": {(M, SELF)},
    "lesson": {(M, SELF)},
    "acceptance": {(M, SELF)},
    "unknown": {(V, SELF), (M, SELF), (W, SELF), (R, SELF), (A, SELF)},
}
BY_ROOT = {"certificate", "epoch", "policy", "expulsion"}
NUMBERS = {
    "certificate": 1, "epoch": 2, "policy": 3, "expulsion": 4, "rotation": 5, "grant": 6, "grant revocation": 7,
    "copy proof": 8, "fleet epoch": 9, "leaving": 10, "presence": 16, "session": 32, "waiting": 33, "lesson": 48, "acceptance": 49, "unknown": 999,
}  # fmt: skip
LANES = {
    Lane.CONTROL: {"certificate", "epoch", "policy", "expulsion", "rotation", "grant", "grant revocation", "copy proof", "fleet epoch", "leaving"},
    Lane.HIVE: {"lesson", "acceptance", "unknown"},
    Lane.PRESENCE: {"presence"},
    Lane.INVENTORY: {"session", "waiting"},
}
CELLS = list(itertools.product(NUMBERS, Role, Subject))


def test_the_tables_name_the_same_kinds():
    """A new kind without a row here, in the table of rights and in the schemas fails this test."""
    assert {rule.name: number for number, rule in KINDS.items()} | {"unknown": 999} == NUMBERS
    assert ALLOWED.keys() == NUMBERS.keys()
    assert BODIES.keys() == KINDS.keys()
    numbers = {name: value for name, value in vars(kinds).items() if name.isupper() and type(value) is int}
    declared = {value for name, value in numbers.items() if name.replace("_", " ").lower() in NUMBERS}
    assert declared == set(KINDS)
    assert {name for names in LANES.values() for name in names} == NUMBERS.keys()


@pytest.mark.parametrize(("name", "role", "subject"), CELLS)
def test_every_cell_of_the_rights_table(name: str, role: Role, subject: Subject):
    """SECURITY 4: kind x role x subject, one cell each."""
    assert may_author(rule_of(NUMBERS[name]), role, subject) is ((role, subject) in ALLOWED[name])


def test_a_set_of_roles_allows_what_one_of_them_allows():
    for name, bits, subject in itertools.product(NUMBERS, range(32), Subject):
        expected = any((role, subject) in ALLOWED[name] for role in Role if role & bits)
        assert may_author(rule_of(NUMBERS[name]), Role(bits), subject) is expected


def test_lanes_lives_and_quotas():
    for lane, names in LANES.items():
        assert {rule_of(NUMBERS[name]).lane for name in names} == {lane}
    for name, number in NUMBERS.items():
        rule = rule_of(number)
        assert rule.root is (name in BY_ROOT)
        assert rule.terminal is (name in {"expulsion", "rotation", "grant revocation", "leaving"})
        assert 1 <= rule.quota <= 4096
        assert 1 <= rule.body_bytes_max <= 2560
        assert rule.life_ms is None or rule.life_ms > kinds.SKEW_MS
    assert rule_of(kinds.LESSON).life_ms == rule_of(kinds.ACCEPTANCE).life_ms == 180 * DAY_MS
    assert rule_of(kinds.LESSON).quota == 200
    assert rule_of(kinds.SESSION).life_ms == rule_of(kinds.WAITING).life_ms == 15 * 60 * 1000


def test_a_terminal_kind_never_ends_by_its_authors_clock():
    """SECURITY 7: a revocation by a machine whose clock says 1970 must not be over when it arrives."""
    assert [rule.name for rule in KINDS.values() if rule.terminal and rule.life_ms is not None] == []


def test_unknown_kinds_share_one_small_row_outside_the_control_lane():
    """SECURITY 16."""
    for number in (0, 14, 15, 17, 50, 999, 65535):
        rule = rule_of(number)
        assert (rule.name, rule.lane, rule.quota, rule.body_bytes_max) == ("unknown", Lane.HIVE, 64, 512)
        assert rule.life_ms == 7 * DAY_MS
        assert not rule.root
        assert not rule.terminal


def test_roles_are_words_for_people():
    for bits in range(32):
        assert roles_named(list(role_names(Role(bits)))) == Role(bits)
    assert roles_named(["member", "root"]) is None
    assert roles_named([]) == Role(0)
    assert role_names(Role.ADMIN | Role.VIEWER) == ("viewer", "admin")
    assert int(V | M | W | R | A) == kinds.ROLES_ALL


# The same table, at the door, with real certificates ----------------------------------------------------------------


class Cast:
    """One author a role, and the machines it can write about."""

    def __init__(self) -> None:
        self.mesh = Mesh("cast")
        self.ben = self.mesh.signing_key()
        self.authors = {role: self.mesh.machine(role.name or "", roles=role) for role in Role}
        self.mine = self.mesh.machine("mine")
        self.bens = self.mesh.machine("bens", owner=self.ben)
        self.members: Members = self.mesh.members()

    def subject(self, author: Machine, subject: Subject) -> Machine:
        return {SELF: author, SAME: self.mine, OTHER: self.bens}[subject]

    def body(self, name: str, about: Machine) -> tuple[bytes, bytes] | None:
        """The key and a sound body of a kind that concerns a machine; None where the kind can only be about oneself."""
        mesh = self.mesh
        presence = Presence(bytes(8), 30, "n", "1", (), (), 0, 0)
        sealed = encode(SealedBody(0, bytes(60)))
        return {
            "certificate": lambda: (about.node, mesh.certificate(about.key, about.owner)),
            "expulsion": lambda: (about.node, encode(Expulsion(about.node, ()))),
            "grant": lambda: (bytes(10), encode(AboutBody(about.node, b"g"))),
            "grant revocation": lambda: (bytes(10), encode(AboutBody(about.node, b"r"))),
            "fleet epoch": lambda: (bytes(16), encode(EpochBody(bytes(32)))),
            "leaving": lambda: (b"", encode(LeavingBody(5))),
            "epoch": lambda: (bytes(16), encode(EpochBody(bytes(32)))),
            "policy": lambda: (b"", encode(PolicyBody(50))),
            "rotation": lambda: (b"", encode(RotationBody(bytes(32), bytes(32), bytes(64)))),
            "copy proof": lambda: (about.node, encode(ProofBody(about.key.public, (), (b"1", b"2")))),
            "presence": lambda: (b"", encode(presence)),
            "unknown": lambda: (b"k", b"body"),
        }.get(name, lambda: (b"k", sealed))()


ABOUT_MACHINES = {"certificate", "expulsion", "grant", "grant revocation"}


@pytest.fixture(scope="module")
def cast() -> Cast:
    return Cast()


@pytest.mark.parametrize(("name", "role", "subject"), [c for c in CELLS if c[0] in ABOUT_MACHINES or c[2] is SELF])
def test_every_cell_at_the_door_with_real_certificates(cast: Cast, name: str, role: Role, subject: Subject):
    """SECURITY 4: exactly the table's cells are admitted, the rest is forbidden, whoever signs well."""
    author = cast.authors[role]
    key, body = cast.body(name, cast.subject(author, subject))
    record = cast.mesh.sign(author, NUMBERS[name], key, body)
    expected = Verdict.ADMIT if (role, subject) in ALLOWED[name] else Verdict.FORBIDDEN
    assert cast.mesh.judge(record, cast.members) is expected


@pytest.mark.parametrize("name", NUMBERS)
def test_what_the_root_may_author(cast: Cast, name: str):
    key, body = cast.body(name, cast.bens)
    record = make(cast.mesh.root, cast.mesh.mesh, NUMBERS[name], key, cast.mesh.version(), body)
    assert cast.mesh.judge(record, cast.members) is (Verdict.ADMIT if name in BY_ROOT else Verdict.FORBIDDEN)


@pytest.mark.parametrize(("name", "role"), list(itertools.product(NUMBERS, Role)))
def test_who_may_withdraw(cast: Cast, name: str, role: Role):
    """A tombstone is its author's own. What is terminal, or the mesh's own word, is never taken back, only superseded.

    Else an admin could make a machine a stranger to everybody, itself included, without an expulsion anybody sees.
    """
    record = cast.mesh.sign(cast.authors[role], NUMBERS[name], bytes(16), b"")
    final = name in BY_ROOT | {"rotation", "grant revocation", "leaving"}
    allowed = not final and any(r == role for r, _ in ALLOWED[name])
    assert cast.mesh.judge(record, cast.members) is (Verdict.ADMIT if allowed else Verdict.FORBIDDEN)


@pytest.mark.parametrize("name", NUMBERS)
def test_the_root_withdraws_nothing(cast: Cast, name: str):
    record = make(cast.mesh.root, cast.mesh.mesh, NUMBERS[name], bytes(16), cast.mesh.version(), b"")
    assert cast.mesh.judge(record, cast.members) is Verdict.FORBIDDEN


@pytest.mark.parametrize("name", NUMBERS)
def test_a_stranger_and_an_owner_whose_key_did_not_sign_have_no_say(cast: Cast, name: str):
    """SECURITY 5: a certificate without the owner's signature is nobody's machine, so it is of no common owner."""
    stranger = Machine(cast.mesh.signing_key(), cast.ben, b"", cast.mine.record)
    key, body = cast.body(name, stranger)
    record = cast.mesh.sign(stranger, NUMBERS[name], key, body)
    assert cast.mesh.judge(record, cast.members) is Verdict.UNKNOWN_AUTHOR

    mesh = Mesh("unproven")
    mine = mesh.machine("mine")
    claimed = mesh.machine("evil", owner=mesh.ana, countersigned=False)
    grant = mesh.sign(claimed, kinds.GRANT, bytes(10), encode(AboutBody(mine.node, b"g")))
    assert mesh.judge(grant) is Verdict.FORBIDDEN


def test_the_door_asks_for_nothing_but_the_author_and_the_subject(cast: Cast):
    """The lookups of one admission: bounded, and only of ids the record names."""
    asked: list[NodeId] = []
    author = cast.authors[M]

    def lookup(node: NodeId) -> Author | None:
        asked.append(node)
        return cast.members.author(node)

    record = cast.mesh.sign(author, kinds.GRANT, bytes(10), encode(AboutBody(cast.mine.node, b"g")))
    assert admit(record, mesh=cast.mesh.mesh, author_of=lookup, bodies=BODIES, now_ms=NOW.wall_ms) is Verdict.ADMIT
    assert asked == [author.node, cast.mine.node]


def test_every_kind_of_signed_thing_has_its_own_context():
    assert {context.value for context in Context} >= {"certificate", "owner", "record", "invite", "rotation"}
