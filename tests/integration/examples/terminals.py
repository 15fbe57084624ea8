"""Runs the terminals of a page: real shells on pseudo-terminals, and their output. A page is Markdown. A block that starts with `sh
title="Terminal 1"` after its fence contains the input of that terminal, line by line; `^C` alone on a line is that key. The `text`
blocks after it contain lines that must appear there, in this order; `...` matches anything, and other lines may come between. A
command that returns must end with 0; the last one of a block may run until a `^C`.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

WAIT_S = 240.0  # for what a line shows: Spark's start is among it, on a machine that does other things, too
_FENCE = re.compile(r"^```(sh|text)(?: title=\"([^\"]+)\")?\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\r")
_PROMPT = re.compile(r"<<(\d+)>>")
_CTRL_C = "^C"


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


class Terminal:
    """A shell on a pseudo-terminal of its own."""

    def __init__(self, before: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> None:
        """Start it; `before` is put before its command."""
        self.shown = ""
        self._seen = 0  # of `shown`: up to there it was expected
        self._open = 0  # prompts that there are when the last line has come back
        self._interrupted = False
        self._fd, end = pty.openpty()
        self._shell = subprocess.Popen(
            [*before, "bash", "--noprofile", "--norc", "-i"],
            cwd=cwd,
            env={**environment, "PS1": "<<$?>>", "PS2": "", "TERM": "dumb", "COLUMNS": "200"},
            preexec_fn=partial(os.login_tty, end),  # noqa: PLW1509 - system calls alone; so ^C reaches what runs in it
        )
        os.close(end)
        self._wait(lambda: bool(_PROMPT.search(self.shown)), "the shell")
        self.type("stty -echo columns 200; bind 'set enable-bracketed-paste off'")
        self.back()
        self.shown, self._seen = "", 0

    def type(self, line: str) -> None:
        """One line, or the key."""
        self._interrupted = line == _CTRL_C
        if self._interrupted:
            os.write(self._fd, b"\x03")
        else:
            self._open = len(_PROMPT.findall(self.shown)) + 1
            os.write(self._fd, line.encode() + b"\n")

    def back(self) -> None:
        """Wait until the last command returns: with 0, or with any code if it was interrupted."""
        self._wait(lambda: len(_PROMPT.findall(self.shown)) >= self._open, "the prompt")
        code = int(_PROMPT.findall(self.shown)[-1])
        assert code == 0 or self._interrupted, f"it ended with {code}: {self.shown[-3000:]}"

    def expect(self, line: str) -> None:
        """Wait until the line appears after the last expected one."""
        wanted = re.compile(".*".join(re.escape(part.strip()) for part in line.split("...")))
        self._wait(lambda: bool(wanted.search(self.shown, self._seen)) or self._failed(), f"the line {line!r}")
        found = wanted.search(self.shown, self._seen)
        assert found is not None, f"it ended before it showed {line!r}: {self.shown[-3000:]}"
        self._seen = found.end()

    def _failed(self) -> bool:
        """Return whether the last command returned a code other than 0, and so prints nothing more."""
        codes = _PROMPT.findall(self.shown)
        return len(codes) >= self._open > 0 and codes[-1] != "0" and not self._interrupted

    def _wait(self, happened: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not happened():
            left = deadline - time.monotonic()
            assert left > 0, (
                f"waited {WAIT_S:.0f} s for {what}; behind what was expected it shows: {self.shown[self._seen :][-3000:]}"
            )
            if select.select([self._fd], [], [], min(left, 1.0))[0]:
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

    def follow(self, page: Path) -> None:
        """Type the commands of a page, and check the output."""
        blocks = steps(page)
        for number, (name, typed, lines) in enumerate(blocks):
            terminal = self.all.get(name) or self.all.setdefault(name, Terminal(*self._how))
            if not typed:
                for line in lines:
                    terminal.expect(line)
                continue
            following = next((step.lines[0] for step in blocks[number + 1 :] if step.typed and step.terminal == name), "")
            for line in lines[:-1]:
                terminal.type(line)
                terminal.back()
            terminal.type(lines[-1])
            if following != _CTRL_C:
                terminal.back()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close all."""
        for terminal in self.all.values():
            terminal.close()
