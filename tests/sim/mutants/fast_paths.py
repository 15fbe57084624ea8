"""Mutants of the fast paths, one for each check. Property tests compare each fast path with the general path beside it."""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.mutants.mutant import Mutant
from tests.sim.mutants.patch import Edit
from tutti.data import client_protocol
from tutti.data.frames import plain_body
from tutti.data.log_state import LogState
from tutti.delivery import window as client_window
from tutti.io.zmtp_connection import ZmtpConnection
from tutti.zmtp.frame_reader import FrameReader
from tutti.zmtp.send_queue import SendQueue
from tutti_gateway.core import frame_runs
from tutti_gateway.core.order.forward_table import ForwardTable
from tutti_gateway.core.order.layer import Ordering
from tutti_gateway.core.order.received_table import ReceivedTable
from tutti_gateway.core.order.receiver import Receiver
from tutti_gateway.core.order.sequencer import Sequencer
from tutti_gateway.core.pending_window import Window
from tutti_gateway.core.repair.layer import Repair
from tutti_gateway.log.write.indexer import Indexer
from tutti_gateway.log.write.segment import Segment
from tutti_gateway.node.clients import batch_validation
from tutti_gateway.node.clients.request_handler import RequestHandler

_PROPERTIES = "tests/property/fast_paths/"
_SUBMITS = f"{_PROPERTIES}test_submits.py::test_one_plain_batch_is_accepted_exactly_if_the_general_path_accepts_it"
_BODIES = f"{_PROPERTIES}test_plain_bodies.py::test_an_answer_does_not_depend_on_earlier_bodies_and_equals_that_of_a_simple_check"
_READER = f"{_PROPERTIES}test_zmtp.py::test_a_reader_brings_the_same_with_and_without_the_fast_path_for_a_lone_message"
_CLIENT_READS = f"{_PROPERTIES}test_client.py::test_a_connection_brings_the_same_with_and_without_the_fast_path_for_a_lone_message"
_CLIENT_ALIVE = f"{_PROPERTIES}test_client.py::test_a_message_that_arrives_alone_takes_the_fast_path_and_is_a_sign_of_life"
_CLIENT_SENDS = f"{_PROPERTIES}test_client.py::test_a_connection_sends_the_same_with_and_without_the_fast_path_for_a_small_message"
_RECEIPTS = f"{_PROPERTIES}test_client.py::test_receipts_are_decoded_as_their_length_and_number_say"
_PROGRESS = "tests/unit/client/delivery/test_window.py::test_progress_is_that_of_all_that_has_committed"
_SENDER = f"{_PROPERTIES}test_zmtp.py::test_a_message_sent_at_once_leaves_like_one_that_is_queued_and_sent"
_RECEIVER = f"{_PROPERTIES}test_receiver.py::test_frames_in_sequence_are_appended_as_if_each_had_been_buffered"
_PROGRESS = f"{_PROPERTIES}test_receiver.py::test_the_crc_of_a_frame_covers_its_progress"
_FRAMES = f"{_PROPERTIES}test_receiver.py::test_frames_above_the_limit_of_the_window_are_buffered"
_ORDERING = f"{_PROPERTIES}test_ordering.py::test_batches_of_many_clients_are_ordered_and_answered_as_the_tables_say_for_each"
_TABLE = f"{_PROPERTIES}test_ordering.py::test_the_received_table_accepts_a_batch_exactly_if_it_follows"
_RUNS = f"{_PROPERTIES}test_frames.py::test_runs_are_as_long_as_the_limits_allow"
_ROWS = f"{_PROPERTIES}test_frames.py::test_index_rows_of_many_frames_equal_those_of_few"
_WINDOW = "tests/unit/core/test_pending_window.py::test_a_frame_out_of_order_or_of_another_chain_is_refused"
_WRITER = "tests/unit/log/write/test_writer.py::test_a_frame_that_does_not_continue_the_log_is_never_written"
_OFFSETS = "tests/unit/log/write/test_writer.py::test_an_offset_other_than_that_of_the_protocol_is_found"
_GATE = f"{_PROPERTIES}test_request_handler.py::test_messages_have_the_same_events_answers_and_counts_without_the_fast_path"
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


def _lone_head(name: str, start: int, end: int) -> Mutant:
    """Leave out some bytes of the head, which has one comparison for all its fields."""
    rest = f"data[:{start}] + data[{end}:_LONE_FIELDS_AT] != _LONE_HEAD[:{start}] + _LONE_HEAD[{end}:]"
    return _lone(name, "data[:_LONE_FIELDS_AT] != _LONE_HEAD", rest)


def _state(name: str, old: str, new: str = "", function: str = "apply_run") -> Mutant:
    rule = "frames applied as a run give the state and offsets of frames applied one by one"
    return Mutant(f"run-{name}", "3", rule, [Edit(LogState, function, old, new)], proof=_STATE)


def _reader(name: str, old: str, new: str = "") -> Mutant:
    rule = "a reader brings a message that arrives alone as it brings any other one"
    return Mutant(f"read-{name}", "3", rule, [Edit(FrameReader, "read_lone", old, new)], proof=_READER)


def _sender(name: str, owner: type[SendQueue], function: str, old: str, new: str) -> Mutant:
    rule = "a message that is sent at once leaves as one that is queued and sent"
    return Mutant(f"send-{name}", "3", rule, [Edit(owner, function, old, new)], proof=_SENDER)


def _client(name: str, function: str, old: str, new: str = "", proof: str = _CLIENT_READS) -> Mutant:
    rule = "a client's connection brings and sends a lone message as any other one"
    return Mutant(f"client-{name}", "3", rule, [Edit(ZmtpConnection, function, old, new)], proof=proof)


def _receiver(name: str, old: str, new: str = "", function: str = "_append_in_sequence", proof: str = _RECEIVER) -> Mutant:
    rule = "frames in sequence are appended as if each had been buffered first"
    return Mutant(f"sequence-{name}", "4.3", rule, [Edit(Receiver, function, old, new)], proof=proof)


def _submit(name: str, old: str, new: str = "") -> Mutant:
    rule = "batches of several clients are answered and forwarded as the table of decisions says for each"
    return Mutant(f"submit-{name}", "4.3", rule, [Edit(ForwardTable, "submit", old, new)], proof=_ORDERING)


def _order(name: str, old: str, new: str = "", function: str = "on_forward") -> Mutant:
    rule = "forwarded batches are ordered as the table of verdicts says for each"
    return Mutant(f"order-{name}", "4.3", rule, [Edit(Sequencer, function, old, new)], proof=_ORDERING)


def _decided(name: str, old: str, new: str = "") -> Mutant:
    rule = "decided frames are answered one by one"
    return Mutant(f"decided-{name}", "4.3", rule, [Edit(Ordering, "decided", old, new)], proof=_ORDERING)


def _table(name: str, old: str, new: str = "") -> Mutant:
    rule = "the received-table accepts a batch that follows the log, and no other"
    return Mutant(f"table-{name}", "4.3", rule, [Edit(ReceivedTable, "apply", old, new)], proof=_TABLE)


def _seam(name: str, changes: Sequence[Edit], proof: str) -> Mutant:
    return Mutant(f"seam-{name}", "3", "frames continue the end of the log where they meet it", changes, proof=proof)


def _index(name: str, old: str, new: str, proof: str = "") -> Mutant:
    rule = "rows of many frames are those of few"
    return Mutant(f"rows-{name}", "6", rule, [Edit(Indexer, "_index", old, new)], proof=proof or _ROWS)


def _gate(name: str, old: str, new: str, function: str = "receive") -> Mutant:
    rule = "a batch on the fast path is authorized, counted and limited as any other one"
    return Mutant(f"gate-{name}", "3", rule, [Edit(RequestHandler, function, old, new)], proof=_GATE)


FAST_PATHS = (
    _lone_head("form", 0, 1),
    _lone_head("mode", 1, 2),
    _lone_head("count", 2, 4),
    _lone_head("magic", 8, 12),
    _lone_head("version", 12, 13),
    _lone_head("kind", 13, 14),
    _lone_head("flags", 14, 16),
    _lone_head("view", 16, 24),
    _lone_head("position", 24, 32),
    _lone("origin", "frame.origin or "),
    _lone("progress", "or progress_length "),
    _lone("reserved", "or zero "),
    _lone("reserved-too", "or zero_too "),
    _lone("inline", "or length > INLINE_BYTES_MAX", "or False"),
    _lone("length", " or len(data) != _LONE_BODY_AT + length"),
    _lone("short", " or len(data) < _LONE_BODY_AT"),
    _lone(
        "view-of-bytes",
        "data.__class__ is not bytes or ",
        proof=f"{_PROPERTIES}test_submits.py::test_only_bytes_take_the_fast_path_because_the_body_must_be_bytes",
    ),
    _valid("first-sequence", "1 <= frame.first_sequence", "0 <= frame.first_sequence"),
    _valid("last-sequence", " <= SEQUENCE_MAX - count", " <= SEQUENCE_MAX"),
    _valid("first-time", "TIME_US_MIN <= frame.min_timestamp", "frame.min_timestamp"),
    _valid("last-time", " <= TIME_US_MAX", ""),
    _valid("crc", "google_crc32c.value(frame.body) != frame.body_crc", "False"),
    _valid("plain", "check_plain(frame) is not None", "True"),
    _body("known-count", "plain_layout", "layout.records == count and ", ""),
    _body("known-length", "plain_layout", " and layout.end == len(body)", ""),
    _body("kept", "plain_layout", "        _checked.clear()", "        pass"),
    _body("first-offset", "check_plain", "first == 0 <= last", "0 <= last"),
    _body("last-offset", "check_plain", " <= layout.value_size", ""),
    _body("negative-offset", "check_plain", "first == 0 <= last <=", "first == 0 and last <="),
    _body("null-values", "check_plain", "layout.value_nulls and not", "False and not"),
    _body("null-keys", "check_plain", "(not layout.key_nulls or", "(True or"),
    _body("no-keys", "check_plain", "not layout.key_size and bytes", "not layout.key_size or bytes"),
    _body("no-headers", "check_plain", "if not keys or bytes(", "if not keys and bytes("),
    _body("one-time", "check_plain", "high = low", "high = frame.max_timestamp"),
    _gate("form", " and session.form != SUBMIT_UNORDERED", ""),
    _gate("parts", "len(parts) == 1 and session.form", "parts and session.form"),
    _gate("valid", " and lone_valid(lone)", ""),
    _gate("authorized", " and (self._authorizer is None or self._known(session, lone))", ""),
    _gate("bytes", f"counters.bytes += size\n{' ' * 16}counters.frames += 1", "counters.frames += 1"),
    _gate("frames", "counters.frames += 1", "pass"),
    _gate("records", "counters.records += lone.count", "pass"),
    _gate("session", "sessions.append(session.number)", "sessions.append(1)"),
    _gate("producer", "frame.producer in session.producers and ", "", "_known"),
    _gate("topic", " and frame.topic in session.topics", "", "_known"),
    _gate("quota", " and not self._quotas.applies_to(session.access)", "", "_known"),
    _state("kind", "frame.kind == _BATCH\n", "True\n"),
    _state("staged", "and not frame.flags & STAGED", ""),
    _state("first-of-a-topic", "and topic.first_offset >= 0", ""),
    _state("position", "and frame.position == position + 1", ""),
    _state("epoch", "and frame.epoch == producer.epoch", ""),
    _state("sequence", "and frame.first_sequence == producer.sequence + 1", ""),
    _state("void", "and not (aborted and frame.position in aborted)", ""),
    _state("progress", "if frame.progress:", "if True:"),
    _state("last-seen", "            producer.last_seen = tick_time\n", ""),
    _state("tick-time", "self.next_offset, self.tick_time\n    if", "self.next_offset, tick_time\n    if"),
    _state("offset-after-an-exit", "self.next_offset, self.tick_time\n    if", "offset, self.tick_time\n    if"),
    _state("records", "topic.records += count", "pass"),
    _state("bytes", "topic.bytes += frame.body_length", "pass"),
    _state("last-offset", "topic.last_offset = offset - 1", "pass"),
    _state("last-time", "if frame.max_timestamp > topic.last_time:", "if True:"),
    _state("dirty", ", True", ", self.dirty", "_move_to"),
    _state("chain", "batch.header_crc", "self.chain", "_move_to"),
    _state("state-before-an-exit", "self._move_to(last, offset)\n            last = None", "last = None"),
    _state("state-after-an-exit", "            last = None\n        offsets", "        offsets"),
    _state("state-at-the-end", "    self._move_to(last, offset)\n    return", "    pass\n    return"),
    _reader("rest", "self._rest or ", ""),
    _reader("parts", "self._count or ", ""),
    _reader("dropped", "self._drop_bytes or ", ""),
    _reader("after-large", " or self._after_large", ""),
    _reader("flags", "flags & ~LONG == 0 and ", ""),
    _reader("limits", "length <= self._lone_bytes_max and ", ""),
    _reader("length", " and count == start + length", ""),
    _reader("end", "    if not count:\n        raise ConnectionEnded\n", ""),
    _reader("received", "self._received_end = count", "pass"),
    Mutant(
        "read-window",
        "3",
        "a lone message that fills the buffer is read as any other one",
        [Edit(FrameReader, "__init__", "min(window - 1 - ", "min(window - ")],
        proof=_READER,
    ),
    Mutant(
        "read-part-max",
        "3",
        "a lone message obeys the limit of a part",
        [Edit(FrameReader, "__init__", ", part_max)", ", window)")],
        proof=_READER,
    ),
    Mutant(
        "read-full",
        "3",
        "a full buffer is read again",
        [Edit(FrameReader, "_read", "end, end == self._window", "end, False")],
        proof=_READER,
    ),
    _sender("none", SendQueue, "send_first", "sent = 0", "sent = len(data)"),
    _sender("rest", SendQueue, "send_first", "if sent < len(data):", "if False:"),
    _sender("sent", SendQueue, "send_first", "self._sent_of_first, self.bytes = sent, ", "self.bytes = "),
    _sender("bytes", SendQueue, "send_first", "len(data) - sent", "len(data)"),
    _client("encrypted", "handle", "and self._opening is None "),
    _client("received", "handle", "self._received or self.has_events", "self.has_events"),
    _client("events", "handle", "self._received or self.has_events", "self._received"),
    _client("alive", "handle", "self._unanswered = 0", "pass", _CLIENT_ALIVE),
    _client("ready", "handle", "self.is_ready = False", "pass", _CLIENT_ALIVE),
    _client("queue", "send", "if queued:", "if False:", _CLIENT_SENDS),
    _client("queue-limit", "send", "return False", "pass", _CLIENT_SENDS),
    _client("parts", "send", "len(parts) == 1 and ", "", _CLIENT_SENDS),
    _client("watch", "send", "self._watch(_READ | _WRITE)", "pass", _CLIENT_SENDS),
    _client("error", "send", "self._on_send_error(error)", "pass", _CLIENT_SENDS),
    Mutant(
        "receipt-count",
        "3",
        "a message of one receipt states one row",
        [Edit(client_protocol, "decode_receipts", " and data[4 : _RECEIPTS.size] == _ONE", "")],
        proof=_RECEIPTS,
    ),
    Mutant(
        "receipt-size",
        "3",
        "a message of one receipt has the length of one row",
        [Edit(client_protocol, "decode_receipts", "len(data) == _LONE_RECEIPT.size and ", "")],
        proof=_RECEIPTS,
    ),
    Mutant(
        "window-alone",
        "3",
        "a receipt ends the wait for one batch, not for those beside it",
        [Edit(client_window.Window, "commit", "if len(unanswered) == 1:", "if True:")],
        proof=_PROGRESS,
    ),
    _receiver("none-buffered", "if not self._buffered:", "if True:", "_accept"),
    _receiver("position", "frame.position != end + 1", "False"),
    _receiver("view", "or frame.view != view"),
    _receiver("bytes", "or free_bytes <= 0"),
    _receiver("frames", "or appended >= free_frames", proof=_FRAMES),
    _receiver("payload", "!= frame.body_crc", "is None"),
    _receiver("payload-progress", " and not frame.progress", "", proof=_PROGRESS),
    _receiver("chain", "or extend(chain, frame.header[:CRC_AT]) != frame.header_crc"),
    _receiver("table", "            apply(frame)\n"),
    _receiver("size", "free_bytes -= frame.body_length + FRAME_OVERHEAD_BYTES", "pass"),
    _receiver("invalid", "        pass  #", "        raise  #"),
    _receiver("gaps", "self.gaps.remove(window.end + 1, end)", "pass"),
    _receiver("highest", "self.highest = max(self.highest, end)", "self.highest = end"),
    _submit("lookup-producer", "line = producers.get(number)", "line = line or producers.get(number)"),
    _submit("lookup-epoch", " or frame.epoch != queue.epoch", ""),
    _submit("closed", "or line.closed"),
    _submit("epoch", "or frame.epoch != line.epoch"),
    _submit("duplicate", "or frame.first_sequence + frame.count - 1 <= line.sequence", ""),
    _submit("topic", "or frame.topic not in topics", ""),
    _submit("bytes", "or size >= bytes_max", ""),
    _submit("frames", "or count >= frames_max", ""),
    _submit("count-in-an-answer", "self.count, self.bytes = count, size\n            self._reject", "self._reject"),
    _submit("session", "queue.session = session", "pass"),
    _submit("sent", "queue.sent_us = now_us", "pass"),
    _submit("twice", "elif not queue.add(frame):\n            continue", "elif not queue.add(frame):\n            pass"),
    _submit("size", "size += frame.body_length + FRAME_OVERHEAD_BYTES", "pass"),
    _order("lookup", "frame.producer != number:", "line is None:"),
    _order("awaited", "or awaited"),
    _order("state", "or line.state is not LineState.OPEN", ""),
    _order("epoch", "or frame.epoch != line.epoch", ""),
    _order("sequence", "or frame.first_sequence != line.sequence + 1", ""),
    _order("bytes", "or free_bytes <= 0", ""),
    _order("frames", "or len(ordered) >= free_frames", ""),
    _order("transaction", "if transactional and not", "if False and not"),
    _order("staged", "frame.kind != _BATCH or frame.flags & STAGED", "frame.kind != _BATCH"),
    _order("txn", "frame.kind != _BATCH or frame.flags & STAGED", "frame.flags & STAGED"),
    _order("line", "lines[number] = line", "pass"),
    _order("chain", "chain = frame.header_crc", "pass"),
    _order("size", "free_bytes -= frame.body_length + FRAME_OVERHEAD_BYTES", "pass"),
    _order("dirty", "received.dirty = received.dirty or any(not frame.staged for frame in ordered)", "received.dirty = True"),
    _order("not-dirty", "received.dirty = received.dirty or any(not frame.staged for frame in ordered)", "pass"),
    _order("waiting-epochs", "self._epochs or ", "", "waiting"),
    _order("waiting-batches", " or self._to_resend", "", "waiting"),
    _decided("lookup", "if frame.producer != number:", "if line is None:"),
    _decided("staged", "if frame.kind != _BATCH or frame.flags & STAGED:", "if frame.kind != _BATCH:"),
    _decided("empty-queue", "queue.frames and ", ""),
    _decided("void", " and frame.position not in void", ""),
    _decided("waiting", "if waiting:", "if False:"),
    _decided("idle", "self.housekeeping.seen_us[number] = now_us", "pass"),
    _decided("line", "del lines[number]", "pass"),
    _decided("undecided", "if not line.undecided:", "if True:"),
    _table("forgotten", "not self.forgotten and ", ""),
    _table("closed", "line.state is LineState.CLOSED\n        or ", ""),
    _table("epoch", "or line.epoch != frame.epoch", ""),
    _table("sequence", "or line.sequence + 1 != frame.first_sequence", ""),
    _table("count", "or not frame.count", ""),
    _table("topic", "or not 0 < frame.topic < self.next_topic", ""),
    _table("opening", "    if line.state is not LineState.OPEN:\n        line.on(LineInput.BATCH)\n", ""),
    _table("staged", "if frame.kind != _BATCH or frame.flags & STAGED:", "if False:"),
    _seam("window-position", [Edit(Window, "extend", "frame.position != end or ", "")], _WINDOW),
    _seam("window-chain", [Edit(Window, "extend", "(frame is frames[0] and not chained(frame, self.chain))", "False")], _WINDOW),
    _seam("segment-position", [Edit(Segment, "fitting", "frame.position != position + 1 or ", "")], _WRITER),
    _seam("segment-chain", [Edit(Segment, "fitting", " or not chained", "")], _WRITER),
    _index("newest-void", " and frame.position not in aborted", ""),
    _index("newest-staged", " and not frame.flags & STAGED", ""),
    _index("newest-kind", "frame.kind in SEQUENCED and", "True and"),
    _index("ticks", "if frame.kind == _TICK", "if False"),
    _index("offsets", "if found != tuple(offsets):", "if False:", _OFFSETS),
    Mutant(
        "split-frames",
        "4.3",
        "a run has no more frames than a message may have",
        [Edit(frame_runs, "split_runs", "if len(frames) <= limits.FRAMES_A_MESSAGE_MAX:", "if True:")],
        proof=_RUNS,
    ),
    Mutant(
        "split-bytes",
        "4.3",
        "a run has no more bytes than a message may have",
        [Edit(frame_runs, "split_runs", "size <= bytes_max", "True")],
        proof=_RUNS,
    ),
    Mutant(
        "repair-waits",
        "4.2",
        "the wait for a frame ends when the frame has arrived",
        [Edit(Repair, "end_of_step", " and self.requester.deadline_us is None", "")],
        proof=_RECEIVER,
    ),
    Mutant(
        "repair-gaps",
        "4.2",
        "a wait begins when a frame is missing",
        [Edit(Repair, "end_of_step", "not self._receiver.gaps and ", "")],
        proof=_RECEIVER,
    ),
)
