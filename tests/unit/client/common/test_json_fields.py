"""Tests of the extraction of JSON fields: a field keeps its bytes from the source, or the object is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tutti.common.json_fields import DEPTH_MAX, JsonFields, NotAnObject, NotJson, check_json, field_bytes

#: Numbers as JSON has them, of any length: most of them no float holds.
NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,4})?", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
BLANKS = st.sampled_from(["", " ", "\t", "\r"])
#: Text of a JSON value.
VALUES: st.SearchStrategy[str] = st.recursive(
    st.one_of(NUMBERS, st.sampled_from(["null", "true", "false"]), st.builds(json.dumps, TEXTS, ensure_ascii=st.booleans())),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{' , '.join(items)}]"),
        st.lists(st.tuples(TEXTS, inner), max_size=3).map(
            lambda pairs: "{" + ", ".join(f"{json.dumps(name)}: {value}" for name, value in pairs) + "}"
        ),
    ),
    max_leaves=6,
)


@given(VALUES, VALUES, st.sampled_from(["k", "ü", 'a"b', "a/b", ""]), BLANKS, st.booleans())
@example("12345678901234567890123", "{}", "k", "", True)
@example("1e400", "-0", "k", " ", True)
@example('"\\u0000"', "1", "k", "", False)
def test_a_field_keeps_its_bytes(field: str, other: str, name: str, blank: str, ascii_only: bool) -> None:
    members = [f"{json.dumps(name, ensure_ascii=ascii_only)}{blank}:{blank}{field}", f'"other":{other}']
    text = ("{" + f"{blank},{blank}".join(members) + "}").encode()
    assert JsonFields([name]).of(text) == [field.encode()]
    assert JsonFields([name, "missing", name]).of(text) == [field.encode(), b"", field.encode()]
    expected = None if field == "null" else json.loads(field).encode() if field.startswith('"') else field.encode()
    assert field_bytes(field.encode()) == expected
    check_json(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"k":1,"k":2}',
        '{"k":1,"k":1}',
        '{"\\u006b":1,"k":2}',
        '{"\\u006b":1,"x":"\\n","\\u006b" :2}',
        '{"k":1,"x":{"k":2},"k":null}',
    ],
)
def test_a_field_that_comes_twice_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"field 'k' more than once, as 1 and (1|2|null)"):
        JsonFields(["k"]).of(text.encode())


@pytest.mark.parametrize(
    "text",
    ['{"k":1,"x":{"k":2}}', '{"k":1,"x":"k"}', '{"k":1,"x":2,"x":3}', '{"k":1,"\\u0078":"\\u006b"}', '{"k":1,"x":"\\"k\\":2"}'],
)
def test_a_name_inside_of_another_field_does_not_count(text: str) -> None:
    assert JsonFields(["k"]).of(text.encode()) == [b"1"]


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a/b", "a\nb"])
def test_a_name_with_several_spellings_is_found_twice(name: str) -> None:
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in name)
    for second in (json.dumps(name), f'"{escaped}"', json.dumps(name).replace("/", "\\/")):
        with pytest.raises(ValueError, match="more than once"):
            JsonFields([name]).of(f"{{{json.dumps(name)}:1,{second}:2}}".encode())


@pytest.mark.parametrize(
    ("text", "what", "column"),
    [
        (b"", "input data was truncated", 1),
        (b"{", "input data was truncated", 2),
        (b'{"k":NaN}', "invalid character", 6),
        (b'{"k":01}', "invalid number", 7),
        (b"1 2", "trailing characters", 3),
        (b'"\\ud800"', "half of a surrogate pair", 9),
        (b"\xef\xbb\xbf1", "invalid character", 1),
        (b'"\0"', "invalid character", 2),
    ],
)
def test_invalid_json_is_reported_with_its_column(text: bytes, what: str, column: int) -> None:
    with pytest.raises(NotJson) as told:
        check_json(text)
    assert what in told.value.what
    assert told.value.column == column


def test_a_value_that_is_not_an_object_has_no_fields() -> None:
    for text in (b"[]", b"1", b'"k"', b"null"):
        with pytest.raises(NotAnObject):
            JsonFields(["k"]).of(text)


@pytest.mark.parametrize(("left", "right"), [("[", "]"), ('{"a":', "}")])
def test_how_deep_json_may_be_depends_on_the_text_alone(left: str, right: str) -> None:
    def nested(depth: int) -> bytes:
        return (left * depth + '"[[{"' + right * depth).encode()

    def deep_in_the_stack(frames: int, call: Any) -> None:
        deep_in_the_stack(frames - 1, call) if frames else call()

    for frames in (0, 300):
        deep_in_the_stack(frames, lambda: check_json(nested(DEPTH_MAX)))
        for depth in (DEPTH_MAX + 1, 100_000):
            with pytest.raises(ValueError, match=f"nested too deeply: at most {DEPTH_MAX}"):
                deep_in_the_stack(frames, lambda depth=depth: check_json(nested(depth)))
    check_json(b"[" + b",".join([b'[{"a":"["}]'] * 10_000) + b"]")
