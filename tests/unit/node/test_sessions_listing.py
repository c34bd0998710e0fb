from dataclasses import replace
from pathlib import Path

import node.sessions
from node.sessions.cost import parse_prices
from node.sessions.fold import FoldState
from node.sessions.formats import ProcessNote
from node.sessions.inventory import Place
from node.sessions.listing import HOUR_MS, KEPT_MAX, Kept, Listing
from node.sessions.status import UNKNOWN_MS, Life

PRICES = parse_prices((Path(node.sessions.__file__).parent / "prices.toml").read_text(encoding="utf-8"))
NOW = 100 * HOUR_MS
KEY = ("claude", "s")
SEEN = FoldState(cwd="/srv/demo", branch="old", event="prompt", event_ms=NOW)
NOTE = ProcessNote(7, "s", "/srv/demo", "1", None, True, "busy", None, NOW, NOW, "my name", True)


def kept(session="s", *, last_ms=NOW, seen=SEEN):
    return Kept("claude", session, seen, (), last_ms, 0, 0, False)


def made(*sessions):
    redacted = []
    listing = Listing(PRICES, lambda text: redacted.append(text) or text, 24)
    for session in sessions:
        listing.keep(session)
    return listing, redacted


def words(listing):
    return [state.body.status for state in listing.listed()]


def test_time_alone_changes_the_word():
    listing, _ = made(kept())
    assert listing.update({}, NOW)
    assert words(listing) == ["unknown"]
    assert not listing.update({}, NOW + 1)
    assert listing.update({}, NOW + UNKNOWN_MS)
    assert words(listing) == ["ended"]


def test_a_session_leaves_the_list_after_its_hours():
    listing, _ = made(kept())
    listing.update({}, NOW)
    assert listing.update({}, NOW + 24 * HOUR_MS + 1)
    assert listing.listed() == []
    assert not listing.knows(KEY)


def test_a_living_session_stays():
    listing, _ = made(kept())
    listing.note_running({KEY: (Life("alive", word="idle"), None)}, NOW)
    listing.update({}, NOW + 99 * HOUR_MS)
    assert words(listing) == ["your_turn"]


def test_a_process_that_was_seen_and_is_not_there_has_ended_at_once():
    """O-S10"""
    listing, _ = made(kept())
    listing.note_running({KEY: (Life("alive", word="busy"), NOTE)}, NOW)
    listing.update({}, NOW)
    assert words(listing) == ["working"]
    listing.note_running({}, NOW + 5)
    listing.update({}, NOW + 5)
    state = listing.listed()[0]
    assert (state.body.status, state.body.since_ms, state.body.health) == ("ended", NOW + 5, ("died",))
    listing.note_running({KEY: (Life("alive", word="idle"), None)}, NOW + 9)
    listing.update({}, NOW + 9)
    assert words(listing) == ["your_turn"]


def test_a_process_without_a_transcript_is_a_session():
    listing, _ = made()
    listing.note_running({KEY: (Life("alive", word="idle"), NOTE)}, NOW)
    listing.update({}, NOW)
    state = listing.listed()[0]
    assert (state.body.status, state.body.cwd, state.body.title, state.body.project) == ("your_turn", "/srv/demo", "my name", "demo")


def test_a_derived_name_is_no_title():
    listing, _ = made(kept())
    listing.note_running({KEY: (Life("alive"), replace(NOTE, named=False))}, NOW)
    listing.update({}, NOW)
    assert listing.listed()[0].body.title is None


def test_the_branch_of_a_living_session_is_the_one_checked_out_now():
    places = {"/srv/demo": Place("shop", "new")}
    listing, _ = made(kept())
    listing.update(places, NOW)
    assert (listing.listed()[0].body.branch, listing.listed()[0].body.project) == ("old", "shop")
    listing.note_running({KEY: (Life("alive"), None)}, NOW)
    listing.update(places, NOW)
    assert listing.listed()[0].body.branch == "new"
    assert listing.living_folders() == {"/srv/demo"}


def test_a_state_is_built_anew_only_when_something_changed():
    listing, redacted = made(kept())
    listing.update({}, NOW)
    before = len(redacted)
    assert before
    listing.update({}, NOW + 1)
    assert len(redacted) == before


def test_what_is_kept_is_bounded_and_the_living_stay():
    listing, _ = made(*(kept(f"s-{index}", last_ms=NOW + index) for index in range(KEPT_MAX + 10)))
    listing.note_running({("claude", "s-0"): (Life("alive"), None)}, NOW)
    listing.update({}, NOW + KEPT_MAX + 10)
    assert sum(listing.knows(("claude", f"s-{index}")) for index in range(KEPT_MAX + 10)) == KEPT_MAX
    assert listing.knows(("claude", "s-0"))
    assert not listing.knows(("claude", "s-1"))
