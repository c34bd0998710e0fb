"""Values whose name, option, header or program says that they are secret.

The value is taken whole: quotes inside quotes, escaped quotes and what is glued to a closing quote belong to it. Every
expression is bounded or possessive: no text makes the work grow faster than its length.
"""

from __future__ import annotations

import re

_WORD = (
    r"(?P<word>[Pp]assw(?:or)?d|PASSW(?:OR)?D|[Pp]assphrase|PASSPHRASE|[Ss]ecret|SECRET|[Tt]oken|TOKEN|[Cc]redential|CREDENTIAL"
    r"|(?:[Aa]pi|API|[Aa]ccess|ACCESS|[Pp]rivate|PRIVATE|[Ss]igning|SIGNING|[Ee]ncryption|ENCRYPTION|[Aa]uth|AUTH)[_-]?"
    r"(?:[Kk]ey|KEY)|[A-Za-z0-9]_(?:KEY|AUTH|PAT|PWD|CREDS|DSN|COOKIE|SALT)(?![A-Za-z])|\b[Pp]wd(?=\s?=\s?[^/~\s]))"
)
_SHORT_NAME = r"(?<![A-Za-z0-9])(?:\w{0,24}_)?(?:pass|pw)=|(?<![A-Z0-9])[A-Z0-9_]{0,24}(?<!BY)(?<!COM)(?:PASS|PW)=|(?<![A-Za-z0-9_])(?:KEY|PIN)="
_ESCAPED_QUOTES = r"\\{1,3}\"[^\"\n]++\"?|\\{1,3}'[^'\n]++'?"
_QUOTES = r"\"(?:[^\"\\\n]|\\.)++\"|'(?:[^'\\\n]|\\.)++'|`[^`\n]++`"
_GLUED = r"[\"'](?=[\w$])[^\s\"'`;&|<>]++[\"']?"
_BARE = r"(?:\\[^\n\"']|\$\([^()\n]{0,200}\)|[^\s\"'`;&|<>()\\])"
_VALUE = rf"(?P<value>{_ESCAPED_QUOTES}|(?:(?:{_QUOTES})(?![^\w$\\])|[\"'`][^\"'`\n]++(?![\"'`])|&?{_BARE})(?:{_BARE}|{_GLUED})*+|{_QUOTES})"

_NAMED = re.compile(_WORD + r"(?P<suffix>[\w.-]{0,24})[\\\"'\]]{0,4}(?P<sign>\s{0,4}(?::=|=>|={1,2}|:)\s{0,4})" + _VALUE)
_FLAG = re.compile(r"(?<![\w-])--?[\w-]{0,24}?" + _WORD + r"(?P<suffix>[\w-]{0,24})(?P<sign>\s{1,4})(?!-)" + _VALUE)
_SHORT = re.compile(rf"(?:{_SHORT_NAME}|(?<![\w-])--?(?:pass|pw)(?:=|\s{{1,4}}(?!-)))" + _VALUE)
_SPOKEN = re.compile(
    r"(?<![\w-])(?:[Pp]assword|PASSWORD|[Ii]dentified\s{1,4}[Bb]y|IDENTIFIED\s{1,4}BY)\s{1,4}"
    r"(?P<value>\\{0,3}(?P<quote>[\"'])[^\"'\n<>]++\\{0,3}(?P=quote))"
    r"|(?<!\w)(?:login|user)\s{1,8}\S{1,64}\s{1,8}password\s{1,8}(?P<netrc>[^\s\"'`<>]++)"
    r"|(?<![\w-])(?:password|passphrase)\s{1,4}(?!sha|md5|base|argon|oauth|utf)(?P<said>(?=[a-z]*+[A-Z0-9])(?=\D{0,40}\d)[A-Za-z0-9]{6,64}+)(?![\w(./=-])"
)
_QUERY = re.compile(
    r"[?&](?:key|sig|signature|token|access_token|auth|secret|password|pw|api_?key)=(?P<value>[^\s&\"'`<>#{}$]++)"
)
_HEADER = re.compile(
    r"(?:[Aa]uthorization|AUTHORIZATION)[\\\"'\]]{0,4}\s{0,4}[:=]\s{0,4}[\\\"']{0,4}(?:(?:[Bb]earer|[Bb]asic|[Tt]oken|[Dd]igest|ApiKey)\s{1,4})?+"
    r"(?P<bare>[^\s\"'`<>]++(?:\s{1,3}[A-Za-z]{2,24}=[^\s\"'`<>]++)*+)"
    r"|(?:[Bb]earer|BEARER)\s{1,4}(?P<bearer>[\w.~+/=-]{12,}+)"
    r"|(?:[Cc]ookie|COOKIE):\s{0,4}+(?P<cookie>[^\n\"'`<>]++)"
    r"|(?<![\w-])[Xx]-[\w-]{0,24}?(?:[Aa]uth|[Kk]ey)(?:-[\w-]{0,16})?:\s{0,4}(?P<own>[^\s\"'`<>]++)"
)

_REST = r"[^\n;|&]{0,160}?\s"
_TOOLS = re.compile(
    r"(?<![\w./-])(?:sshpass\s{1,4}-p\s{0,4}"
    rf"|(?:mysql|mysqldump|mysqladmin|mariadb){_REST}-p"
    rf"|(?:docker|podman|helm|oc|buildah|skopeo){_REST}{{0,1}}login{_REST}-p\s{{0,4}}"
    rf"|redis-cli{_REST}(?:-a|--pass)\s{{1,4}}|(?:mongo|mongosh|mongodump|mongorestore){_REST}-p\s{{0,4}}"
    rf"|ldap(?:search|modify|add|delete|whoami){_REST}-w\s{{0,4}}|(?:zip|unzip){_REST}-P\s{{0,4}}|7z[ar]?{_REST}-p"
    rf"|smbclient{_REST}-U\s{{0,4}}[\w.-]{{1,32}}%|htpasswd\s{{1,4}}-\w{{0,4}}b\w{{0,4}}\s{{1,4}}\S{{1,64}}\s{{1,4}}\S{{1,64}}\s{{1,4}}"
    r"|vault\s{1,4}login\s{1,4}(?!-)|aws\s{1,4}configure\s{1,4}set\s{1,4}\w{0,24}(?:key|token)\w{0,8}\s{1,4}"
    rf"|gh\s{{1,4}}secret\s{{1,4}}set{_REST}(?:--body|-b)[\s=]{{1,4}}|heroku\s{{1,4}}config:set\s{{1,4}}\w{{1,40}}="
    rf"|kubectl{_REST}--from-literal[\s=]{{1,4}}[\w.-]{{1,64}}=|curl{_REST}(?:-b|--cookie)[\s=]{{1,4}}(?=[\"']?\w{{1,40}}=)"
    r")(?!<)(?=[^\s-])" + _VALUE
)
_FRAGMENT = re.compile(
    r"(?:--from-literal[\s=]{1,4}[\w.-]{1,64}=|-pass(?:in|out)?\s{1,4}pass:)(?!<)" + _VALUE
)
_PIPED = re.compile(
    r"(?<!\w)(?:echo|printf)\s{1,4}(?:-n\s{1,4})?(?!<)(?P<value>\"[^\"\n<>]{1,200}+\"|'[^'\n<>]{1,200}+'|[^\s\"'|<>;&]{1,200}+)"
    r"\s{0,4}\|\s{0,4}(?:sudo\s{1,4})?(?:chpasswd|passwd|[a-z][^\n|;&]{0,120}--password-stdin)"
)
_LOGIN = re.compile(
    r"(?<![\w-])(?:-u|--user)(?:\s{1,4}|=)?[\"']?"
    r"(?P<login>[^\s:\"'<>/-][^\s:\"'<>/]{0,63}:(?!\d{1,5}(?:[\s\"'/]|\Z)|\s|//)[^\s\"'<>]++)"
)
_INVITE = re.compile(r"(?<=hivemesh join )[^\s<>-][^\s<>]{11,}+|(?<=relay join )[^\s<>-][^\s<>]{11,}+")

_PLACEHOLDER = re.compile(r"<[a-z-]{3,12}>\Z")
_REFERENCE = re.compile(
    r"\$(?:[A-Za-z_]\w*|\{[^{}]*\}|\([^()]*\)|)\Z|%[A-Z_]+%\Z|\$?\{\{[^{}]*+\}{0,2}\Z|\*\Z"
)
_HARMLESS_SUFFIX = re.compile(r"(?:iz|[_-]?(?:count|limit|budget)|.*(?:file|path|stdin|dir|bytes|chars|_max|type|stream)\Z)", re.IGNORECASE)
_NUMBER = re.compile(r"\d[\d_.]{0,9}[,)]?\Z")
_TYPE = re.compile(r"(?:bytes|str|int|bool|None|null|True|False|true|false|string|number|boolean)[,;)\]]{0,2}\Z")
_PROSE = re.compile(r"[A-Za-z][a-z]{0,15}[,.]?\Z")
_GOES_ON = re.compile(r" [a-z]")
_LETTERS = re.compile(r"[A-Za-z]++[,.;:]?\Z")
_NAME_IN_CODE = re.compile(r"[A-Za-z_][\w.]*+\Z")


def drop_named(text: str) -> str:
    """Replace values behind telling names and options."""
    for rule in (_NAMED, _FLAG):
        text = rule.sub(_without_named, text)
    return _QUERY.sub(_without, _SPOKEN.sub(_without, _SHORT.sub(_without, text)))


def drop_headers(text: str) -> str:
    """Replace what headers of requests carry."""
    return _HEADER.sub(_without, text)


def drop_typed(text: str) -> str:
    """Replace passwords and logins typed to programs that take them, and invites."""
    for rule in (_TOOLS, _FRAGMENT, _PIPED):
        text = rule.sub(_without, text)
    return _INVITE.sub("<invite>", _LOGIN.sub(lambda found: _instead(found, "login", "<login>"), text))


def _instead(found: re.Match[str], group: str, placeholder: str) -> str:
    start, end = found.start(group) - found.start(), found.end(group) - found.start()
    return found[0][:start] + placeholder + found[0][end:]


def _bared(value: str) -> tuple[str, str, str]:
    """Split a value into its opening, its text and its closing, where it is quoted as a whole."""
    opening = value[: len(value) - len(value.lstrip("\\"))]
    quote = value[len(opening) : len(opening) + 1]
    if quote not in ("'", '"', "`") or not quote:
        return "", value, ""
    opening += quote
    inner = value[len(opening) :]
    if not inner.endswith(quote):
        return opening, inner, ""
    inner = inner[:-1]
    text = inner.rstrip("\\") if len(opening) > 1 else inner
    if quote in text.replace("\\" + quote, ""):
        return "", value, ""
    return opening, text, inner[len(text) :] + quote


def _without(found: re.Match[str]) -> str:
    group = next(name for name, value in found.groupdict().items() if value is not None and name not in ("word", "suffix", "sign", "quote"))
    opening, text, closing = _bared(found[group])
    if not text or _PLACEHOLDER.match(text) or _REFERENCE.match(text):
        return found[0]
    return _instead(found, group, f"{opening}<secret>{closing}")


def _without_named(found: re.Match[str]) -> str:
    text = _bared(found["value"])[1]
    suffix, sign = found["suffix"], found["sign"]
    plural = suffix.lower() == "s"
    token = found["word"].lower() == "token"
    after = found.string[found.end() : found.end() + 1]
    harmless = (
        _HARMLESS_SUFFIX.match(suffix)
        or _TYPE.match(text)
        or ((plural or token) and _NUMBER.match(text))
        or (plural and token and suffix == "s")
        or (plural and ":" in sign and _LETTERS.match(text))
        or (":" in sign and found["word"].lower() in ("token", "secret") and _PROSE.match(text) and _GOES_ON.match(found.string, found.end()))
        or (after == "(" and " " in sign and _NAME_IN_CODE.match(text))
    )
    return found[0] if harmless else _without(found)
