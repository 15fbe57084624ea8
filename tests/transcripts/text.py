"""Actions, frames and answers as one readable line each."""

from __future__ import annotations

from tutti.data.client_protocol import (
    AbortedAnswer,
    Answer,
    Committed,
    Denied,
    Done,
    Duplicate,
    EpochFenced,
    EpochOpened,
    Expected,
    FencedAnswer,
    RefusedAnswer,
    TopicOpened,
)
from tutti.data.frames.bodies import (
    AbortBody,
    EpochBody,
    ForgetBody,
    OffsetsBody,
    RosterBody,
    TickBody,
    TopicBody,
    TrimBody,
    TxnBody,
    ViewBody,
    decode_body,
)
from tutti.data.frames.frame import HEADER_SIZE, Frame, Kind, decode_header
from tutti.data.view_id import view_text
from tutti_gateway.core.protocol.actions import (
    Action,
    Deliver,
    Dropped,
    Halt,
    LogReplaced,
    Peers,
    Persist,
    ReadLog,
    ReadSnapshot,
    Reply,
    Send,
    SetTimer,
    Stopped,
    Suspect,
    ViewInstalled,
)
from tutti_gateway.core.protocol.messages import (
    Ask,
    AskEpoch,
    AskForget,
    Asking,
    AskOffsets,
    AskRoster,
    Confirm,
    Deny,
    Echo,
    Fetch,
    Fetched,
    FetchedSnapshot,
    FetchSnapshot,
    Forward,
    Heartbeat,
    Install,
    Installed,
    Message,
    Missing,
    No,
    Order,
    Probe,
    Propose,
    Refuse,
    Reject,
    Repair,
    Repairing,
    Resend,
    State,
    Vote,
)


def frame_text(frame: Frame) -> str:
    """`5 BATCH p1/1 1+10`: position, kind, producer/epoch, first sequence + count; a position of 0 is left out."""
    text = f"{frame.position} " if frame.position else ""
    text += Kind(frame.kind).name
    return text + _rest(frame)


def _rest(frame: Frame) -> str:
    who = f" p{frame.producer}/{frame.epoch}"
    match Kind(frame.kind):
        case Kind.BATCH:
            progress = f" progress={frame.progress.decode()}" if frame.progress else ""
            return f"{who} {frame.first_sequence}+{frame.count}{' staged' * frame.staged}{progress}"
        case Kind.TXN:
            txn = decode_body(TxnBody, frame.body)
            return f"{who} {frame.first_sequence}+{frame.count} of {_numbers(txn.staged)}"
        case Kind.VIEW:
            return f" {view_text(frame.view)} members={_numbers(decode_body(ViewBody, frame.body).members)}"
        case Kind.ROSTER:
            body = decode_body(RosterBody, frame.body)
            forced = " forced" if body.forced else ""
            return " " + ",".join(f"{voter.number}={voter.name}" for voter in body.voters) + forced
        case Kind.EPOCH:
            epoch = decode_body(EpochBody, frame.body)
            return f"{who} {epoch.name} instance={_instance(epoch.instance)} after={epoch.sequence}{_progress(epoch.progress)}"
        case Kind.TOPIC:
            return f" t{frame.topic} {decode_body(TopicBody, frame.body).name}"
        case Kind.FORGET:
            forget = decode_body(ForgetBody, frame.body)
            return f" p{',p'.join(map(str, forget.producers))} floor={forget.floor}"
        case Kind.ABORT:
            abort = decode_body(AbortBody, frame.body)
            entry = abort.entry
            back = f"p{frame.producer}/{entry.epoch} after={entry.sequence}{_progress(entry.progress)}"
            return f"{who} from={abort.position} back to {back} ({abort.reason})"
        case Kind.TICK:
            tick = decode_body(TickBody, frame.body)
            return f" number={tick.number} time={tick.time_us // 1000 % 1_000_000}ms"
        case Kind.TRIM:
            trim = decode_body(TrimBody, frame.body)
            return f" begins at {trim.position}, offset {trim.offset}"
        case Kind.OFFSETS:
            return " " + ",".join(f"{name}={offset}" for name, offset in decode_body(OffsetsBody, frame.body).readers.items())


def _instance(instance: bytes) -> str:
    return instance.rstrip(b"-").decode()


def _progress(progress: bytes) -> str:
    return f" progress={progress.decode()}" if progress else ""


def _numbers(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))


def frames_text(frames: tuple[Frame, ...]) -> str:
    """Frames, separated by semicolons."""
    return "; ".join(map(frame_text, frames))


def ask_text(ask: Ask) -> str:
    """What is asked of the coordinator."""
    if isinstance(ask, AskEpoch):
        return f"epoch {ask.name}/{ask.epoch} instance={_instance(ask.instance)}"
    if isinstance(ask, AskOffsets):
        return f"offset {ask.reader}={ask.offset} frontier={ask.frontier}"
    if isinstance(ask, AskRoster):
        return f"roster {ask.change} {ask.name}"
    return f"forget p{',p'.join(map(str, ask.producers))}" if isinstance(ask, AskForget) else f"topic {ask.name}"


def message_kind(message: Message) -> str:
    """The word that its text begins with."""
    return {Vote: "YES", Asking: "ASK"}.get(type(message)) or type(message).__name__.upper()


def message_text(message: Message) -> str:
    """A message between members, without its view."""
    match message:
        case Forward(_, frames):
            return f"FORWARD {frames_text(frames)}"
        case Asking(_, ask):
            return f"ASK {ask_text(ask)}"
        case Order(_, frames):
            return f"ORDER {frames_text(frames)}"
        case Echo(_, headers):
            places = [decode_header(headers, at) for at in range(0, len(headers), HEADER_SIZE)]
            return "ECHO " + "; ".join(map(frame_text, places))
        case Resend(_, producer, epoch, sequence):
            return f"RESEND p{producer}/{epoch} from={sequence}"
        case Refuse(_, producer, epoch, first, code, _, retry):
            return f"REFUSE p{producer}/{epoch} {first} {code}{' retry' if retry else ''}"
        case Deny(_, ask, code, _, retry):
            return f"DENY {ask_text(ask)}: {code}{' retry' if retry else ''}"
        case Vote(_, up_to, low):
            return f"YES {up_to}{f' low ({low})' if low else ''}"
        case No(_, position, reason):
            return f"NO {position} ({reason})"
        case Confirm(_, up_to):
            return f"CONFIRM {up_to}"
        case Missing(_, ranges):
            return f"MISSING {_ranges(ranges)}"
        case Repairing(_, ranges):
            return f"REPAIRING {_ranges(ranges)}"
        case Repair(_, frames):
            return f"REPAIR {frames_text(frames)}"
        case _:
            return view_message_text(message)


def view_message_text(message: Message) -> str:
    """A message about views, which names its view."""
    match message:
        case Propose(view, members):
            return f"PROPOSE {view_text(view)} members={_numbers(members)}"
        case State() as state:
            damage = f" damaged={state.damage.first}-{state.damage.last}" if state.damage else ""
            return f"STATE {view_text(state.view)} accepted={view_text(state.accepted)} end={state.end}{damage}"
        case Reject(view, promised, reason):
            return f"REJECT {view_text(view)} promised={view_text(promised)} ({reason})"
        case Install() as install:
            return f"INSTALL {view_text(install.view)} members={_numbers(install.members)} end={install.end}"
        case Installed(view):
            return f"INSTALLED {view_text(view)}"
        case Fetch(view, first, last):
            return f"FETCH {first}-{'' if last >= 1 << 32 else last} ({view_text(view) if view else 'decided ones'})"
        case Fetched() as fetched:
            return f"FETCHED {frames_text(fetched.frames) or 'nothing'}"
        case FetchSnapshot(_, position, at):
            return f"FETCHSNAPSHOT {position} from byte {at}"
        case FetchedSnapshot() as piece:
            return f"FETCHEDSNAPSHOT {piece.position}"
        case Probe():
            return "PROBE"
        case Heartbeat() as beat:
            views = f"view={view_text(beat.view)} promised={view_text(beat.promised)} accepted={view_text(beat.accepted)}"
            says = " misses" * beat.misses + " ready" * beat.ready + " leaving" * beat.leaving
            claim = f" coordinates={view_text(beat.claim)}" if beat.claim else ""
            return f"HEARTBEAT {views} end={beat.end} frontier={beat.frontier} hears={_numbers(beat.hears)}{claim}{says}"
    return type(message).__name__


def _ranges(ranges: tuple[tuple[int, int], ...]) -> str:
    return ",".join(f"{first}-{last}" for first, last in ranges)


def answer_text(answer: Answer) -> str:
    """An answer to a client."""
    match answer:
        case Committed(producer, epoch, first, count, offset):
            return f"Committed p{producer}/{epoch} {first}+{count} @{offset}"
        case Duplicate(producer, epoch, first, count):
            return f"Duplicate p{producer}/{epoch} {first}+{count}"
        case AbortedAnswer(producer, epoch, first, count, reason):
            return f"Aborted p{producer}/{epoch} {first}+{count} ({reason})"
        case FencedAnswer(producer, epoch, first):
            return f"Fenced p{producer} by epoch {epoch} at {first}"
        case Expected(producer, epoch, sequence):
            return f"Expected p{producer}/{epoch} {sequence}"
        case RefusedAnswer(producer, epoch, first, code, reason, retry):
            return f"Refused p{producer}/{epoch} {first} {code}{' retry' if retry else ''}: {reason}"
        case EpochOpened(request, producer, epoch, sequence, progress):
            return f"#{request} EpochOpened p{producer}/{epoch} after={sequence}{_progress(progress)}"
        case EpochFenced(request, epoch):
            return f"#{request} EpochFenced by epoch {epoch}"
        case TopicOpened(request, topic):
            return f"#{request} TopicOpened t{topic}"
        case Done(request):
            return f"#{request} Done"
        case Denied(request, code, reason, retry):
            return f"#{request} Denied {code}{' retry' if retry else ''}: {reason}"


def action_text(action: Action, names: dict[int, str], mono_us: int) -> str:
    """An action, `names` being those of the members by number."""
    match action:
        case Persist(token, frames, scalars, cut):
            parts = [f"cut behind {cut}"] if cut is not None else []
            parts += ["snapshot"] if action.snapshot else []
            parts += [frames_text(frames)] if frames else []
            if scalars is not None:
                views = {"promised": scalars.promised, "accepted": scalars.accepted, "coordinated": scalars.coordinated}
                parts.append(" ".join(f"{name}={view_text(view)}" for name, view in views.items()))
            return f"persist ({token}) {' '.join(parts)}"
        case ReadSnapshot(token, position):
            return f"read snapshot ({token}) {position or ''}"
        case LogReplaced(position, next_offset):
            return f"relearned up to {position} (next offset {next_offset})"
        case ReadLog(token, first, last):
            return f"read ({token}) {first}-{last}"
        case Send(to, message):
            return f"send {names[to]} {message_text(message)}"
        case Deliver(frames, offsets, aborted, next_offset):
            run = [
                f"{frame.position}{' void' if frame.position in aborted else f'@{offset}' if frame.count else ''}"
                for frame, offset in zip(frames, offsets, strict=True)
            ]
            return f"deliver {' '.join(run)} (next offset {next_offset})"
        case Reply(session, answers):
            return f"reply s{session} " + "; ".join(map(answer_text, answers))
        case ViewInstalled(view, members, coordinator, primary):
            state = "primary" if primary else "not yet primary"
            return f"view {view_text(view)} members={_numbers(members)} coordinator={coordinator} {state}"
        case Suspect(member, reason):
            return f"suspect {names[member]}: {reason}"
        case Peers(peers):
            return f"peers {','.join(f'{number}={name}' for number, name, _ in peers)}"
        case Dropped(kind, sender, reason):
            return f"does not take {kind} of {names.get(sender, sender)}: {reason}"
        case SetTimer(at_us):
            return f"timer in {(at_us - mono_us) / 1000:g} ms"
        case Halt(reason):
            return f"halt: {reason}"
        case Stopped():
            return "stopped"
        case _:
            return type(action).__name__
