"""The keys of this home: made once, in a wholly fresh home only, and never replaced silently.

``identity/{node,owner,root}.key`` hold 32 secret bytes each, mode 0600 from the moment they exist. A missing, short,
unreadable or foreign key beside existing data stops the node with the file's name: a new identity would make every
peer see a stranger.

Founding a mesh and moving to another one go the same way: keys and database are made whole in ``moving/``, one rename
to ``moved/`` decides, and every start finishes what a crash left there. A kill at any point leaves the old state or
the new one.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from mesh import store
from mesh.base.clock import Now, next_version
from mesh.base.codec import Malformed, decode_untrusted, encode
from mesh.base.crypto import KEY_BYTES, Entropy, SigningKey
from mesh.base.db import Connection, Database
from mesh.base.errors import Damaged, OurFault, Refused
from mesh.base.names import MeshId, NodeId, node_id
from mesh.certificates import EpochBody, Genesis, found, mesh_id
from mesh.handshake import gate_commitment
from mesh.kinds import CERTIFICATE, EPOCH, Lane
from mesh.members import Members
from mesh.records import Record, make

GENESIS_FACT = "genesis"
GATE = "gate"
FLEET = "fleet"
DATABASE = "mesh.db"
KEYS = "identity"
HELD = ("node", "owner", "root")
"""The keys a home's database remembers, so that a missing or foreign file is noticed."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this machine is.

    Attributes:
        owner: This person's key, on the machine that holds it; None elsewhere.
    """

    node: SigningKey
    owner: SigningKey | None
    genesis: bytes
    mesh: MeshId

    @property
    def node_id(self) -> NodeId:
        """This machine's id."""
        return node_id(self.node.public)


def write_key(path: Path, key: SigningKey) -> None:
    """Write a key file, 0600 from its first moment, synced with its folder.

    Raises:
        OurFault: It exists already, or the disk refuses.
    """
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(key.seed)
            file.flush()
            os.fsync(file.fileno())
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise OurFault(f"{path} cannot be written: {error.strerror}", hint="check the folder's rights and the disk") from error


def read_key(path: Path) -> SigningKey:
    """Read a key file.

    Returns:
        The key; rights wider than 0600 are narrowed.

    Raises:
        Damaged: Missing, short, unreadable or not a file.
    """
    try:
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode):
            raise Damaged(f"{path} is not a file", path=str(path), hint="put the key file back from a backup")
        if mode & 0o077:
            path.chmod(0o600)
        seed = path.read_bytes()
    except FileNotFoundError:
        raise Damaged(f"{path} is missing beside existing data", path=str(path), hint="put the key file back; a new identity would make every peer see a stranger") from None
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}", path=str(path), hint="check the file's rights") from None
    if len(seed) != KEY_BYTES:
        raise Damaged(f"{path} has {len(seed)} bytes where a key has {KEY_BYTES}", path=str(path), hint="put the key file back from a backup")
    return SigningKey(seed)


@dataclass(frozen=True, slots=True)
class Belongings:
    """Everything a home needs to be a member: what :func:`decide_move` makes durable in one step.

    Attributes:
        keys: File stem (``node``, ``owner``, ``root``) to key.
        gates: Gate keys, newest first.
        fleet_key: The owner's symmetric key.
        addresses: Where machines proved their keys already: the issuer, while joining.
    """

    keys: dict[str, SigningKey]
    genesis: bytes
    records: tuple[Record, ...]
    gates: tuple[bytes, ...]
    fleet_key: bytes
    addresses: tuple[tuple[NodeId, str], ...] = ()


def is_fresh(data_dir: Path) -> bool:
    """Whether a home holds neither keys nor a mesh, nor a decided move."""
    keys = data_dir / KEYS
    if (data_dir / DATABASE).exists() or (data_dir / "moved").exists():
        return False
    return not (keys.is_dir() and any(keys.iterdir()))


def founding(*, name: str, owner_name: str, entropy: Entropy, now: Now) -> Belongings:
    """Make the keys and records of a mesh of one.

    Args:
        name: Display name of this machine.
        owner_name: Display name of its person.
        entropy: Randomness.
        now: The clock.
    """
    root, owner, node = (SigningKey(entropy(KEY_BYTES)) for _ in range(3))
    genesis, certificate = found(
        root=root, owner=owner, node=node, name=name, owner_name=owner_name, now_s=now.wall_ms // 1000, nonce=entropy(24)
    )
    mesh, gate = mesh_id(genesis), entropy(KEY_BYTES)
    commitment = gate_commitment(gate)
    version = next_version(now.wall_ms, 0)
    records = (
        make(root, mesh, CERTIFICATE, node_id(node.public), version, certificate),
        make(root, mesh, EPOCH, commitment[:16], version + 1, encode(EpochBody(commitment))),
    )
    keys = {"root": root, "owner": owner, "node": node}
    return Belongings(keys, genesis, records, (gate,), entropy(KEY_BYTES))


def decide_move(data_dir: Path, belongings: Belongings, now_ms: int) -> None:
    """Decide, durably and whole, what this home becomes; :func:`finish_move` at the next start puts it in place.

    The present databases may be open meanwhile: nothing of theirs is touched.

    Args:
        data_dir: The home's data folder.
        belongings: The new identity.
        now_ms: Wall clock.

    Raises:
        Refused: An earlier move was decided and not yet finished.
        OurFault: The disk refuses; nothing was decided.
    """
    moving, moved = data_dir / "moving", data_dir / "moved"
    if moved.exists():
        raise Refused("this machine is moving already", reason="moving", hint="restart the node: hivemesh down, then hivemesh up -d")
    try:
        if moving.exists():
            shutil.rmtree(moving)
        moving.mkdir(mode=0o700)
        (moving / KEYS).mkdir(mode=0o700)
        for stem, key in belongings.keys.items():
            write_key(moving / KEYS / f"{stem}.key", key)
        database = Database(moving / DATABASE, store.SCHEMA)
        try:
            database.write_now(lambda connection: _fill(connection, belongings, now_ms))
        finally:
            database.close()
        if (moving / f"{DATABASE}-wal").exists():
            # Closing empties the journal into the file; on a full disk it cannot, and the file alone is not the database.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        _sync_folder(moving)
        moving.rename(moved)
        _sync_folder(data_dir)
    except OSError as error:
        raise OurFault(f"{data_dir} cannot be written: {error.strerror}", hint="check the folder's rights and the disk") from error


def _fill(connection: Connection, belongings: Belongings, now_ms: int) -> None:
    store.put_records(connection, belongings.records, now_ms)
    for epoch, gate in enumerate(reversed(belongings.gates)):
        store.put_secret(connection, GATE, epoch, gate)
    store.put_secret(connection, FLEET, 0, belongings.fleet_key)
    for node, address in belongings.addresses:
        store.note_address(connection, node, address, now_ms)
    store.put_fact(connection, GENESIS_FACT, belongings.genesis)
    for stem in HELD:
        if stem in belongings.keys:
            store.put_fact(connection, f"{stem} key", belongings.keys[stem].public)


def finish_move(data_dir: Path) -> None:
    """Finish a move that was decided; does nothing where none was. Every step may be repeated.

    Raises:
        OurFault: The disk refuses.
    """
    moved, keys, database = data_dir / "moved", data_dir / KEYS, data_dir / DATABASE
    if not moved.exists():
        return
    try:
        if (moved / KEYS).exists():
            shutil.rmtree(keys, ignore_errors=True)
            (moved / KEYS).rename(keys)
        if (moved / DATABASE).exists():
            for old in (database, Path(f"{database}-wal"), Path(f"{database}-shm")):
                old.unlink(missing_ok=True)
            (moved / DATABASE).rename(database)
        _sync_folder(data_dir)
        shutil.rmtree(moved)
    except OSError as error:
        raise OurFault(f"{moved} cannot be moved into place: {error.strerror}", hint="check the folder's rights and the disk") from error


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_identity(data_dir: Path, database: Database) -> Identity:
    """Read the identity of a settled home.

    Args:
        data_dir: The home's data folder.
        database: Its ``mesh.db``, open.

    Returns:
        The identity.

    Raises:
        Damaged: A key file is missing, short, unreadable, or not the one this home's data was made with.
    """
    keys = data_dir / KEYS
    node = read_key(keys / "node.key")
    genesis = _genesis(keys, database)
    _refuse_foreign(keys / "node.key", node, store.fact(database.reader, "node key"))
    owner_public = store.fact(database.reader, "owner key")
    owner = None if owner_public is None else read_key(keys / "owner.key")
    if owner is not None:
        _refuse_foreign(keys / "owner.key", owner, owner_public)
    root_public = store.fact(database.reader, "root key")
    if root_public:
        _refuse_foreign(keys / "root.key", read_key(keys / "root.key"), root_public)
    return Identity(node, owner, genesis, mesh_id(genesis))


def forget_root(data_dir: Path, database: Database) -> None:
    """Remove the root's key from this home for good; whoever wrote its words down is the only one to hold it now.

    Args:
        data_dir: The home's data folder.
        database: Its ``mesh.db``; a node may have it open too.

    Raises:
        OurFault: The disk refuses; called again it goes on.

    If cut off in between, the file may still be there, and the node starts with it or without.
    """
    database.write_now(lambda connection: store.put_fact(connection, "root key", b""))
    try:
        (data_dir / KEYS / "root.key").unlink(missing_ok=True)
        _sync_folder(data_dir / KEYS)
    except OSError as error:
        raise OurFault(f"the root's key cannot be removed: {error.strerror}", hint="check the folder's rights and the disk") from error


def _genesis(keys: Path, database: Database) -> bytes:
    """Read the genesis, and check that it makes this machine a member together with the records held."""
    genesis = store.fact(database.reader, GENESIS_FACT)
    node = store.fact(database.reader, "node key")
    try:
        if genesis is not None and node is not None:
            control = store.lane_records(database.reader, Lane.CONTROL)
            members = Members(decode_untrusted(Genesis, genesis, bytes_max=200), mesh_id(genesis), control)
            if node_id(node) in members.certificates:
                return genesis
    except Malformed:
        pass
    raise Damaged(
        f"{database.path} holds no mesh this machine is a member of, yet there are keys in {keys}",
        path=str(database.path),
        hint="put the database back from a backup, or move the keys away to start anew",
    )


def _refuse_foreign(file: Path, key: SigningKey, public: bytes | None) -> None:
    if key.public != public:
        raise Damaged(
            f"{file} is not the key this home's data was made with",
            path=str(file),
            hint="put the right key file back from a backup",
        )
