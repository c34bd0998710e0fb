"""Which sessions are listed now, and in what state: what is known of each, joined with which processes live.

Time alone changes a state (unknown becomes ended, busy becomes stuck), so states are asked for again and again; a
state is only built anew, with its texts redacted, when something it is made from changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mesh.base.names import project_from
from node.sessions.cost import ModelTotal, PriceTable
from node.sessions.fold import FoldState, Redact
from node.sessions.formats import ProcessNote
from node.sessions.inventory import Facts, Place, SessionState, chosen, state_of
from node.sessions.status import Life, judge

Key = tuple[str, str]
"""Agent and session."""
KEPT_MAX = 1_000
"""Sessions kept in memory; beyond it those longest without activity go (they stay in the database)."""
HOUR_MS = 3_600_000
_NO_LIFE = Life()


@dataclass(frozen=True, slots=True)
class Kept:
    """What the database knows of one session.

    Attributes:
        seen: What its own transcript says.
        deleted: Whether that transcript is gone.
    """

    agent: str
    session: str
    seen: FoldState
    totals: tuple[ModelTotal, ...]
    last_active_ms: int
    helpers: int
    bad_lines: int
    deleted: bool


class Listing:
    """The sessions of this machine that may be listed.

    Args:
        prices: The table of prices.
        redact: Takes secrets out of a text.
        listed_h: A session without a process is listed this long after its last activity.
    """

    def __init__(self, prices: PriceTable, redact: Redact, listed_h: int) -> None:
        self._prices = prices
        self._redact = redact
        self._listed_ms = listed_h * HOUR_MS
        self._kept: dict[Key, Kept] = {}
        self._life: dict[Key, Life] = {}
        self._notes: dict[Key, ProcessNote] = {}
        self._gone_ms: dict[Key, int] = {}
        self._built: dict[Key, tuple[Facts, SessionState]] = {}
        self._listed: list[SessionState] = []

    def keep(self, kept: Kept) -> None:
        """Take in what is now known of a session."""
        self._kept[kept.agent, kept.session] = kept

    def knows(self, key: Key) -> bool:
        """Say whether a session is kept."""
        return key in self._kept

    def life(self, key: Key) -> Life:
        """Say what is known of a session's process."""
        return self._life.get(key, _NO_LIFE)

    def note_running(self, running: Mapping[Key, tuple[Life, ProcessNote | None]], now_ms: int) -> None:
        """Take in which processes there are.

        A session whose process was seen to live and is not there any more has ended, whatever its files still claim.

        Args:
            running: Each session with a process, living or not.
            now_ms: This machine's clock.
        """
        for key, life in self._life.items():
            if life.state == "alive" and (key not in running or running[key][0].state != "alive"):
                self._gone_ms[key] = now_ms
        lives = {key: life for key, (life, _) in running.items()}
        for key, life in lives.items():
            if life.state == "alive":
                self._gone_ms.pop(key, None)
        for key, gone_ms in self._gone_ms.items():
            lives[key] = Life("gone", "its process has ended", gone_ms=gone_ms)
        self._life = lives
        self._notes = {key: note for key, (_, note) in running.items() if note is not None}
        for key, note in self._notes.items():
            if key not in self._kept and lives[key].state == "alive":
                self._kept[key] = _newborn(note, now_ms)

    def folders(self) -> set[str]:
        """Name the folders whose project and branch are wanted."""
        return {kept.seen.cwd for kept in self._kept.values() if kept.seen.cwd}

    def living_folders(self) -> set[str]:
        """Name the folders of sessions that live; their branch may change any time."""
        alive = (kept for key, kept in self._kept.items() if self.life(key).state == "alive")
        return {kept.seen.cwd for kept in alive if kept.seen.cwd}

    def listed(self) -> list[SessionState]:
        """List the sessions as of the last :meth:`update`."""
        return self._listed

    def update(self, places: Mapping[str, Place], now_ms: int) -> bool:
        """Judge every session again.

        Args:
            places: Project and branch by folder.
            now_ms: This machine's clock.

        Returns:
            Whether the list differs from the last one.
        """
        self._forget(now_ms)
        states = [self._state(key, kept, places, now_ms) for key, kept in self._kept.items()]
        listed = chosen(states, now_ms - self._listed_ms)
        changed = listed != self._listed
        self._listed = listed
        return changed

    def _forget(self, now_ms: int) -> None:
        """Drop what would not be listed, and what is beyond the bound."""
        for key in [k for k, kept in self._kept.items() if kept.last_active_ms < now_ms - self._listed_ms]:
            if self.life(key).state != "alive":
                self._drop(key)
        if len(self._kept) > KEPT_MAX:
            oldest = sorted(self._kept, key=lambda key: (self.life(key).state == "alive", self._kept[key].last_active_ms))
            for key in oldest[: len(self._kept) - KEPT_MAX]:
                self._drop(key)

    def _drop(self, key: Key) -> None:
        del self._kept[key]
        self._built.pop(key, None)
        self._gone_ms.pop(key, None)

    def _state(self, key: Key, kept: Kept, places: Mapping[str, Place], now_ms: int) -> SessionState:
        life = self.life(key)
        note = self._notes.get(key)
        place = places.get(kept.seen.cwd or "")
        written = None if kept.seen.branch in (None, "", "HEAD") else kept.seen.branch
        current = place.branch if place else None
        named = note.name if note is not None and note.named else None
        facts = Facts(
            session=kept.session,
            agent=kept.agent,
            project=place.project if place else project_from((kept.seen.cwd or "").rpartition("/")[2]),
            branch=(current or written) if life.state == "alive" else (written or current),
            seen=kept.seen,
            status=judge(kept.seen, life, kept.last_active_ms, now_ms),
            totals=kept.totals,
            last_active_ms=kept.last_active_ms,
            title=named or kept.seen.title,
            helpers=kept.helpers,
            bad_lines=kept.bad_lines,
            deleted=kept.deleted,
            alive=life.state == "alive",
        )
        built = self._built.get(key)
        if built is not None and built[0] == facts:
            return built[1]
        state = state_of(facts, self._prices, self._redact)
        self._built[key] = (facts, state)
        return state


def _newborn(note: ProcessNote, now_ms: int) -> Kept:
    """Make a session that has a process and no transcript yet."""
    started_ms = note.started_ms if note.started_ms is not None else now_ms
    seen = FoldState(session=note.session, cwd=note.cwd, person=note.person)
    return Kept("claude", note.session, seen, (), min(started_ms, now_ms), 0, 0, False)
