"""Every function of query that takes outside bytes: it answers, or raises only what it says it raises."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.base.codec import Malformed, decode_untrusted
from query.audit import escaped
from query.deny import format_of, is_denied, path_text_untrusted
from query.door import Admitted, Rejected, admit_untrusted, hosts_of
from query.extract import markdown, python, rst
from query.grants import open_untrusted
from query.ignore import ATTRIBUTES_FILE, IGNORE_FILE, Exclusions, parse_pattern_untrusted
from query.messages import GrantBody, RevocationBody
from query.question import LIMIT_MAX, TERMS_MAX, BadQuestion, Question, parse_untrusted
from query.screen import secret_ranges
from query.spans import SPAN_BYTES_MAX, hidden_ranges, without

MARKUP = st.text(alphabet=st.sampled_from("#=-~*_`'\"<>!&;:|.[](){}\\/ \t\n\r\x0b\x0c\u2028\u00e9a1def class\u202e\ufeff"), max_size=400)
DOCUMENTS = MARKUP | st.text(max_size=200)
HEADERS = st.text(max_size=120) | st.from_regex(r"Bearer hmq_[a-z2-7]{14,18}_[0-9A-Za-z]{41,45}_[0-9A-Za-z]{5,7}", fullmatch=True)


@pytest.mark.parametrize("room", [markdown, rst, python])
@settings(deadline=None)
@given(text=DOCUMENTS)
def test_any_document_gives_bounded_spans_of_whole_characters(room, text):
    data = text.encode(errors="replace")
    spans = room.extract_untrusted(data, data.decode())
    for span in without(data, spans or [], hidden_ranges(data)):
        assert 0 <= span.start < span.end <= len(data)
        assert span.end - span.start <= SPAN_BYTES_MAX
        data[span.start : span.end].decode()
        assert "\n" not in span.heading + "".join(span.trail)


@given(DOCUMENTS)
def test_the_screen_stays_inside_its_text(text):
    assert all(0 <= low < high <= len(text) for low, high in secret_ranges(text))


@given(HEADERS)
def test_a_header_is_a_token_or_none(header):
    token = open_untrusted(header)
    assert token is None or header.endswith(token.text())


@given(st.binary(max_size=400) | st.text(max_size=100).map(lambda text: f'{{"question": "{text}"}}'.encode(errors="replace")))
def test_a_body_is_a_question_or_a_bad_one(body):
    try:
        question = parse_untrusted(body)
    except BadQuestion:
        return
    assert isinstance(question, Question)
    assert len(question.terms) <= TERMS_MAX
    assert 1 <= question.limit <= LIMIT_MAX


@given(st.binary(max_size=200))
def test_a_path_is_judged(raw):
    path = path_text_untrusted(raw)
    if path is not None:
        assert path.encode() == raw
        assert ".." not in path.split("/")
        assert is_denied(path) in (True, False)
        assert format_of(path) in (None, "markdown", "python", "rst")


@given(st.text(max_size=300), st.text(max_size=300), st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=5))
def test_ignore_files_say_something_about_every_path(ignores, attributes, parts):
    for line in ignores.split("\n"):
        parse_pattern_untrusted(line)
    exclusions = Exclusions({IGNORE_FILE: ignores, f"a/{ATTRIBUTES_FILE}": attributes})
    assert exclusions.reason("/".join(parts)) in (None, "ignored", "generated", "export_ignored")


@given(st.binary(max_size=600))
def test_the_door_has_a_verdict_for_any_bytes(data):
    verdict = admit_untrusted(data, hosts_of("127.0.0.1"))
    assert verdict is None or isinstance(verdict, (Admitted, Rejected))


@pytest.mark.parametrize("body", [GrantBody, RevocationBody])
@given(data=st.binary(max_size=460))
def test_a_replicated_body_is_itself_or_malformed(body, data):
    try:
        decoded = decode_untrusted(body, data, bytes_max=450)
    except Malformed:
        return
    assert type(decoded) is body


@given(st.text())
def test_nothing_in_the_trail_is_more_than_plain_text(text):
    assert escaped(text).isascii()
    assert escaped(text).isprintable() or not escaped(text)


@given(st.text(max_size=40))
def test_a_hosts_header_is_answered_or_not(header):
    assert hosts_of(header).allow(header) in (True, False)
