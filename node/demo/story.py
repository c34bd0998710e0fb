"""The demo's seven steps, each with its check and its line for the person who watches."""

from __future__ import annotations

import hashlib
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any

from node.demo.stage import Stage, StepFailed, wait_for

LAPTOP, STUDIO, BUILDER = "laptop", "studio", "builder"
STEPS = 7
ASK_S = 10.0

_MODULE = '''"""Prices of the demo shop."""


def with_tax(net: int, percent: int = 19) -> int:
    """Add tax to a price in cents, rounded half up."""
    return net + (net * percent + 50) // 100
'''
_TEST = '''import unittest

from shop import with_tax


class Prices(unittest.TestCase):
    def test_tax_is_added(self):
        self.assertEqual(with_tax(1000), 1190)

    def test_reduced_rate(self):
        self.assertEqual(with_tax(1000, 7), 1070)
'''
_GUIDE = """# Demo shop

## How prices are calculated

Prices are whole cents. Tax is added with `with_tax`, which rounds half up, so that a receipt adds up.

## How to run the tests

Run `python -m unittest` in the root of the repository.
"""
_CHANGE = '''

def discounted(net: int, percent: int) -> int:
    """Take a discount off a price in cents."""
    return net - net * percent // 100
'''
_CHANGED_TEST = '''
    def test_discount_that_is_not_committed_yet(self):
        from shop import discounted

        self.assertEqual(discounted(1000, 25), 750)
'''


class Story:
    """One demo.

    Args:
        stage: Folder and processes.
        say: Prints one line for the person.
    """

    def __init__(self, stage: Stage, say: Callable[[str], None]) -> None:
        self._stage = stage
        self._say = say
        self._began_s = time.monotonic()
        self._token = self._grant = ""
        self._serve = ""
        self._repository = stage.folder / "shop"
        self._question = "how are prices calculated?"

    def tell(self) -> list[dict[str, object]]:
        """Go through all steps.

        Returns:
            One row a step: step, title, seconds, what was found.

        Raises:
            StepFailed: A step's result was not what it must be.
        """
        steps: list[tuple[str, Callable[[], str]]] = [
            ("Three machines and a repository", self._set_up),
            ("Pair them by invites", self._pair),
            ("One fleet: every session on every machine", self._fleet),
            ("Run the tests on another machine, uncommitted change included", self._delegate),
            ("What one machine learned, another knows", self._learn),
            ("An outsider asks one project over HTTP", self._ask),
            ("Revoke the token: the door is closed", self._revoke),
        ]
        assert len(steps) == STEPS
        rows: list[dict[str, object]] = []
        for number, (title, act) in enumerate(steps, 1):
            self._say(f"\n[{number}/{STEPS}] {title}")
            began_s = time.monotonic()
            found = act()
            seconds = time.monotonic() - began_s
            self._say(f"      ok, {seconds:.1f} s: {found}")
            rows.append({"step": number, "title": title, "seconds": round(seconds, 2), "found": found})
        return rows

    # 1 ---------------------------------------------------------------------------------------------------------

    def _set_up(self) -> str:
        repository, git = self._repository, self._stage.git
        repository.mkdir()
        git(repository, "init", "-q", "-b", "main")
        for name, text in (("shop.py", _MODULE), ("test_shop.py", _TEST), ("README.md", _GUIDE)):
            (repository / name).write_text(text)
        git(repository, "add", "-A")
        git(repository, "commit", "-q", "-m", "A small shop")
        self._write_sessions()
        for name in (LAPTOP, STUDIO, BUILDER):
            facts = self._stage.start(
                name, "up", "--name", name, "--listen", "127.0.0.1:0", "--no-discovery", "--runs", "mine", "--api", "off", until="fingerprint"
            )
            self._say(f"      {name} runs at {facts['listen'][0]}, fingerprint {facts['fingerprint'][:19]}...")
        return f"three nodes in {self._stage.folder}"

    def _write_sessions(self) -> None:
        """The studio's sessions come from the packaged sample; the builder has none; the laptop's are the user's own."""
        from node.sessions.sample import write_sample

        claude, codex = self._stage.folder / "agents" / "claude", self._stage.folder / "agents" / "codex"
        write_sample(claude, codex, int(time.time() * 1000))
        nowhere = self._stage.folder / "agents" / "none"
        nowhere.mkdir()
        for name, folders in ((STUDIO, (claude, codex)), (BUILDER, (nowhere, nowhere))):
            home = self._stage.home(name)
            home.mkdir(mode=0o700)
            text = f"[sessions]\nclaude_dir = {json.dumps(str(folders[0]))}\ncodex_dir = {json.dumps(str(folders[1]))}\n"
            (home / "config.toml").write_text(text)

    # 2 ---------------------------------------------------------------------------------------------------------

    def _pair(self) -> str:
        for name in (STUDIO, BUILDER):
            invite = self._stage.call(LAPTOP, "invite")
            joined = self._stage.call(name, "join", invite["link"])
            self._say(f"      {name} joined as a machine of {joined['owner']}, with the roles {', '.join(joined['roles'])}")
        for name in (LAPTOP, STUDIO, BUILDER):
            wait_for(f"{name} sees both others live", partial(self._sees_both, name))
        return "every machine is linked to both others"

    def _sees_both(self, name: str) -> bool:
        peers = self._stage.call(name, "peers")
        return len(peers) == 2 and all(p["state"] == "live" and p["link"] == "direct" for p in peers)

    # 3 ---------------------------------------------------------------------------------------------------------

    def _fleet(self) -> str:
        rows = wait_for("the studio's sessions on the builder", lambda: self._rows_of(STUDIO))
        own = self._rows_of(LAPTOP)
        if own:
            self._say(f"      your own sessions: {len(own)} on this machine, shown under {LAPTOP}")
        else:
            self._say(f"      no sessions of yours were active today; those of {STUDIO} come from a packaged sample in the real format")
        for row in [*own[:3], *rows[:4]]:
            tokens = sum(n for n in row["tokens"].values() if n)
            self._say(f"      {row['status']:<9} {row['name']:<8} {row['agent']:<7} {row['project'] or '-':<14} {tokens:>8} tokens")
        if any(row["stale"] for row in rows):
            raise StepFailed("a live machine's sessions are shown as stale")
        return f"{len(rows)} sessions of {STUDIO}, seen from {BUILDER}"

    def _rows_of(self, name: str) -> list[dict[str, Any]]:
        return [row for row in self._stage.call(BUILDER, "fleet", "--all") if row["name"] == name]

    # 4 ---------------------------------------------------------------------------------------------------------

    def _delegate(self) -> str:
        with (self._repository / "shop.py").open("a") as file:
            file.write(_CHANGE)
        with (self._repository / "test_shop.py").open("a") as file:
            file.write(_CHANGED_TEST)
        dirty = self._stage.git(self._repository, "status", "--porcelain")
        self._say(f"      not committed here: {', '.join(line[3:] for line in dirty.splitlines())}")
        words = ("run", BUILDER, "--", sys.executable, "-B", "-m", "unittest", "-v")
        done = self._stage.run(LAPTOP, *words, cwd=self._repository)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        task = lines[-1] if lines else {}
        output = "".join(str(line.get("data", "")) for line in lines[:-1])
        if done.returncode != 0 or task.get("state") != "done" or task.get("exit_code") != 0:
            raise StepFailed(f"the test run on {BUILDER} ended with {done.returncode}: {(output or done.stderr)[-300:]}")
        if "test_discount_that_is_not_committed_yet" not in output or "Ran 3 tests" not in output:
            raise StepFailed(f"the uncommitted test did not run on {BUILDER}")
        for line in [line for line in output.splitlines() if " ... " in line]:
            self._say(f"      {BUILDER}: {line}")
        if self._stage.git(self._repository, "status", "--porcelain") != dirty:
            raise StepFailed("delegating changed the repository here")
        return f"3 tests passed on {BUILDER} with exit code 0; the work tree here is as it was"

    # 5 ---------------------------------------------------------------------------------------------------------

    def _learn(self) -> str:
        learned = self._stage.call(STUDIO, "hive", "learn")
        if not learned["observations"]:
            raise StepFailed("nothing was learned from the sessions of the studio")
        lessons = wait_for("a lesson of the studio on the builder", lambda: self._stage.call(BUILDER, "hive", "lessons"))
        for lesson in lessons[:4]:
            self._say(f"      {lesson['stance']:<8} {lesson['tool']}({lesson['pattern']})  {lesson['positive']} yes, {lesson['negative']} no")
        status = self._stage.call(BUILDER, "hive", "status")
        if status["observations"] != 0 or status["peers_units"] == 0:
            raise StepFailed(f"the lessons on {BUILDER} are not the studio's")
        return f"{learned['observations']} decisions made on {STUDIO} are {len(lessons)} lessons on {BUILDER}"

    # 6 ---------------------------------------------------------------------------------------------------------

    def _ask(self) -> str:
        report = self._stage.call(LAPTOP, "query", "index", str(self._repository), "--project", "shop")
        self._serve = self._stage.start(LAPTOP, "query", "serve", "--listen", "127.0.0.1:0", until="serve_at")["serve_at"]
        grant = self._stage.call(LAPTOP, "access", "grant", "shop", "--label", "demo partner", "--expires", "1h")
        self._token, self._grant = grant["token"], grant["grant"]
        status, body = self._post()
        answers = body.get("answers") if isinstance(body, dict) else None
        if status != 200 or not answers:
            raise StepFailed(f"the question was answered with {status}")
        answer = answers[0]
        cited = answer["citation"]
        self._say(f"      Q: {self._question}")
        self._say(f"      A: {' '.join(answer['text'].split())[:110]}")
        self._say(f"      cited: {cited['path']} lines {cited['lines'][0]}-{cited['lines'][1]} at {cited['commit'][:10]}")
        self._check_citation(answer)
        if "discounted" in json.dumps(body):
            raise StepFailed("something uncommitted was answered")
        return f"{report['spans']} quotes indexed; the answer is byte for byte what {cited['commit'][:10]} holds"

    def _check_citation(self, answer: dict[str, Any]) -> None:
        cited = answer["citation"]
        committed = {"README.md": _GUIDE, "shop.py": _MODULE, "test_shop.py": _TEST}[cited["path"]].encode()
        quoted = committed[cited["bytes"][0] : cited["bytes"][1]]
        blob = self._stage.git(self._repository, "rev-parse", f"{cited['commit']}:{cited['path']}")
        if blob != cited["blob"] or hashlib.sha256(quoted).hexdigest() != cited["sha256"]:
            raise StepFailed("a citation does not match the committed file")

    def _post(self) -> tuple[int, object]:
        """Ask over HTTP as an outsider would; no proxy of the environment comes in between."""
        request = urllib.request.Request(
            f"{self._serve}/v1/projects/shop/ask",
            data=json.dumps({"question": self._question}).encode(),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"},
            method="POST",
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=ASK_S) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode(errors="replace")
        except urllib.error.URLError as silent:
            raise StepFailed(f"the outsiders' server does not answer: {silent.reason}") from None

    # 7 ---------------------------------------------------------------------------------------------------------

    def _revoke(self) -> str:
        self._stage.call(LAPTOP, "access", "revoke", self._grant)
        status, _ = self._post()
        if status != 404:
            raise StepFailed(f"a revoked token was answered with {status}")
        return "the same token now gets 404, as any unknown one does"
