"""Tests of tickets and other requests: any bytes either parse exactly, or are refused with the field and the reason."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti import limits as common_limits
from tutti_gateway.core import limits
from tutti_gateway.reads.protocol.flight_errors import ReadError
from tutti_gateway.reads.protocol.tickets import (
    AtTime,
    Command,
    EmptyRequest,
    FrontierRequest,
    SaveOffsetRequest,
    Ticket,
    TicksRequest,
    decode,
    encode,
)


def ticket(**fields: object) -> Ticket:
    return decode(Ticket, json.dumps(fields).encode(), "the ticket")


def refused(kind: type, data: bytes) -> ReadError:
    with pytest.raises(ReadError) as caught:
        decode(kind, data, "the ticket")
    return caught.value


def test_an_empty_request_means_the_complete_log() -> None:
    assert decode(Ticket, b"", "the ticket") == Ticket() == ticket()
    assert (ticket().start, ticket().end, ticket().topics, ticket().follow) == ("earliest", None, None, False)


@pytest.mark.parametrize("kind", [Ticket, Command, FrontierRequest, EmptyRequest, TicksRequest])
def test_every_request_may_have_the_frontier_that_its_caller_knows(kind: type[Ticket]) -> None:
    known = decode(kind, b'{"seen": 7, "log": "abc"}', "the request")
    assert (known.seen, known.log) == (7, "abc")
    assert refused(kind, b'{"log": "%s"}' % (b"x" * 65)).code == "malformed"


def test_places() -> None:
    assert ticket(start=5, end={"time_us": -1}).end == AtTime(-1)
    assert ticket(start="latest").start == "latest"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"start": -1}, ">= 0"),
        ({"start": 1.5}, "float"),
        ({"start": True}, "bool"),
        ({"start": "tomorrow"}, "tomorrow"),
        ({"start": 2**63}, "<= 9223372036854775807"),
        ({"end": {"time": 3}}, "time"),
        ({"follow": 1}, "follow"),
        ({"topics": "flights"}, "topics"),
        ({"topics": []}, "an empty list of topics"),
        ({"topics": ["a b"]}, "' '"),
        ({"topics": ["t"] * (limits.TOPICS_A_READ_MAX + 1)}, str(limits.TOPICS_A_READ_MAX)),
        ({"offset": 3}, "offset"),
        ({"splits": 3}, "splits"),
    ],
)
def test_mistakes_are_named(fields: dict[str, object], said: str) -> None:
    fault = refused(Ticket, json.dumps(fields).encode())
    assert fault.code == "malformed"
    assert said in str(fault)
    assert str(fault).startswith("the ticket")


def test_unknown_columns_have_a_code_of_their_own() -> None:
    fault = refused(Ticket, b'{"columns": ["offset", "valeu"]}')
    assert fault.code == "unknown_column"
    assert "did you mean 'value'" in str(fault)


def test_no_json_and_too_much_of_it() -> None:
    assert "malformed" in str(refused(Ticket, b"\xff\xfe"))
    assert str(common_limits.TICKET_BYTES_MAX) in str(refused(Ticket, b" " * (common_limits.TICKET_BYTES_MAX + 1)))
    assert refused(Ticket, b'{"topics":' + b"[" * 60_000).code == "malformed"
    assert "a JSON object with the fields: seen, log" in str(refused(EmptyRequest, b'{"a": 1}'))


def test_a_range_may_be_split_in_one_way_only() -> None:
    assert decode(Command, b'{"splits": 4}', "the command").splits == 4
    assert "one of them" in str(refused(Command, b'{"splits": 4, "split_bytes": 5}'))
    assert refused(Command, b'{"splits": 0}').code == "malformed"


def test_long_polls_and_saved_offsets_are_bounded() -> None:
    assert decode(FrontierRequest, b'{"beyond": -1}', "it").beyond == -1
    assert refused(FrontierRequest, b'{"timeout_ms": 3600000}').code == "malformed"
    assert refused(SaveOffsetRequest, b'{"reader": "a/b", "offset": 1}').code == "malformed"
    assert refused(SaveOffsetRequest, b'{"reader": "a"}').code == "malformed"


@given(
    st.builds(
        Ticket,
        start=st.integers(0, 2**63 - 1),
        end=st.none() | st.integers(0, 2**63 - 1),
        topics=st.none() | st.lists(st.from_regex(r"[a-z0-9_-]{1,20}", fullmatch=True), min_size=1, max_size=5).map(tuple),
        follow=st.booleans(),
        seen=st.integers(0, 2**63 - 1),
    )
)
def test_issued_tickets_are_accepted(made: Ticket) -> None:
    assert decode(Ticket, encode(made), "the ticket") == made


@given(
    st.binary(max_size=300)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*Command.__struct_fields__, "x"]), inner, max_size=6)
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_bytes_are_accepted_or_refused(data: bytes) -> None:
    try:
        answer: Command | ReadError = decode(Command, data, "the command")
    except ReadError as fault:
        answer = fault
    if isinstance(answer, ReadError):
        assert answer.code in ("malformed", "unknown_column")
        assert str(answer).startswith("the command")
