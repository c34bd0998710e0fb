"""``query``: index a project's HEAD, ask the index, and serve it to outsiders.

These run in this command's own process: they need no node, and outsiders' questions never reach one.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from node.cli.console import Console, counted, shown
from node.lock import make_home
from node.mark import refuse_restored

LISTEN = "127.0.0.1:8787"
"""Where outsiders' questions are answered, unless told otherwise."""


def register(name: str, parser: argparse.ArgumentParser) -> None:
    """Declare the words of ``query``."""
    inner = parser.add_subparsers(metavar="index|ask|serve", required=True)
    index = inner.add_parser("index", help="index the committed files of a repository")
    index.add_argument("path", metavar="PATH", nargs="?", default=".")
    index.add_argument("--project", metavar="NAME", help="the name it answers to; else the repository's own")
    index.set_defaults(act=_index)
    ask = inner.add_parser("ask", help="ask an index of this machine")
    ask.add_argument("project", metavar="PROJECT")
    ask.add_argument("question", metavar='"Q"')
    ask.add_argument("--limit", metavar="N", type=int, default=5, help="how many answers, at most 20")
    ask.set_defaults(act=_ask)
    serve = inner.add_parser("serve", help="answer outsiders who hold a token, until ended")
    serve.add_argument("--listen", metavar="HOST:PORT", default=LISTEN, help=f"where; {LISTEN} unless said")
    serve.set_defaults(act=_serve)


def _index(arguments: argparse.Namespace, console: Console) -> int:
    from query.indexer import index_repository

    make_home(console.home)
    report = index_repository(Path(arguments.path), arguments.project, console.home.index_dir)
    if console.as_json:
        console.json(dataclasses.asdict(report) | {"path": str(report.path)})
        return 0
    console.line(f"{shown(report.project)}: {counted(report.spans, 'quote')} of {counted(report.files_indexed, 'file')} at {shown(report.commit)[:12]}")
    for left_out, of in ((report.skipped, "file"), (report.spans_dropped, "quote")):
        for reason, count in sorted(left_out.items()):
            console.note(f"  {counted(count, of)} left out: {shown(reason)}")
    return 0


def _ask(arguments: argparse.Namespace, console: Console) -> int:
    from query.answer import ask_local

    again: list[str] = []
    found = ask_local(console.home.index_dir, arguments.project, arguments.question, arguments.limit, on_stale=again.append)
    if console.as_json:
        console.json(found)
        return 0
    for answer in found["answers"]:
        cited = answer["citation"]
        console.line(f"{shown(cited['path'])}:{cited['lines'][0]}-{cited['lines'][1]}  {shown(answer['heading'] or '')}".rstrip())
        for text in str(answer["text"]).splitlines():
            console.line(f"    {shown(text)}".rstrip())
        console.line()
    if not found["answers"]:
        console.note("nothing in the index answers that")
    if found["stale"]:
        console.note(f"the index is of {shown(found['index_commit'])[:12]}, which is not HEAD any more: {shown(' '.join(again))}")
    return 0


def _serve(arguments: argparse.Namespace, console: Console) -> int:
    from query.serve import run_serve

    make_home(console.home)
    refuse_restored(console.home.mark_file, console.home.grants_db)
    run_serve(console.home.index_dir, console.home.grants_db, arguments.listen, on_ready=lambda address: _tell(console, address))
    return 0


def _tell(console: Console, address: str) -> None:
    if console.as_json:
        console.json({"serve_at": address})
    else:
        console.line(f"answers at {address}")
        console.flush()
