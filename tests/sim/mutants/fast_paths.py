"""Mutants of the fast paths: each check of a loop that handles the frequent case. Property tests compare each with the general path."""

from __future__ import annotations

from tests.sim.mutants.mutant import Mutant
from tests.sim.mutants.patch import Edit
from tutti.data import client_protocol
from tutti.data.frames import plain_body
from tutti.data.log_state import LogState
from tutti.zmtp.frame_reader import FrameReader
from tutti.zmtp.send_queue import SendQueue
from tutti_gateway.node.clients import batch_validation

_PROPERTIES = "tests/property/fast_paths/"
_SUBMITS = f"{_PROPERTIES}test_submits.py::test_one_plain_batch_is_accepted_exactly_if_the_general_path_accepts_it"
_BODIES = f"{_PROPERTIES}test_plain_bodies.py::test_an_answer_does_not_depend_on_earlier_bodies_and_equals_that_of_a_simple_check"
_READER = f"{_PROPERTIES}test_zmtp.py::test_a_reader_brings_the_same_with_and_without_the_fast_path_for_a_lone_message"
_SENDER = f"{_PROPERTIES}test_zmtp.py::test_a_message_sent_at_once_leaves_like_one_that_is_queued_and_sent"
_STATE = f"{_PROPERTIES}test_log_state.py::test_a_run_gives_the_offsets_the_state_and_the_error_of_its_frames_one_by_one"


def _lone(name: str, old: str, new: str = "", proof: str = _SUBMITS) -> Mutant:
    rule = "the fast path for one batch of a client accepts what the general path accepts"
    return Mutant(f"lone-{name}", "3", rule, [Edit(client_protocol, "decode_lone_submit", old, new)], proof=proof)


def _valid(name: str, old: str, new: str = "True") -> Mutant:
    rule = "a batch on the fast path is as valid as on the general path"
    return Mutant(f"lone-{name}", "3", rule, [Edit(batch_validation, "lone_valid", old, new)], proof=_SUBMITS)


def _body(name: str, function: str, old: str, new: str) -> Mutant:
    rule = "a known layout of a plain body stands for the same bodies as an unknown one"
    return Mutant(f"plain-{name}", "3", rule, [Edit(plain_body, function, old, new)], proof=_BODIES)


def _state(name: str, old: str, new: str = "") -> Mutant:
    rule = "frames applied as a run give the state and offsets of frames applied one by one"
    return Mutant(f"run-{name}", "3", rule, [Edit(LogState, "apply_run", old, new)], proof=_STATE)


def _reader(name: str, old: str, new: str = "") -> Mutant:
    rule = "a reader brings a message that arrives alone as it brings any other one"
    return Mutant(f"read-{name}", "3", rule, [Edit(FrameReader, "read_lone", old, new)], proof=_READER)


def _sender(name: str, owner: type[SendQueue], function: str, old: str, new: str) -> Mutant:
    rule = "a message that is sent at once leaves as one that is queued and sent"
    return Mutant(f"send-{name}", "3", rule, [Edit(owner, function, old, new)], proof=_SENDER)


FAST_PATHS = (
    _lone("mode", "(mode, count, magic,", "(0, count, magic,"),
    _lone("count", "(mode, count, magic,", "(mode, 1, magic,"),
    _lone("magic", "count, magic, version,", "count, MAGIC, version,"),
    _lone("version", "magic, version, frame.kind)", "magic, VERSION, frame.kind)"),
    _lone("kind", "version, frame.kind)", "version, 1)"),
    _lone("flags", "        or frame.flags\n"),
    _lone("view", "        or frame.view\n"),
    _lone("position", "        or frame.position\n"),
    _lone("origin", "        or frame.origin\n"),
    _lone("progress", "        or progress_length\n"),
    _lone("reserved", "        or zero\n"),
    _lone("reserved-too", "        or zero_too\n"),
    _lone("inline", "or length > INLINE_BYTES_MAX", "or False"),
    _lone("length", "        or len(data) != _LONE_SUBMIT.size + length\n"),
    _lone("short", " or len(data) < _LONE_SUBMIT.size"),
    _lone(
        "view-of-bytes",
        "not isinstance(data, bytes) or ",
        proof=f"{_PROPERTIES}test_submits.py::test_only_bytes_take_the_fast_path_because_the_body_must_be_bytes",
    ),
    _valid("first-sequence", "1 <= frame.first_sequence", "0 <= frame.first_sequence"),
    _valid("last-sequence", " <= SEQUENCE_MAX - count", " <= SEQUENCE_MAX"),
    _valid("first-time", "TIME_US_MIN <= frame.min_timestamp", "frame.min_timestamp"),
    _valid("last-time", " <= TIME_US_MAX", ""),
    _valid("crc", "google_crc32c.extend(0, frame.body) != frame.body_crc", "False"),
    _valid("plain", "check_plain(frame) is not None", "True"),
    _body("known-count", "plain_layout", "layout.records == count and ", ""),
    _body("known-length", "plain_layout", " and layout.end == len(body)", ""),
    _body("kept", "plain_layout", "        _checked.clear()", "        pass"),
    _body("first-offset", "check_plain", "first == 0 <= last", "0 <= last"),
    _body("last-offset", "check_plain", " <= layout.value_size", ""),
    _body("negative-offset", "check_plain", "first == 0 <= last <=", "first == 0 and last <="),
    _body("null-values", "check_plain", "layout.value_nulls and not", "False and not"),
    _body("null-keys", "check_plain", "(not layout.key_nulls or", "(True or"),
    _body("no-keys", "check_plain", "not layout.key_size and body[", "not layout.key_size or body["),
    _body("no-headers", "check_plain", "if not keys or body[layout.headers", "if not keys and body[layout.headers"),
    _body("one-time", "check_plain", "high = low", "high = frame.max_timestamp"),
    _state("kind", "frame.kind == _BATCH\n", "True\n"),
    _state("staged", "and not frame.flags & STAGED", ""),
    _state("first-of-a-topic", "and topic.first_offset >= 0", ""),
    _state("position", "and frame.position == position + 1", ""),
    _state("epoch", "and frame.epoch == producer.epoch", ""),
    _state("sequence", "and frame.first_sequence == producer.sequence + 1", ""),
    _state("void", "and frame.position not in aborted", ""),
    _state("progress", "if frame.progress:", "if True:"),
    _state("last-seen", "            producer.last_seen = tick_time\n", ""),
    _state("tick-time", ", self.next_offset, self.tick_time\n    return", ", self.next_offset, tick_time\n    return"),
    _state("offset-after-an-exit", "self.next_offset, self.tick_time\n    return", "offset, self.tick_time\n    return"),
    _state("records", "topic.records += count", "pass"),
    _state("bytes", "topic.bytes += frame.body_length", "pass"),
    _state("last-offset", "topic.last_offset = offset - 1", "pass"),
    _state("last-time", "if frame.max_timestamp > topic.last_time:", "if True:"),
    _state("dirty", "self.dirty, self.chain = True, frame.header_crc", "self.chain = frame.header_crc"),
    _state("chain", "self.dirty, self.chain = True, frame.header_crc", "self.dirty = True"),
    _state("state-before-an-error", "self.position, self.next_offset = position, offset\n        else", "pass\n        else"),
    _reader("rest", "self._rest or ", ""),
    _reader("parts", "self._count or ", ""),
    _reader("dropped", "self._drop_bytes or ", ""),
    _reader("after-large", " or self._after_large", ""),
    _reader("flags", "scratch[0] == LONG", "scratch[0] & LONG"),
    _reader("short", "scratch[0] == LONG\n        and", "True\n        and"),
    _reader("limits", "count <= self._lone_bytes_max", "True"),
    _reader("length", "count == _LONG_HEADER_BYTES + _unpack_length(scratch, 1)[0]", "True"),
    _reader("end", "    if not count:\n        raise ConnectionEnded\n", ""),
    _reader("received", "self._received_end = count", "pass"),
    Mutant("read-window", "3", "a lone message that fills the buffer is read as any other one", [Edit(FrameReader, "__init__", "min(window - 1, ", "min(window, ")], proof=_READER),
    Mutant("read-part-max", "3", "a lone message obeys the limit of a part", [Edit(FrameReader, "__init__", ", _LONG_HEADER_BYTES + part_max)", ", window)")], proof=_READER),
    Mutant("read-again", "3", "bytes that were received for a lone message are parsed once", [Edit(FrameReader, "_read", "        self._received_end = 0\n", "")], proof=_READER),
    Mutant("read-full", "3", "a full buffer is read again", [Edit(FrameReader, "_read", "end, end == self._window", "end, False")], proof=_READER),
    _sender("none", SendQueue, "send_first", "sent = 0", "sent = len(data)"),
    _sender("rest", SendQueue, "send_first", "if sent < len(data):", "if False:"),
    _sender("sent", SendQueue, "send_first", "self._sent_of_first, self.bytes = sent, ", "self.bytes = "),
    _sender("bytes", SendQueue, "send_first", "len(data) - sent", "len(data)"),
)
