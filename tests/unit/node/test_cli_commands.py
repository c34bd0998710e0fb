"""Every command against a node that is down, has nothing, has much, or fails: one JSON value, one exit code, one line."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess

import pytest
import trio

from mesh.base.errors import OurFault, Refused, Unreachable
from node.cli.entry import COMMANDS
from node.home import find_home
from tests.fakes.answers import EMPTY, HOSTILE, MANY, SESSION, WAITING
from tests.fakes.commands import PROGRAM, Ran, call_here, call_process, environ_of
from tests.fakes.daemon import FakeDaemon

ASKING = [
    "status", "peers", "discover --timeout 1s", "connect mini 10.0.0.1", "mesh show", "mesh identity", "invite --for ben --uses 2",
    "fleet", "fleet --all --status working --node mini --project p", "session show 1", "run mini -- true", "tasks", "tasks --all", "task a",
    "logs a", "logs a -f", "wait a", "cancel a", "inbox", "answer wait allow", "allow wait", "deny wait", "hive status", "hive lessons",
    "hive knowledge", "hive learn", "hive show les", "hive forget les", "access grant proj --label x", "access list", "access revoke g",
    "expel mini --yes", "leave --yes", "invite --code",
]  # fmt: skip
"""A call of every command that needs a node."""
ALONE = ["config show", "config get runs", "config set tasks.slots 3", "completion bash", "completion zsh", "--version", "--help"]
"""A call of every command that does not."""


@pytest.fixture
def ctrl_c_heard():
    """Children hear Ctrl-C also where these tests were started without it, as by ``nohup ... &``."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def homes(tmp_path_factory):
    """Three nodes for the whole module: much to tell, nothing to tell, failing."""
    folder = tmp_path_factory.mktemp("homes")
    scripts = {"many": MANY, "empty": EMPTY, "failing": dict.fromkeys(MANY, Unreachable("mini does not answer", hint="look at it"))}
    daemons = {name: FakeDaemon(find_home(str(folder / name), {}), script) for name, script in scripts.items()}
    for daemon in daemons.values():
        daemon.__enter__()
    yield {name: folder / name for name in daemons}
    for daemon in daemons.values():
        daemon.__exit__(None, None, None)


def as_json(ran: Ran) -> list[object]:
    """What stdout carries: nothing but JSON lines."""
    assert ran.out.endswith("\n")
    return [json.loads(line) for line in ran.out.splitlines()]


def is_remote(words: str) -> bool:
    return words.split()[0] in ("run", "wait") or words.endswith("-f")


def test_every_command_is_called_here():
    assert {words.split()[0] for words in ASKING + ALONE} | {"up", "down", "join", "doctor", "query", "demo"} >= set(COMMANDS)


@pytest.mark.parametrize("words", ASKING)
def test_with_the_node_down_every_command_says_so(tmp_path, words):
    """O-C1, O-C3: exit 3 (125 where the remote command owns it), one error on stdout, and the hint starts a node."""
    for plain in (False, True):
        ran = call_here(tmp_path, *shlex.split(words), *([] if plain or "--" in words.split() else ["--json"]))
        assert ran.code == (125 if is_remote(words) else 3), ran
        assert "Traceback" not in ran.err
    ran = call_here(tmp_path, "--json", *shlex.split(words))
    (found,) = as_json(ran)
    assert found["error"]["kind"] == "not_running"
    assert found["error"]["hint"] == "hivemesh up -d"
    assert ran.err == ""
    (found,) = as_json(call_here("/elsewhere", "--home", str(tmp_path), "--json", *shlex.split(words)))
    assert found["error"]["hint"] == f"hivemesh --home {tmp_path} up -d", "the hint speaks of the home the command spoke of"


@pytest.mark.parametrize("words", ASKING)
def test_with_much_to_tell_json_is_the_node_s_own_answer(homes, words):
    """O-C1: exactly one JSON value; and the plain form escapes what peers call themselves."""
    ran = call_here(homes["many"], "--json", *shlex.split(words))
    found = as_json(ran)
    assert len(found) == 1
    assert found[0] in MANY.values() or found[0] == MANY["fleet"]
    plain = call_here(homes["many"], *shlex.split(words))
    assert plain.code == ran.code == 0
    for text in (plain.out, plain.err):
        assert "\x1b" not in text
        assert "\u202e" not in text
    if HOSTILE in json.dumps(found[0], ensure_ascii=False).encode().decode("unicode_escape", "replace"):
        assert "\\x1b[31mb\\u202ec\\nd" in plain.out + plain.err


@pytest.mark.parametrize("words", [w for w in ASKING if "answer" not in w and "allow" not in w and "deny" not in w])
def test_with_nothing_to_tell_json_is_still_one_value_and_plain_says_so_on_stderr(homes, words):
    """O-C1: empty."""
    ran = call_here(homes["empty"], *shlex.split(words), *([] if "--" in words.split() else ["--json"]))
    assert ran.code == 0
    if "--" not in words.split() and ran.out == "[]\n":
        plain = call_here(homes["empty"], *shlex.split(words))
        assert plain.out == ""
        assert plain.err.count("\n") == 1
        assert call_here(homes["empty"], "-q", *shlex.split(words)).err == ""


@pytest.mark.parametrize("words", ASKING)
def test_with_a_failing_node_the_error_is_passed_on(homes, words):
    """O-C1: errors are JSON too, and the exit code is the contract's."""
    ran = call_here(homes["failing"], "--json", *shlex.split(words))
    assert as_json(ran) == [{"error": {"kind": "unreachable", "message": "mini does not answer", "hint": "look at it"}}]
    assert ran.code == (125 if is_remote(words) else 4)
    plain = call_here(homes["failing"], *shlex.split(words))
    assert plain.out == ""
    assert plain.err.splitlines() == ["hivemesh: mini does not answer", "  look at it"]


@pytest.mark.parametrize("words", ALONE)
def test_commands_that_need_no_node_do_without(tmp_path, words):
    ran = call_here(tmp_path, *shlex.split(words))
    assert ran.code == 0
    assert ran.out
    if words != "--help":
        assert len(as_json(call_here(tmp_path, *shlex.split(words), "--json"))) == 1


@pytest.mark.parametrize("stdin", ["null", "closed", "endless"])
def test_no_command_waits_for_input_without_a_terminal(homes, stdin):
    """O-C2: stdin at /dev/null, closed, or endless; whatever they do, they end at once."""
    for words in ("join -", "answer wait allow", "run mini -- true", "status"):
        command = shlex.join([*PROGRAM, *shlex.split(words)])
        shell = {"null": f"{command} </dev/null", "closed": f"{command} <&-", "endless": f"yes | {command}"}[stdin]
        done = subprocess.run(["sh", "-c", shell], env=environ_of(homes["many"]), capture_output=True, text=True, timeout=10, check=False)
        assert "Traceback" not in done.stderr
        if words == "join -":
            assert done.returncode in (2, 5)


def test_what_needs_a_yes_is_refused_without_a_terminal_and_names_the_flag(tmp_path):
    """O-C2: the refusal says --yes; with it nothing is asked."""
    home = find_home(str(tmp_path), {})
    asked: list[bool] = []

    async def run(call):
        asked.append(call.flag("yes"))
        if not call.flag("yes"):
            raise Refused("60 untracked files (12 MB) would travel", reason="untracked", hint="add --yes if they may")
        return MANY["run"]

    with FakeDaemon(home, {"run": run}):
        ran = call_here(tmp_path, "run", "mini", "--", "true")
        assert ran.code == 125
        assert "--yes" in ran.err
        assert as_json(call_here(tmp_path, "--json", "run", "mini", "--", "true"))[0]["error"]["reason"] == "untracked"
        assert call_here(tmp_path, "run", "mini", "--yes", "--", "true").code == 0
    assert asked == [False, False, True]


def test_a_person_at_a_terminal_is_asked_about_untracked_files(tmp_path):
    async def run(call):
        if not call.flag("yes"):
            raise Refused("60 untracked files would travel.", reason="untracked", hint="add --yes if they may")
        return MANY["run"]

    with FakeDaemon(find_home(str(tmp_path), {}), {"run": run}):
        for typed, code in ((b"y\n", 0), (b"\n", 125)):
            ours, theirs = pty.openpty()
            process = subprocess.Popen([*PROGRAM, "run", "mini", "--", "true"], env=environ_of(tmp_path), stdin=theirs, stdout=theirs, stderr=theirs)
            os.close(theirs)
            asked = b""
            while b"[y/N] " not in asked:
                asked += os.read(ours, 1000)
            os.write(ours, typed)
            assert process.wait(10) == code
            os.close(ours)


def test_the_fleet_puts_what_needs_a_person_first(homes):
    lines = call_here(homes["many"], "fleet").out.splitlines()
    assert lines[0].startswith("STATUS")
    assert lines[1].startswith("needs_you")
    assert "rm -rf x" in lines[1]
    assert "1h" in lines[2]


def test_a_bare_call_shows_the_fleet_or_where_to_start(homes, tmp_path):
    assert call_here(homes["many"]).out == call_here(homes["many"], "fleet").out
    ran = call_here(tmp_path)
    assert (ran.code, len(ran.out.splitlines())) == (0, 3)
    assert "hivemesh up -d" in ran.out
    (found,) = as_json(call_here("/elsewhere", "--home", str(tmp_path), "--json"))
    assert found["start_here"][0].startswith(f"hivemesh --home {tmp_path} up -d "), "the advice speaks of the home the command spoke of"
    assert found["start_here"][1].startswith(f"hivemesh --home {tmp_path} invite ")
    assert found["start_here"][1].endswith("there: hivemesh join -"), "the other machine has a home of its own"


def test_watching_without_a_terminal_is_json_lines_until_the_node_ends(tmp_path):
    async def fleet(call):
        assert call.flag("watch")
        for count in (1, 2):
            await call.event({"kind": "fleet", "fleet": [SESSION] * count})
        return None

    with FakeDaemon(find_home(str(tmp_path), {}), {"fleet": fleet}):
        ran = call_here(tmp_path, "fleet", "--watch")
    assert [len(json.loads(line)["fleet"]) for line in ran.out.splitlines()] == [1, 2]
    assert ran.code == 1


def test_watching_on_a_terminal_draws_anew_and_ctrl_c_ends_it(tmp_path, ctrl_c_heard):
    async def fleet(call):
        await call.event({"kind": "fleet", "fleet": [SESSION]})
        await trio.sleep_forever()

    with FakeDaemon(find_home(str(tmp_path), {}), {"fleet": fleet}) as daemon:
        ours, theirs = pty.openpty()
        process = subprocess.Popen([*PROGRAM, "fleet", "--watch"], env={**environ_of(tmp_path), "TERM": "xterm"}, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        drawn = b""
        while b"working" not in drawn:
            drawn += os.read(ours, 1000)
        assert drawn.startswith(b"\x1b[H\x1b[2J")
        assert b"\x1b[32mworking\x1b[0m" in drawn
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        os.close(ours)
    assert daemon.cancelled == ["fleet"]


def test_an_answer_is_bound_to_the_digest_of_what_the_inbox_showed(tmp_path):
    inbox = [WAITING, {**WAITING, "id": "wait-22", "digest": "other"}]
    with FakeDaemon(find_home(str(tmp_path), {}), {"inbox": inbox, "answer": {}}) as daemon:
        ran = call_here(tmp_path, "answer", "wait-2", "allow")
        assert ran.code == 0
        assert daemon.asked[-1] == ("answer", {"id": "wait-22", "answer": "allow", "digest": "other"})
        assert call_here(tmp_path, "deny", "wait-1").code == 0
        assert daemon.asked[-1][1]["answer"] == "deny"
        assert call_here(tmp_path, "allow", "wait").code == 2, "two begin so"
        assert call_here(tmp_path, "allow", "else").code == 2, "as every id that nothing has"
        assert call_here(tmp_path, "answer", "wait-2", "").code == 2
        assert [verb for verb, _ in daemon.asked].count("answer") == 2


def test_words_become_the_arguments_the_node_checks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with FakeDaemon(find_home(str(tmp_path), {}), MANY) as daemon:
        for words, verb, args in [
            ("connect mini ::1", "connect", {"node": "mini", "address": "[::1]:9847"}),
            ("connect mini h:1", "connect", {"node": "mini", "address": "h:1"}),
            ("invite", "invite", {"roles": [], "uses": 1, "ttl": "24h", "no_addresses": False, "code": False, "words": False}),
            ("invite --for b --role worker --role viewer --ttl 1h --no-addresses", "invite", {"for": "b", "roles": ["worker", "viewer"], "uses": 1, "ttl": "1h", "no_addresses": True, "code": False, "words": False}),
            ("fleet --node mini", "fleet", {"all": False, "node": "mini"}),
            ("logs t --since 5 -f", "logs", {"task": "t", "since": 5, "follow": True}),
            ("access grant p --scope query --expires 2d --label l --rate 3 --per-day 9", "access.grant", {"project": "p", "scopes": ["query"], "expires": "2d", "label": "l", "rate_per_min": 3, "per_day": 9}),
            ("run mini --timeout 2h --no-tree --detach -- sh -c 'a --json -- b'", "run", {"node": "mini", "argv": ["sh", "-c", "a --json -- b"], "cwd": str(tmp_path), "tree": False, "detach": True, "yes": False, "timeout": "2h"}),
            ("hive show -- les", "hive.show", {"lesson": "les"}),
        ]:  # fmt: skip
            assert call_here(tmp_path, *shlex.split(words)).code == 0, words
            assert daemon.asked[-1] == (verb, args)


@pytest.mark.parametrize(
    "words",
    [
        "fleet --status nice", "discover --timeout 0s", "discover --timeout 31s", "discover --timeout x", "connect mini", "connect mini :1", "connect mini a:b",
        "invite --ttl never", "invite --uses x", "access grant UPPER", "access grant p --expires 0d", "access grant p --rate 0", "access", "hive", "mesh",
        "session", "query", "answer x", "logs a --since x", "logs a --since -1", "config get nothing", "config set runs all", "config set nothing 1",
        "up --runs all", "access grant p --scope docs", "invite --for ''", "invite --for ' '", "up --listen nonsense", "up --api :1", "completion fish", "delegate mini x", "init", "fleet --wat", "status extra",
    ],
)  # fmt: skip
def test_a_user_s_mistake_is_one_line_and_exit_2_also_as_json(tmp_path, words):
    ran = call_here(tmp_path, *shlex.split(words))
    assert ran.code == 2, ran
    assert ran.out == ""
    assert 1 <= len(ran.err.splitlines()) <= 2
    (found,) = as_json(call_here(tmp_path, *shlex.split(words), "--json"))
    assert found["error"]["kind"] == "usage"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("words", ["run", "run mini", "run mini --", "run mini ls", "run mini --timeout x -- ls", "run --bad mini -- ls", "wait", "logs -f", "logs a -f --since x"])
def test_where_the_remote_command_owns_the_codes_a_mistake_is_125(tmp_path, words):
    ran = call_here(tmp_path, *shlex.split(words))
    assert ran.code == 125
    (found,) = as_json(call_here(tmp_path, "--json", *shlex.split(words)))
    assert found["error"]["kind"] == "usage"


def test_a_bare_word_behind_run_is_never_a_prompt(tmp_path):
    ran = call_here(tmp_path, "run", "mini", "fix the bug")
    assert ran.code == 125
    assert "--" in ran.err


def test_hints_can_be_followed(tmp_path):
    """O-C3: what a usage error recommends works as it stands there."""
    for words in ("stauts", "config get rns", "access gra", "fleet --wat", "config set runs all"):
        ran = call_here(tmp_path, *shlex.split(words))
        hint = ran.err.splitlines()[-1].strip()
        found = re.search(r"hivemesh [a-z].*|hivemesh --help", hint)
        if found:
            recommended = shlex.split(found[0])[1:]
            assert call_here(tmp_path, *recommended).code in (0, 3), (words, recommended)
        else:
            assert hint == "did you mean runs?" or "one of" in hint


def test_the_version_and_the_short_help(tmp_path):
    assert re.match(r"hivemesh \d+\.\d+", call_here(tmp_path, "--version").out)
    text = call_here(tmp_path, "--help").out
    shown = [line.split()[0] for line in text.splitlines() if re.match(r"  [a-z]", line)]
    assert shown == ["up", "join", "invite", "fleet", "run", "inbox", "doctor"], "the commands people use, as far as they exist"
    assert "delegate" not in text


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help(tmp_path, command):
    ran = call_here(tmp_path, command, "--help")
    assert ran.code == 0
    assert f"hivemesh {command}" in ran.out
    assert "--json" in ran.out


def test_a_reader_that_has_seen_enough_ends_the_command_quietly(homes):
    command = shlex.join([*PROGRAM, "config", "show"])
    done = subprocess.run(["sh", "-c", f"{command} | true"], env=environ_of(homes["many"]), capture_output=True, text=True, timeout=10, check=False)
    assert "Traceback" not in done.stderr
    assert "Broken" not in done.stderr


def redirected(home, words: str, where: str) -> tuple[int, str]:
    """Call a command with its standard files moved by a shell."""
    shell = f"{shlex.join([*PROGRAM, *shlex.split(words)])} {where}"
    done = subprocess.run(["sh", "-c", shell], env=environ_of(home), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize("words", ["status", "fleet --json", "config show", "status --help", "--version"])
@pytest.mark.parametrize(("where", "why"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")])
def test_an_answer_that_cannot_be_written_is_one_line_and_exit_1(homes, words, where, why):
    """O-C1: a full disk, a closed stdout; an answer is never lost in silence."""
    code, err = redirected(homes["many"], words, where)
    assert (code, err.splitlines()[-1]) == (1, f"hivemesh: the answer cannot be written: {why}")
    assert "Traceback" not in err


def test_an_error_that_cannot_be_written_is_no_traceback(homes):
    assert redirected(homes["failing"], "status --json", ">/dev/full") == (1, "hivemesh: the answer cannot be written: No space left on device\n")
    assert redirected(homes["many"], "status", ">&- 2>&-") == (1, "")
    assert redirected(homes["failing"], "status", "2>/dev/full") == (4, "")
    assert redirected(homes["many"], "run mini -- x", ">&-") == (0, ""), "nothing was written, so nothing was lost"
    assert redirected(homes["many"], "wait a --json", ">/dev/full")[0] == 125


def test_short_options_may_be_one_word(homes):
    assert call_here(homes["empty"], "-vq", "fleet") == (0, "", "")
    assert call_here(homes["many"], "logs", "a", "-fq").code == 0
    assert call_here(homes["many"], "-vx", "fleet").code == 2
    assert call_here(homes["many"], "run").err.splitlines()[0] == "hivemesh: run: the following arguments are required: NODE"


def test_no_sessions_is_said_as_it_was_asked(homes):
    for words, said in [
        ("fleet", "no sessions (`hivemesh fleet --all` shows ended ones too)"), ("fleet --all", "no sessions"),
        ("fleet --node mini", "no such sessions (--all shows ended ones too)"), ("fleet --node mini --all", "no such sessions"),
        ("fleet --status ended", "no such sessions"),
    ]:  # fmt: skip
        assert call_here(homes["empty"], *words.split()).err == said + "\n"


def test_the_inbox_says_whole_who_wants_what_and_what_would_run(tmp_path):
    what = "laptop wants to run a command here with the tree aaaabbbbcccc of proj, WITHOUT A SANDBOX"
    command = "sh -c '" + "x" * 200 + " && hivemesh up'"
    items = [{**WAITING, "what": what, "command": command, "complete": False}, {**WAITING, "id": "wait-2", "complete": True}]
    with FakeDaemon(find_home(str(tmp_path), {}), {"inbox": items, "answer": {}}):
        lines = call_here(tmp_path, "inbox").out.splitlines()
        assert lines[0].split() == ["ID", "KIND", "MACHINE", "SINCE"]
        assert lines[2:4] == [f"    {what}", f"    $ {command}"]
        assert "only on that machine itself" in lines[4]
        assert lines[5].startswith("wait-2")
        assert len(lines) == 8
        ran = call_here("/elsewhere", "--home", str(tmp_path), "allow", "wait-1")
        assert command in ran.err, "what would run is shown as it is, commands in it too"
        ours, theirs = pty.openpty()
        process = subprocess.Popen([*PROGRAM, "inbox"], env={**environ_of(tmp_path), "COLUMNS": "40"}, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        drawn = b""
        while b"wait-2" not in drawn:
            drawn += os.read(ours, 1000)
        assert process.wait(10) == 0
        os.close(ours)
        assert what.encode() in drawn


def test_lists_of_objects_are_small_tables(homes):
    lines = call_here(homes["many"], "task", "a").out.splitlines()
    at = next(at for at, line in enumerate(lines) if line == "transitions")
    assert [line.split() for line in lines[at + 1 : at + 3]] == [["state", "at"], ["queued", "2026-01-01T00:00:00.000Z"]]
    assert lines[at + 1].index("at", 8) == lines[at + 2].index("2026")


def test_what_is_counted_is_said_in_its_number(tmp_path):
    status = {**MANY["status"], "mesh": {"id": "mesh", "members": 1, "roles": ["admin"]}}
    peer = {**MANY["peers"][0], "version": "hivemesh 0.1.0"}
    with FakeDaemon(find_home(str(tmp_path), {}), {"status": status, "peers": [peer, {**peer, "version": None}]}):
        assert "1 machine, this one" in call_here(tmp_path, "status").out
        lines = call_here(tmp_path, "peers").out.splitlines()
        at = lines[0].index("VERSION")
        assert [line[at:].split()[0] for line in lines[1:]] == ["0.1.0", "-"]


def test_a_process_says_the_same_as_a_call(homes):
    ran = call_process(homes["many"], "peers", "--json")
    assert json.loads(ran.out) == MANY["peers"]


def test_another_node_version_is_said(tmp_path):
    with FakeDaemon(find_home(str(tmp_path), {}), {}):
        ran = call_here(tmp_path, "fleet")
    assert ran.code == 5
    assert "hivemesh down" in ran.err


def test_an_internal_fault_of_the_node_is_exit_1(tmp_path):
    with FakeDaemon(find_home(str(tmp_path), {}), {"status": OurFault("the disk is full", hint="free some")}):
        assert call_here(tmp_path, "status").code == 1


def test_completion_offers_values_and_the_global_options_behind_a_command(tmp_path):
    script = call_here(tmp_path, "completion", "bash").out
    assert re.search(r"_config_set_pos_0_choices=\(name listen .*log\.bytes_max\)", script)
    assert "_up___runs_choices=(mine ask off)" in script
    assert re.search(r"_tasks_option_strings=\(.*--home --json .*--yes\)", script)
