"""``mesh root``: the root's key as words on paper, and what a person signs with them."""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path

from mesh.base.errors import NotRunning, OurFault, Refused, Usage
from node.callers import refuse_agents_here
from node.cli.client import call
from node.cli.console import Console, shown

TYPED_BACK = 2
"""How many of the words a person types back before the file is removed."""
INPUT_CHARS_MAX = 4096


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the words of ``mesh root``."""
    inner = parser.add_subparsers(metavar="export|sign|apply", required=True)
    inner.add_parser("export", help="show the root's key as 24 words once, and remove it from this machine").set_defaults(act=_export)
    sign = inner.add_parser("sign", help="sign with the words, read from stdin, into a file")
    sign.add_argument("deed", metavar="expel|admin", choices=("expel", "admin"), help="put a machine out, or make it an admin")
    sign.add_argument("node", metavar="NODE", help="a member's name or fingerprint")
    sign.add_argument("--out", metavar="FILE", required=True, help="where to write; it holds no secret")
    sign.set_defaults(act=_sign)
    apply = inner.add_parser("apply", help="take what the root signed, with a running node or without")
    apply.add_argument("file", metavar="FILE")
    apply.set_defaults(act=_apply)


def _export(arguments: argparse.Namespace, console: Console) -> int:
    from mesh.identity import forget_root, read_key
    from mesh.rootfile import write_words
    from node.rootword import check_root, open_replica

    refuse_agents_here("mesh root export", console.home)
    path = console.home.identity_dir / "root.key"
    if not path.exists():
        raise Refused("the root's key is not on this machine", reason="no_root_key", hint="whoever exported it holds its words; or ask on the machine that founded this mesh")
    if not console.yes and not console.may_ask():
        raise Refused("the words must be written down, and nobody is there", reason="needs_yes", hint="run it in a terminal, or add --yes where the output is kept safe")
    with open_replica(console.home) as (identity, database, _):
        key = read_key(path)
        check_root(key, identity)
        words = write_words(key).split()
        if console.as_json:
            console.json({"words": words})
        else:
            console.line("the root's key of this mesh; write it down, it is shown once:")
            for at in range(0, len(words), 6):
                console.line("  " + "  ".join(f"{number:2} {word}" for number, word in enumerate(words[at : at + 6], at + 1)))
        console.flush()
        if not console.yes:
            _type_back(words)
        forget_root(Path(console.home.data_dir), database)
    console.note("the root's key is removed from this machine; only these words have it now")
    return 0


def _type_back(words: list[str]) -> None:
    """Have a person show that the words are written down.

    Raises:
        Refused: They are not; nothing was removed.
    """
    for number in sorted(secrets.SystemRandom().sample(range(len(words)), TYPED_BACK)):
        sys.stderr.write(f"type word {number + 1}: ")
        sys.stderr.flush()
        if sys.stdin.readline(INPUT_CHARS_MAX).strip().lower() != words[number]:
            raise Refused("that is not the word; the key stays on this machine", reason="not_written_down", hint="write the words down and export again")


def _sign(arguments: argparse.Namespace, console: Console) -> int:
    from mesh.rootfile import read_words, write_file
    from node.rootword import check_root, open_replica, sign_for

    refuse_agents_here("mesh root sign", console.home)
    if console.may_ask():
        sys.stderr.write("the 24 words of the root, on one line: ")
        sys.stderr.flush()
    key = read_words(sys.stdin.readline(INPUT_CHARS_MAX))
    with open_replica(console.home) as (identity, database, replica):
        check_root(key, identity)
        record = sign_for(arguments.deed, arguments.node, key, identity, database, replica)
        text = write_file(identity.mesh, [record])
    try:
        Path(arguments.out).write_text(text)
    except OSError as error:
        raise OurFault(f"{arguments.out} cannot be written: {error.strerror}", hint="name another file with --out") from None
    if console.as_json:
        console.json({"file": arguments.out, "records": 1})
    else:
        console.line(f"signed; take it to any machine of the mesh: hivemesh mesh root apply {shown(arguments.out)}")
    return 0


def _apply(arguments: argparse.Namespace, console: Console) -> int:
    from mesh.rootfile import FILE_BYTES_MAX

    refuse_agents_here("mesh root apply", console.home)
    try:
        with open(arguments.file, "rb") as file:
            text = file.read(FILE_BYTES_MAX + 1).decode("ascii", "replace")
    except OSError as error:
        raise Usage(f"{arguments.file} cannot be read: {error.strerror}", hint="name the file that `hivemesh mesh root sign` wrote") from None
    if len(text) > FILE_BYTES_MAX:
        raise Usage("that is no file of the root", hint="make one: hivemesh mesh root sign")
    try:
        found = call(console.home, "mesh.root.apply", {"file": text})
    except NotRunning:
        found = _apply_here(text, console)
    if console.as_json:
        console.json(found)
    else:
        console.line("the root's word is taken; it goes on to every machine this one meets")
    return 0


def _apply_here(text: str, console: Console) -> object:
    import trio

    from mesh.rootfile import read_file_untrusted
    from node.rootword import apply_records, open_replica

    with open_replica(console.home) as (identity, _, replica):
        records = read_file_untrusted(text, identity.mesh, replica.members_now.root)
        return trio.run(apply_records, replica, records)
