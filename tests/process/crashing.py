"""Be ``hivemesh`` until one call of one function, and be killed there: ``crashing.py MODULE:NAME before|after NUMBER WORD...``."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from functools import wraps
from itertools import count

from node.cli.entry import main


def _crash_at(place: str, moment: str, number: int) -> None:
    module, name = place.split(":")
    holder = importlib.import_module(module)
    *path, last = name.split(".")
    for step in path:
        holder = getattr(holder, step)
    real, calls = getattr(holder, last), count(1)

    @wraps(real)
    def act(*arguments: object, **named: object) -> object:
        this = next(calls)
        if this == number and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        found = real(*arguments, **named)
        if this == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(holder, last, act)


if __name__ == "__main__":
    _crash_at(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    sys.argv[1:4] = []
    sys.exit(main())
