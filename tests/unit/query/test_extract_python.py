import ast
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from query.extract.python import extract_untrusted


def pieces(text: str) -> list[tuple[str, str, str]]:
    data = text.encode()
    spans = extract_untrusted(data, text)
    assert spans is not None
    return [(span.kind, span.heading, data[span.start : span.end].decode()) for span in spans]


def test_docstrings_come_with_their_signatures():
    found = pieces('"""Module words."""\n\n\ndef run(a: int = 1, *, b: str = ":") -> "x:y":\n    """Run it."""\n    secret_body()\n')
    assert found == [
        ("docstring", "", '"""Module words."""'),
        ("docstring", "run", 'def run(a: int = 1, *, b: str = ":") -> "x:y":\n    """Run it."""'),
    ]


def test_a_function_on_one_line_gives_its_head_only():
    assert pieces("def f(a, b=(1)): return BODY\n") == [("signature", "f", "def f(a, b=(1)):")]
    assert pieces("class A: x = BODY\n") == [("signature", "A", "class A:")]


def test_comments_in_and_behind_a_head_do_not_confuse_it():
    found = pieces("def f(\n    a,  # note: this\n):  # and: that\n    # SECRET\n    '''Words here.'''\n    body()\n")
    assert found == [("signature", "f", "def f(\n    a,  # note: this\n):"), ("docstring", "f", "'''Words here.'''")]


def test_private_and_inner_things_stay_out():
    found = pieces(
        "def _p():\n    '''no'''\n\ndef f():\n    '''yes yes'''\n    def inner():\n        '''no'''\n\n"
        "class A:\n    def m(self): ...\n    class B(Base, meta=M):\n        '''words'''\n"
    )
    assert [entry[1] for entry in found] == ["f", "A", "A.m", "A.B"]


def test_definitions_in_branches_count():
    found = pieces("try:\n    def a(): ...\nexcept* E:\n    def b(): ...\nif x:\n    pass\nelse:\n    async def c(): ...\n")
    assert [entry[1] for entry in found] == ["a", "b", "c"]


def test_strings_below_names_document_them():
    found = pieces("LIMIT = SECRET\n'''Most of it.'''\n\nclass A:\n    size: int = SECRET\n    '''How big.'''\n")
    assert ("docstring", "LIMIT", "'''Most of it.'''") in found
    assert ("docstring", "A.size", "'''How big.'''") in found
    assert not any("SECRET" in entry[2] for entry in found)


def test_byte_marks_wide_letters_and_old_line_ends_keep_offsets():
    found = pieces("\ufeff'''Größe'''\r\ndef ö(ä='ü'):\r    '''Wörter hier'''\r\n")
    assert found == [("docstring", "", "'''Größe'''"), ("docstring", "ö", "def ö(ä='ü'):\r    '''Wörter hier'''")]


def test_a_coding_line_cannot_change_what_the_bytes_mean():
    assert pieces("# -*- coding: latin-1 -*-\ndef f(a='é'): ...\n") == [("signature", "f", "def f(a='é'):")]


@pytest.mark.parametrize("text", ["def f(:\n", "x = '\0'\n", "(" * 5000, "-" * 200_000 + "1"], ids=["syntax", "nul", "deep", "unary"])
def test_what_is_no_python_is_said_to_be_none(text):
    assert extract_untrusted(text.encode(), text) is None


def body_bytes(tree: ast.AST, text: str) -> set[int]:
    """Offsets of every byte of a body, the docstring excepted."""
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    offsets: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0]
            has_words = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
            for statement in node.body[1:] if has_words else node.body:
                low = starts[statement.lineno - 1] + statement.col_offset
                high = starts[statement.end_lineno - 1] + statement.end_col_offset
                offsets.update(range(low, high))
    return offsets


STDLIB = Path(sysconfig.get_path("stdlib"))
SAMPLES = ["argparse.py", "dataclasses.py", "enum.py", "typing.py", "shutil.py", "asyncio/tasks.py", "email/message.py", "json/__init__.py"]


@pytest.mark.parametrize("name", SAMPLES)
def test_no_byte_of_a_body_is_ever_quoted(name):
    """QUERY.md section 2: an oracle over the syntax tree finds no body byte in any span."""
    data = (STDLIB / name).read_bytes()
    text = data.decode()
    assert "\f" not in text
    spans = extract_untrusted(data, text)
    assert spans
    bodies = body_bytes(ast.parse(text), text)
    assert not any(at in bodies for span in spans for at in range(span.start, span.end))


NAMES = st.sampled_from(["a", "b", "value"])
DEFAULTS = st.sampled_from(["1", "':'", "{1: 2}", "lambda: 0", "(1)", "x[1:2]", "'''#'''"])
ARGUMENTS = st.lists(st.tuples(NAMES, st.none() | DEFAULTS), max_size=3, unique_by=lambda pair: pair[0])


@given(ARGUMENTS, st.sampled_from(["", " -> 'r:s'", " -> {1: 2}"]), st.sampled_from([" BODY()", "\n    BODY()", " # c: d\n    BODY()"]))
def test_every_head_ends_at_its_own_colon(arguments, returns, body):
    shown = ", ".join(name if default is None else f"{name}={default}" for name, default in sorted(arguments, key=lambda p: p[1] is not None))
    head = f"def f({shown}){returns}:"
    assert pieces(f"{head}{body}\n") == [("signature", "f", head)]
