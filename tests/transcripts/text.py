"""Actions, frames and answers as one readable line each."""

from __future__ import annotations

from gateway.core.actions import Action, Deliver, Halt, Persist, Reply, Send, SetTimer, Stopped, Suspect, ViewInstalled
from gateway.core.messages import (
    Ask,
    AskEpoch,
    AskForget,
    Asking,
    AskOffsets,
    Confirm,
    Deny,
    Echo,
    Forward,
    Message,
    No,
    Order,
    Refuse,
    Resend,
    Vote,
)
from gateway.data.bodies import (
    AbortBody,
    EpochBody,
    ForgetBody,
    OffsetsBody,
    RosterBody,
    TickBody,
    TopicBody,
    ViewBody,
    decode_body,
)
from gateway.data.frame import HEADER_SIZE, Frame, Kind, decode_header
from gateway.data.names import view_text
from gateway.data.wire import (
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
            return f"{who} {frame.first_sequence}+{frame.count}{progress}"
        case Kind.VIEW:
            return f" {view_text(frame.view)} members={_numbers(decode_body(ViewBody, frame.body).members)}"
        case Kind.ROSTER:
            return " " + ",".join(f"{voter.number}={voter.name}" for voter in decode_body(RosterBody, frame.body).voters)
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
    return f"forget p{',p'.join(map(str, ask.producers))}" if isinstance(ask, AskForget) else f"topic {ask.name}"


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
        case Persist(token, frames, scalars):
            parts = [frames_text(frames)] if frames else []
            if scalars is not None:
                views = {"promised": scalars.promised, "accepted": scalars.accepted, "coordinated": scalars.coordinated}
                parts.append(" ".join(f"{name}={view_text(view)}" for name, view in views.items()))
            return f"persist ({token}) {' '.join(parts)}"
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
        case SetTimer(at_us):
            return f"timer in {(at_us - mono_us) / 1000:g} ms"
        case Halt(reason):
            return f"halt: {reason}"
        case Stopped():
            return "stopped"
