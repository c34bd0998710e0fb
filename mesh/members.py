"""Who is a member now, folded from signed statements.

A certificate says who a machine is and whose; it never says what the machine may run elsewhere. The chain is at most
root -> admin -> machine, checked in one place (:meth:`Members.check_untrusted`).
"""

from __future__ import annotations

from collections.abc import Iterable

from mesh.base.codec import Malformed
from mesh.base.errors import Refused
from mesh.base.names import MeshId, NodeId, OwnerId, node_id
from mesh.certificates import (
    LIFE_S,
    RENEW_GRACE_S,
    Certified,
    Genesis,
    certified_by,
    nobody,
    open_untrusted,
    read_epoch,
    read_expulsion,
)
from mesh.kinds import CERTIFICATE, EPOCH, EXPULSION, FLEET_EPOCH, LEAVING, Role
from mesh.records import Author, Record

CHAIN_MAX = 2
CLOCK_SKEW_S = 26 * 3_600
"""A certificate counts this long before its first second, so that a joiner a day behind can link at once."""


class Expelled(Refused):
    """The machine was expelled from this mesh.

    Args:
        proof: The expulsion as a record, so that the expelled machine can see for itself who said so.
    """

    def __init__(self, message: str, *, proof: bytes) -> None:
        super().__init__(message, reason="expelled", hint="a person of this mesh can let it in again with a new invite")
        self.proof = proof


class Members:
    """Who is in the mesh: a fold over the control lane, never changed in place.

    Args:
        genesis: The founding statement, decoded.
        mesh: Its id.
        records: Admitted records of the control lane, any order; kinds other than certificates and expulsions are
            passed over.
    """

    def __init__(self, genesis: Genesis, mesh: MeshId, records: Iterable[Record] = ()) -> None:
        self.genesis = genesis
        self.mesh = mesh
        self.root = node_id(genesis.root_key)
        held = sorted((r for r in records if r.body), key=lambda r: r.order)
        certificates = [r for r in held if r.kind == CERTIFICATE]
        self.expelled_lineages: set[bytes] = set()
        self.expulsions: dict[bytes, Record] = {}
        self._keep: dict[bytes, set[bytes]] = {}
        self.certificates: dict[NodeId, Certified] = {}
        self.frozen: set[NodeId] = set()
        self.left = {NodeId(r.author) for r in held if r.kind == LEAVING}
        # The root's word first: it makes the admins; then who of them is out; then what the admins say of others.
        for record in certificates:
            if record.author == self.root:
                self._take_certificate(record)
        self._take_expulsions([r for r in held if r.kind == EXPULSION])
        for record in certificates:
            if record.author != self.root:
                self._take_certificate(record)
        epochs = ((record, read_epoch(record.body)) for record in held if record.kind in (EPOCH, FLEET_EPOCH))
        self._epochs = [(record, commitment) for record, commitment in epochs if commitment is not None]

    def _take_certificate(self, record: Record) -> None:
        """Add one certificate; where two disagree about a machine's owner, the machine is frozen and shown so.

        It counts in its issuer's own record only, so that nobody brings back an older one under a newer version.
        """
        try:
            certified = self._chain_checked(record.body)
        except (Malformed, Refused):
            return
        if certified.issuer != record.author:
            return
        other = self.certificates.get(certified.node)
        if other is None or (self._is_orphaned(other) and not self._is_orphaned(certified)):
            self.certificates[certified.node] = certified
            return
        if self._is_orphaned(certified) or other.issuer == self.root != certified.issuer:
            return  # An expelled admin's word changes nothing; what the root said of a machine, no admin changes.
        if other.owner != certified.owner:
            self.frozen.add(certified.node)
            if (other.owner_proven, other.fingerprint) > (certified.owner_proven, certified.fingerprint):
                return
        self.certificates[certified.node] = certified

    def _take_expulsions(self, records: list[Record]) -> None:
        """Take the root's expulsions, and those of admins it did not expel.

        Two admins who expel each other are both out, else stores would end apart by order of arrival; the root has the
        last word. A keep list counts for certificates of the lineage it is about, and only where its author is not out.
        """
        read = [(record, read_expulsion(record.body)) for record in records]
        said = [(record, expulsion) for record, expulsion in read if expulsion is not None]
        out_by_root = {expulsion.lineage for record, expulsion in said if record.author == self.root}
        counted = [
            (record, expulsion)
            for record, expulsion in said
            if record.author == self.root
            or (self._is_admin(record.author) and self._lineage(record.author) not in out_by_root)
        ]
        self.expelled_lineages = {expulsion.lineage for _, expulsion in counted}
        self.expulsions = {expulsion.lineage: record for record, expulsion in counted}
        for author, expulsion in ((record.author, expulsion) for record, expulsion in counted):
            if author == self.root or self._lineage(author) not in self.expelled_lineages:
                self._keep.setdefault(expulsion.lineage, set()).update(expulsion.keep)

    def _is_admin(self, node: NodeId) -> bool:
        certified = self.certificates.get(node)
        return certified is not None and bool(certified.roles & Role.ADMIN)

    def _lineage(self, node: NodeId) -> bytes:
        certified = self.certificates.get(node)
        return certified.lineage if certified is not None else node

    def _is_orphaned(self, certified: Certified, issuer: Certified | None = None) -> bool:
        """Whether a certificate died with its expelled issuer; its exact bytes on a keep list save it."""
        if certified.issuer == self.root:
            return False
        lineage = issuer.lineage if issuer is not None else self._lineage(NodeId(certified.issuer))
        return lineage in self.expelled_lineages and certified.fingerprint not in self._keep.get(lineage, ())

    def _chain_checked(self, wire: bytes, extra: Certified | None = None) -> Certified:
        """Verify one certificate against the root, or against an admin who is known or given."""
        body = open_untrusted(wire)[1]
        if body.issuer == self.root:
            key = self.genesis.root_key
        else:
            issuer = self.certificates.get(NodeId(body.issuer))
            if issuer is None and extra is not None and extra.node == body.issuer:
                issuer = extra
            if issuer is None:
                raise Refused("the certificate's issuer is not known here", reason="unknown_issuer")
            if issuer.issuer != self.root or not issuer.roles & Role.ADMIN or body.roles & Role.ADMIN:
                raise Refused("the certificate's issuer may not issue it", reason="bad_chain")
            key = issuer.public_key
        if body.not_after_s is None and not body.roles & Role.ADMIN:
            raise Refused("a certificate without an end is only for admins", reason="bad_chain")
        certified = certified_by(wire, key, self.mesh)
        if certified is None:
            raise Refused("the certificate was not signed by its issuer in this mesh", reason="bad_signature")
        return certified

    def check_untrusted(
        self, chain: tuple[bytes, ...], *, now_s: int, me: NodeId, expired_too: bool = False
    ) -> Certified:
        """Check what a peer shows of itself: the one place where a certificate becomes a right to a link.

        Args:
            chain: Its certificate first, its issuer's behind it (where that is not the root).
            now_s: This machine's wall clock.
            me: This machine, which never links to itself.
            expired_too: Let an expired one pass: its link is then the control lane's only, so that it can be renewed.

        Returns:
            The certificate's content.

        Raises:
            Malformed: Not certificates.
            Refused: Wrong mesh, chain, time or signature; expelled; or it is this machine itself.
        """
        if not 1 <= len(chain) <= CHAIN_MAX:
            raise Malformed("a chain has one or two certificates")
        issuer = self._chain_checked(chain[1]) if len(chain) > 1 else None
        certified = self._chain_checked(chain[0], issuer)
        if certified.node == me:
            raise Refused("that is this machine itself", reason="self")
        if self.is_out(certified, issuer if issuer is not None and issuer.node == certified.issuer else None):
            raise Expelled(f"{certified.name} was expelled from this mesh", proof=self._proof_against(certified, issuer))
        if certified.node in self.left:
            raise Refused(f"{certified.name} has left this mesh", reason="left")
        if now_s + CLOCK_SKEW_S < certified.not_before_s:
            raise Refused("the certificate begins in the future; is a clock wrong?", reason="clock")
        if not expired_too and certified.not_after_s is not None and now_s > certified.not_after_s:
            raise Refused(f"the certificate of {certified.name} has expired", reason="expired")
        return certified

    def is_out(self, certified: Certified, issuer: Certified | None = None) -> bool:
        """Whether a machine's lineage was expelled, or its certificate died with its issuer.

        Args:
            certified: The machine's certificate.
            issuer: Its issuer's, where that came along and may not be known here.
        """
        if certified.lineage in self.expelled_lineages or certified.node in self.expelled_lineages:
            return True
        return self._is_orphaned(certified, issuer)

    def _proof_against(self, certified: Certified, issuer: Certified | None) -> bytes:
        """Find the expulsion by which a machine is out: of itself, or of who issued its certificate."""
        of_issuer = self._lineage(NodeId(certified.issuer)) if issuer is None else issuer.lineage
        lineages = (certified.lineage, certified.node, of_issuer)
        return next((self.expulsions[lineage].wire for lineage in lineages if lineage in self.expulsions), b"")

    def renewable(self, node: NodeId, now_s: int) -> Certified | None:
        """Find the certificate of a machine that any admin should renew by itself now; None where none is due.

        Due is one at two thirds of its life, and until 30 days after its end; then somebody may have lost the machine
        without noticing, and a person must say so. Short-lived ones were meant to end.
        """
        certified = self.certificates.get(node)
        if certified is None or certified.not_after_s is None or not self.may_renew(certified):
            return None
        life_s = certified.not_after_s - certified.not_before_s
        due = certified.not_before_s + 2 * life_s // 3 <= now_s <= certified.not_after_s + RENEW_GRACE_S
        return certified if due and life_s >= LIFE_S else None

    def may_renew(self, certified: Certified) -> bool:
        """Whether an admin may issue this certificate anew: not an admin's, nor that of who is out or in dispute."""
        by_admin = certified.issuer != self.root and not certified.roles & Role.ADMIN
        return by_admin and not self.is_out(certified) and certified.node not in self.frozen | self.left

    def gate_epochs(self) -> list[tuple[bytes, int]]:
        """List the commitments to gate keys, newest first, each with its version.

        Those of an admin who is out come last: they are still known, and never the newest.
        """
        said = [(r, c) for r, c in self._epochs if r.kind == EPOCH and (r.author == self.root or self._is_admin(r.author))]
        said.sort(key=lambda pair: (self._counts(pair[0].author), pair[0].order), reverse=True)
        return [(commitment, record.version) for record, commitment in said]

    def fleet_epochs(self, owner: OwnerId) -> list[bytes]:
        """List the commitments to one person's fleet keys, oldest first; a machine that is out says nothing."""
        return [
            commitment
            for record, commitment in self._epochs
            if record.kind == FLEET_EPOCH
            and self._counts(record.author)
            and (author := self.author(record.author)) is not None
            and author.owner == owner
        ]

    def _counts(self, node: NodeId) -> bool:
        author = self.author(node)
        return author is not None and not author.expelled

    def author(self, node: NodeId) -> Author | None:
        """Look up what the door must know of a record's author."""
        if node == self.root:
            return Author(self.genesis.root_key, Role(0), OwnerId(bytes(16)), root=True, expelled=False)
        certified = self.certificates.get(node)
        if certified is None:
            return None
        owner = nobody(node) if node in self.frozen else certified.owner
        return Author(certified.public_key, certified.roles, owner, root=False, expelled=self.is_out(certified))

    def chain_of(self, node: NodeId) -> tuple[bytes, ...]:
        """The certificates a machine shows: its own, and its issuer's where that is not the root."""
        own = self.certificates[node]
        if own.issuer == self.root:
            return (own.wire,)
        return own.wire, self.certificates[NodeId(own.issuer)].wire
