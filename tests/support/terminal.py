"""A program in a terminal of its own, and what is to be seen in that terminal.

with Terminal(argv, tmp_path) as terminal:
    terminal.wait_for(lambda screen: "step" in screen.text)
    terminal.process.send_signal(signal.SIGINT)
    screen = terminal.wait()
"""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from support.cluster import TIMEOUT_SEC, wait_until

ROWS, COLUMNS = 50, 110
_PIECE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|([\r\n])|([^\r\n\x1b]+)")


class Screen:
    """Lines of text, written as a terminal without an end would: cursor up, erase, hide and show.

    What is longer than a line continues in the next one.

    Attributes:
      lines: of text, colours left out.
      cursor_shown: whether the cursor is to be seen.
    """

    def __init__(self, output: str):
        self.lines = [""]
        self.cursor_shown = True
        self._row = self._column = 0
        for arguments, command, move, text in _PIECE.findall(output):
            if command:
                self._control(arguments, command)
            elif move == "\r":
                self._column = 0
            elif move:
                self._break_line()
            else:
                self._write(text)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def _control(self, arguments: str, command: str) -> None:
        if command == "A":
            self._row = max(0, self._row - int(arguments or 1))
        elif command == "K":
            assert arguments == "2"
            self.lines[self._row] = ""
        elif arguments == "?25":
            self.cursor_shown = command == "h"
        else:
            assert command == "m", f"unknown control sequence {arguments}{command}"

    def _write(self, text: str) -> None:
        while text:
            if self._column == COLUMNS:
                self._column = 0
                self._break_line()
            part, text = text[: COLUMNS - self._column], text[COLUMNS - self._column :]
            line = self.lines[self._row].ljust(self._column)
            end = self._column + len(part)
            self.lines[self._row] = line[: self._column] + part + line[end:]
            self._column = end

    def _break_line(self) -> None:
        self._row += 1
        if self._row == len(self.lines):
            self.lines.append("")


class Terminal:
    """Runs a program in a pseudo terminal of 110 columns. A context manager; kills what is left.

    Attributes:
      process: the program.
    """

    def __init__(self, argv: Sequence[object], cwd: Path, env: Mapping[str, str] | None = None):
        self._own, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        clean = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [str(part) for part in argv],
            cwd=cwd,
            env={**clean, "TERM": "xterm-256color", "TF_CPP_MIN_LOG_LEVEL": "3", **(env or {})},
            stdin=its,
            stdout=its,
            stderr=its,
            start_new_session=True,
        )
        os.close(its)
        self._data = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def screen(self) -> Screen:
        """What is to be seen now."""
        return Screen(self._data.decode(errors="replace"))

    def type(self, text: str) -> None:
        """Types; the terminal shows it, and makes no signal of Ctrl-C."""
        os.write(self._own, text.encode())

    def wait_for(self, condition: Callable[[Screen], bool]) -> Screen:
        """Waits until the screen satisfies a condition, and returns it."""

        def look() -> Screen | None:
            screen = self.screen
            if condition(screen):
                return screen
            assert self._reader.is_alive(), f"it ended:\n{screen.text}"
            return None

        found = wait_until(look, self)
        assert found is not None
        return found

    def wait(self) -> Screen:
        """Waits for the end of the program and returns what it leaves."""
        self.process.wait(TIMEOUT_SEC)
        self._reader.join(10)
        return self.screen

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._own, 65536)
            except OSError:  # the other end is closed
                return
            if not data:
                return
            self._data += data

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.wait()
        os.close(self._own)

    def __repr__(self) -> str:
        return f"a terminal:\n{self.screen.text}"
