"""What we know of programs: which words say what is done, which options matter, which run other programs.

Tables only. A program that is not listed keeps every option it was called with; one that runs what it is given is never
generalised. A wrong row can only make a pattern narrower or a lesson missing, except in FREE and PIPE_SAFE: a program
belongs there only if no option and no input makes it run or write anything.
"""

from __future__ import annotations

FREE = frozenset(
    {
        "cat", "head", "tail", "wc", "grep", "egrep", "fgrep", "ls", "du", "df", "stat", "pwd", "which", "whoami",
        "uname", "echo", "printf", "true", "false", "jq", "cut", "tr", "nl", "diff", "cmp", "basename", "dirname",
        "realpath", "readlink", "id", "ps", "pytest", "mypy",
    }
)  # fmt: skip
"""Options do not change what kind of act it is: ``pytest *`` whatever they are."""

PIPE_SAFE = (FREE - {"pytest", "mypy"}) | {"sort", "uniq", "column", "xxd", "od", "base64", "md5sum", "sha256sum", "rev"}
"""What they read is text to them, never a program."""

TEXT_SAFE = frozenset({"cat", "git commit"})
"""A here-document given to these is text."""

EXACT = frozenset(
    {
        "eval", "exec", "source", ".", "xargs", "awk", "gawk", "sed", "ssh", "parallel", "watch", "at", "crontab", "su",
        "nsenter", "chroot", "script", "expect", "screen", "tmux", "systemd-run", "trap", "alias", "entr", "nix-shell",
        "docker run", "docker exec", "podman run", "podman exec", "kubectl exec", "kubectl run", "git bisect",
        "git filter-branch", "git rebase", "builtin", "unshare", "flock", "strace", "gdb", "env -i", "psql", "mysql",
        "sqlite3", "vim", "vi", "ed", "ex", "emacs", "dd", "mkfs", "kubectl apply",
    }
)  # fmt: skip
"""They run, or irrevocably write, what they are given: only the very same line is the same act."""

INTERPRETERS = frozenset(
    {
        "sh", "bash", "zsh", "dash", "fish", "ksh", "python", "python3", "node", "nodejs", "deno", "bun", "ruby", "perl",
        "php", "lua", "Rscript", "osascript", "pwsh", "powershell", "tclsh",
    }
)  # fmt: skip
"""The script they run is what is done; its arguments vary."""

SHELLS = frozenset({"sh", "bash", "zsh", "dash"})
CODE_OPTIONS = frozenset({"-c", "-e", "-E", "--eval", "-p", "--print", "-r", "-s", "-i", "-Command", "-lc", "-ic", "-"})
"""Behind these an interpreter takes its program from the command line or from its input."""

DROPPED = {
    "time": (frozenset({"-p"}), frozenset[str](), 0),
    "timeout": (frozenset({"--foreground", "--preserve-status", "-v"}), frozenset({"-k", "-s"}), 1),
    "nice": (frozenset[str](), frozenset({"-n"}), 0),
    "command": (frozenset[str](), frozenset[str](), 0),
}
"""Wrappers that change nothing about the act: options without a value, options with one, words of their own."""

KEPT = {
    "sudo": (frozenset({"-n", "-E", "-H", "-S", "-b", "-k", "-A"}), frozenset({"-u", "-g", "-p", "-C", "-h", "-r", "-t"})),
    "doas": (frozenset({"-n"}), frozenset({"-u"})),
    "nohup": (frozenset[str](), frozenset[str]()),
    "setsid": (frozenset[str](), frozenset[str]()),
    "env": (frozenset[str](), frozenset[str]()),
    "uv run": (frozenset[str](), frozenset[str]()),
    "poetry run": (frozenset[str](), frozenset[str]()),
    "hatch run": (frozenset[str](), frozenset[str]()),
    "bundle exec": (frozenset[str](), frozenset[str]()),
    "npm exec": (frozenset[str](), frozenset[str]()),
    "pnpm exec": (frozenset[str](), frozenset[str]()),
}
"""Wrappers that stay in the pattern, in front of the program they run: options without a value, options with one."""

EVERY_WORD = 16
DEPTH = {
    "git": 1, "docker": 1, "podman": 1, "kubectl": 1, "helm": 1, "terraform": 1, "npm": 1, "pnpm": 1, "yarn": 1,
    "cargo": 1, "go": 1, "gh": 2, "glab": 2, "aws": 2, "gcloud": 2, "az": 2, "pip": 1, "pip3": 1, "uv": 1, "poetry": 1,
    "hatch": 1, "brew": 1, "apt": 1, "apt-get": 1, "dnf": 1, "yum": 1, "systemctl": 1, "launchctl": 1, "service": 2,
    "gradle": EVERY_WORD, "./gradlew": EVERY_WORD, "mvn": EVERY_WORD, "make": EVERY_WORD, "just": EVERY_WORD,
    "task": EVERY_WORD, "rake": EVERY_WORD, "tox": EVERY_WORD, "nox": EVERY_WORD, "invoke": EVERY_WORD, "ruff": 1,
    "alembic": 1, "conda": 1, "rustup": 1, "npx": 1, "uvx": 1, "pipx": 1, "bundle": 1, "composer": 1, "flutter": 1,
    "dotnet": 1, "swift": 1, "hivemesh": 1, "cd": 1, "export": EVERY_WORD, "npm run": 2, "pnpm run": 2, "yarn run": 2,
    "docker compose": 2, "uv pip": 2, "git stash": 2, "git remote": 2, "git submodule": 2, "git worktree": 2,
    "git config": 2, "go run": 2, "go mod": 2, "pipx run": 2, "npm config": 2, "uv tool": 2, "kill": EVERY_WORD,
}  # fmt: skip
"""How many words behind the name say what is done."""

OPTIONS_FIRST = {
    "git": (frozenset({"--no-pager", "-P", "--no-optional-locks"}), frozenset({"-C", "-c", "--git-dir", "--work-tree"})),
    "kubectl": (frozenset[str](), frozenset({"-n", "--namespace", "--context"})),
}
"""Options that stand before the word that says what is done: those that change nothing, those that take a value."""

SAME_OPTION = {
    "rm": {"--recursive": "-r", "-R": "-r", "--force": "-f", "-v": "", "--verbose": ""},
    "git push": {"-f": "--force", "-d": "--delete", "-u": "", "--set-upstream": "", "-q": "", "--quiet": "", "-v": ""},
    "git commit": {"-m": "", "--message": "", "-q": "", "--quiet": "", "-F": "", "--file": "", "-am": "-a"},
    "git checkout": {"--force": "-f"},
    "git branch": {"--force": "-f", "--delete": "-d"},
    "git add": {"-A": "--all"},
    "git clean": {"--force": "-f"},
    "git status": {"-s": "", "--short": "", "--porcelain": "", "-b": ""},
}
"""Options with two names, and (empty) those that change nothing."""

CLUSTERED = {"rm": "rfdiI", "git clean": "nfdxXi"}
"""Single letters are written together, in this order: ``-f -r`` is ``-rf``."""

SYSTEM_FOLDERS = ("/bin/", "/usr/bin/", "/usr/local/bin/", "/sbin/", "/usr/sbin/", "/opt/homebrew/bin/")
WHOLE_TARGETS = frozenset(
    {"/", "/*", "~", "~/", "~/*", ".", "./", "./*", "..", "../", "*", "$HOME", "${HOME}", "$HOME/", "$HOME/*", "${HOME}/"}
)
"""Arguments that are everything: never covered by ``*``."""
SENSITIVE_PARTS = (
    ".ssh", ".aws", ".gnupg", ".env", ".netrc", ".pgpass", ".kube", ".npmrc", ".pypirc", ".git-credentials", "id_rsa",
    "id_ed25519", ".pem", ".key", "shadow", "sudoers", "credentials", ".git/", ".claude", ".codex", ".hivemesh",
)  # fmt: skip
"""Arguments that name keys, credentials or an agent's own settings: never covered by ``*``."""
