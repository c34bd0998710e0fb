"""What a task's environment holds, and above all what not."""

from __future__ import annotations

from node.tasks.environment import PATH_FALLBACK, task_environment


def build(own: dict[str, str]) -> dict[str, str]:
    return task_environment(own, task="abc", home="/t/home", temporary="/t/tmp", user="ana")


def test_nothing_of_the_nodes_own_environment_is_inherited():
    """O-X27: keys, agents' variables and loader switches of the node do not reach a task."""
    own = {
        "PATH": "/usr/bin:/bin", "HOME": "/home/ana", "ANTHROPIC_API_KEY": "canary", "CLAUDECODE": "1", "LD_PRELOAD": "/x.so",
        "GIT_DIR": "/x", "PYTHONPATH": "/x", "NODE_OPTIONS": "--x", "SSH_AUTH_SOCK": "/x", "HIVEMESH_HOME": "/x", "TERM": "xterm",
    }  # fmt: skip
    assert build(own) == {
        "PATH": "/usr/bin:/bin", "HOME": "/t/home", "TMPDIR": "/t/tmp", "LANG": "C.UTF-8", "TERM": "dumb", "USER": "ana",
        "LOGNAME": "ana", "HIVEMESH_TASK": "abc",
    }  # fmt: skip


def test_language_and_zone_are_the_workers():
    assert {"LANG": "de_DE.UTF-8", "TZ": "Europe/Berlin"}.items() <= build({"LANG": "de_DE.UTF-8", "TZ": "Europe/Berlin"}).items()


def test_a_path_never_searches_the_tree():
    assert build({"PATH": ".:bin::/usr/bin"})["PATH"] == "/usr/bin"
    assert build({"PATH": "."})["PATH"] == build({})["PATH"] == PATH_FALLBACK
