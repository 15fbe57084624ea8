"""Runs the terminals of a page: real shells on pseudo-terminals, and their output. A page is Markdown. A block that starts with `sh
title="Terminal 1"` after its fence contains the input of that terminal, line by line; `^C` alone on a line is that key. The `text`
blocks after it contain the whole output that follows; `masked` says which values may differ. In a line, `...` stands for any
characters, and a line `...` for any lines. A command that returns must end with 0; the last one of a block may run until a `^C`.
If no `text` block follows, `not_compared` collects the output, so that a test can require that there is none.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

WAIT_S = 240.0  # for the output of a command; on a busy machine, Spark starts slowly
REPORT_WAIT_S = 60.0  # until a group settles
_FENCE = re.compile(r"^```(sh|text)(?: title=\"([^\"]+)\")?\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\r")
_PROMPT = re.compile(r"<<(\d+)>>")
_CTRL_C = "^C"
_ANY = "..."
# These commands change nothing. A group may settle after its answer, so the runner repeats a report until it matches the page.
_REPORTS = ("tutti members", "tutti queries", "tutti status", "tutti topics")
# Values of one run, of one machine or of one moment.
_MASKS = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "TIME"),
    (re.compile(r"[0-9a-f]{64}|[0-9a-f]{32}"), "HEX"),
    (re.compile(r"(\bpid\W+)\d+"), r"\1PID"),
    (re.compile(r"@[\w.-]+:\d+"), "@HOST:PID"),
    (re.compile(r"(?<=[\" ])/[^\" ]*(?=/data/)"), "DIRECTORY"),
    (re.compile(r"\b[\d.,]+ (?:us|ms|s)\b"), "DURATION"),
    (re.compile(r"\b[\d.,]+ a second\b"), "RATE"),
    (re.compile(r"\b[\d.,]+ [KMG]iB\b"), "SIZE"),
    # How many records share a frame depends on the moment of each send.
    (re.compile(r"\b(\d+)( frames?\b)|((?:position|written up to) )\d+"), r"\3FRAMES\2"),
    (re.compile(r"^(\w+ +\d+ +)\d+( +\d+ +\d+ +TIME)"), r"\1BYTES\2"),
    # Any member may coordinate the first view, and its age is its position in that view.
    (re.compile(r"^(\w+ +[\d.]+:\d+ +\w+ +\w+ +)(?:yes|no) +\d+"), r"\1COORDINATES AGE"),
    (re.compile(r" +"), " "),  # the width of a column follows its widest value
)


class Step(NamedTuple):
    """One block: where, whether it is typed or shown, and its lines."""

    terminal: str
    typed: bool
    lines: list[str]


def steps(page: Path) -> list[Step]:
    """Return the blocks of a page in order. Output belongs to the terminal of the last input, unless it names one."""
    found: list[Step] = []
    terminal = ""
    for kind, title, text in _FENCE.findall(page.read_text("utf-8")):
        terminal = title or terminal
        assert terminal, f"{page}: the first block names no terminal"
        found.append(Step(terminal, kind == "sh", text.splitlines()))
    return found


def masked(lines: Iterable[str]) -> list[str]:
    """Return the lines that are not empty, with a name in place of each value that may differ between runs."""
    found = []
    for line in lines:
        for value, name in _MASKS:
            line = value.sub(name, line)
        if line.strip():
            found.append(line.strip())
    return found


def pattern(lines: Iterable[str]) -> re.Pattern[str]:
    """Return the pattern of whole lines of masked output."""
    parts = []
    for line in masked(lines):
        text = ".*".join(re.escape(part) for part in line.split(_ANY))
        parts.append(r"(?:.*\n)*?" if line == _ANY else rf"{text}\n")
    return re.compile("".join(parts))


class Terminal:
    """A shell on a pseudo-terminal of its own."""

    def __init__(self, before: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> None:
        """Start it; `before` is put before its command."""
        self.shown = ""
        self._line = ""  # the last line that was typed
        self._compared = 0  # length of the part of `shown` that was compared with the page
        self._open = 0  # prompts that there are when the last line has come back
        self._interrupted = False
        self._fd, end = pty.openpty()
        self._shell = subprocess.Popen(
            [*before, "bash", "--noprofile", "--norc", "-i"],
            cwd=cwd,
            env={**environment, "PS1": "<<$?>>", "PS2": "", "TERM": "dumb", "COLUMNS": "120", "LINES": "50"},
            preexec_fn=partial(os.login_tty, end),  # noqa: PLW1509 - system calls alone; so ^C reaches what runs in it
        )
        os.close(end)
        self._wait(lambda: bool(_PROMPT.search(self.shown)), "the shell")
        self.type("stty -echo columns 120; bind 'set enable-bracketed-paste off'")
        self.back()
        self.shown, self._compared, self._open = "", 0, 0

    def type(self, line: str) -> None:
        """One line, or the key."""
        self._line = line
        self._interrupted = line == _CTRL_C
        if self._interrupted:
            os.write(self._fd, b"\x03")
        else:
            self._open = len(_PROMPT.findall(self.shown)) + 1
            os.write(self._fd, line.encode() + b"\n")

    def back(self) -> None:
        """Wait until the last command returns: with 0, or with any code if it was interrupted."""
        self._wait(self._returned, "the prompt")
        code = int(_PROMPT.findall(self.shown)[-1])
        assert code == 0 or self._interrupted, f"it ended with {code}: {self.shown[-3000:]}"

    def expect(self, lines: Sequence[str]) -> None:
        """Wait until the output matches the lines. A command that has returned must show these lines and no others."""
        wanted = pattern(lines)
        began = time.monotonic()
        while not self._matches(wanted):
            waited = time.monotonic() - began
            if self._returned() and self._line.startswith(_REPORTS) and waited < REPORT_WAIT_S:
                self._compared = len(self.shown)
                self.type(self._line)
                self.back()
            elif self._returned() or waited > WAIT_S:
                difference = "\n".join(difflib.ndiff(masked(lines), self.rest()))
                raise AssertionError(f"after {self._line!r}, the page (-) and the terminal (+) differ:\n{difference}")
            else:
                self._read(1.0)

    def _matches(self, wanted: re.Pattern[str]) -> bool:
        """True if the output matches. If the command still runs, the first lines of its output are enough."""
        ends = [len(self.shown)]
        if not self._returned():
            ends = [line.end() for line in re.finditer("\n", self.shown) if line.end() > self._compared]
        for end in ends:
            if wanted.fullmatch("".join(f"{line}\n" for line in self.rest(end))):
                self._compared = end
                return True
        return False

    def rest(self, end: int | None = None) -> list[str]:
        """Return the masked output that was not compared yet, up to the position `end` in all output."""
        return masked(_PROMPT.sub("", self.shown[self._compared : end]).splitlines())

    def skip(self) -> None:
        """Count all output as compared."""
        self._compared = len(self.shown)

    def _returned(self) -> bool:
        """True if the last command has returned."""
        return len(_PROMPT.findall(self.shown)) >= self._open

    def _wait(self, happened: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not happened():
            assert time.monotonic() < deadline, (
                f"waited {WAIT_S:.0f} s for {what}; not compared yet: {self.shown[self._compared :][-3000:]}"
            )
            self._read(1.0)

    def _read(self, wait_s: float) -> None:
        if not select.select([self._fd], [], [], wait_s)[0]:
            return
        try:
            came = os.read(self._fd, 65_536)
        except OSError as error:  # the shell has ended
            raise AssertionError(f"the shell ended: {self.shown[-3000:]}") from error
        self.shown += _COLOURS.sub("", came.decode("utf-8", "replace"))

    def close(self) -> None:
        """Hang up, and wait for the shell."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGHUP)
        os.close(self._fd)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._shell.wait(5)
        if self._shell.poll() is None:
            self._shell.kill()
            self._shell.wait()


class Terminals:
    """All terminals of a page."""

    def __init__(self, before: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> None:
        """None is open yet."""
        self._how = before, cwd, environment
        self.all: dict[str, Terminal] = {}
        self.not_compared: list[str] = []  # output of commands after which the page has no block

    def follow(self, page: Path) -> None:
        """Type the commands of a page, and check the output."""
        blocks = steps(page)
        for number, (name, typed, lines) in enumerate(blocks):
            terminal = self.all.get(name) or self.all.setdefault(name, Terminal(*self._how))
            if not typed:
                terminal.expect(lines)
                continue
            self.not_compared += terminal.rest()
            terminal.skip()
            following = next((step.lines[0] for step in blocks[number + 1 :] if step.typed and step.terminal == name), "")
            for line in lines[:-1]:
                terminal.type(line)
                terminal.back()
            terminal.type(lines[-1])
            if following != _CTRL_C:
                terminal.back()
        for terminal in self.all.values():
            self.not_compared += terminal.rest()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close all."""
        for terminal in self.all.values():
            terminal.close()
