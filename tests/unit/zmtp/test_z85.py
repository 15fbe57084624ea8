"""Tests of Z85: keys are encoded as in RFC 32 of ZeroMQ, and other text is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zmq.utils import z85 as theirs

from tutti.zmtp import z85

#: The examples of RFC 32, and the ends of the range.
VECTORS = [
    ("864fd26fb559f75b", "HelloWorld"),
    ("8e0bdd697628b91d8f245587ee95c5b04d48963f79259877b49cd9063aead3b7", "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"),
    ("", ""),
    ("00000000ffffffff", "00000%nSc0"),
]


@pytest.mark.parametrize(("data", "text"), VECTORS)
def test_text_is_as_the_specification_has_it(data: str, text: str) -> None:
    assert z85.encode(bytes.fromhex(data)) == text
    assert z85.decode(text) == bytes.fromhex(data)


@given(st.binary(max_size=64).map(lambda data: data[: len(data) // 4 * 4]))
def test_text_is_that_of_zeromq(data: bytes) -> None:
    assert z85.encode(data) == theirs.encode(data).decode()
    assert z85.decode(z85.encode(data)) == data


@pytest.mark.parametrize("text", ["0000", "000000", "0000~", "0000 ", "0000\u00e9", "%nSc1", "#####"])
def test_other_text_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ValueError, match="the text is not Z85") as error:
        z85.decode(text)
    assert text not in str(error.value)
