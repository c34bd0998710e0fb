"""A node that only answers its control socket, as a script says; the socket is the real one.

Used in a thread of the test: ``with FakeDaemon(home, {"status": {...}}) as daemon``. A verb is scripted by a plain
answer, by an error of the product, or by a handler like those of the real node.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import trio

from mesh.base.errors import MeshError
from node.calls import Call, Caller
from node.control import VerbHandler, open_control_socket, run_control
from node.home import Home
from node.lock import choose_control_address, lock_home, make_home


class FakeDaemon:
    """Answers verbs by script and remembers what it was asked."""

    def __init__(self, home: Home, script: Mapping[str, Any], *, refuses: Mapping[str, MeshError] | None = None) -> None:
        self.home = home
        self.asked: list[tuple[str, dict[str, object]]] = []
        self.cancelled: list[str] = []
        self.address = ""
        self._verbs = {name: self._scripted(answer) for name, answer in script.items()}
        self._verbs.setdefault("down", self._down)
        self._refuses = dict(refuses or {})
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()

    def _scripted(self, answer: Any) -> VerbHandler:
        async def handler(call: Call) -> object:
            self.asked.append((call.verb, dict(call.args)))
            if isinstance(answer, MeshError):
                raise answer
            if callable(answer):
                try:
                    return await answer(call)
                except trio.Cancelled:
                    self.cancelled.append(call.verb)
                    raise
            return answer

        return handler

    async def _down(self, call: Call) -> object:
        self._scope.deadline = trio.current_time() + 0.02
        return {}

    def _admit(self, verb: str, caller: Caller) -> None:
        if verb in self._refuses:
            raise self._refuses[verb]

    def _run(self) -> None:
        make_home(self.home)
        with lock_home(self.home):
            trio.run(self._serve)

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            self.address = choose_control_address(self.home, os.environ)
            async with open_control_socket(self.address) as listener:
                self._ready.set()
                await run_control(listener, self._verbs, self._admit)

    def __enter__(self) -> FakeDaemon:
        self._thread.start()
        assert self._ready.wait(10), "the fake daemon did not start"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._token is not None
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._scope.cancel)
        self._thread.join(10)
        assert not self._thread.is_alive(), "the fake daemon did not end"
