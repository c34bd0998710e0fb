"""The environment of a task: built up from nothing, never cut down from the node's own.

What stands in the node's environment (keys of providers, agents' sockets, interpreter and loader switches) must not
reach a task, and a list of what to remove always lags behind; so this is a list of what to give.
"""

from __future__ import annotations

from collections.abc import Mapping

PATH_FALLBACK = "/usr/local/bin:/usr/bin:/bin"


def task_environment(own: Mapping[str, str], *, task: str, home: str, temporary: str, user: str) -> dict[str, str]:
    """Build a task's whole environment.

    Args:
        own: The node's environment; only PATH, LANG and TZ are read.
        task: The task's id as text.
        home: Its private home folder.
        temporary: Its private folder for temporary files.
        user: The name of the account the node runs as.

    Returns:
        Name to value.
    """
    given = {
        "PATH": _absolute_only(own.get("PATH", "")),
        "HOME": home,
        "TMPDIR": temporary,
        "LANG": own.get("LANG") or "C.UTF-8",
        "TERM": "dumb",
        "USER": user,
        "LOGNAME": user,
        "HIVEMESH_TASK": task,
    }
    if own.get("TZ"):
        given["TZ"] = own["TZ"]
    return {name: value for name, value in given.items() if "\0" not in value}


def _absolute_only(path: str) -> str:
    """Drop entries that would search the task's own tree."""
    kept = [entry for entry in path.split(":") if entry.startswith("/")]
    return ":".join(kept) or PATH_FALLBACK
