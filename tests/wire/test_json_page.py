"""docs/json.md: its conversations are what the server says, and it is short."""

# covers PE8

import json
import re
import socket
from pathlib import Path

import pytest
from support.cluster import ROOT
from support.wire import serve

PAGE = (ROOT / "docs" / "json.md").read_text()
CONVERSATIONS = re.findall(r"```\n(> \{\"hello.*?)```", PAGE, re.S)
MOST_WORDS = 1500


def test_the_page_is_short() -> None:
    assert len(PAGE.split()) <= MOST_WORDS


@pytest.mark.parametrize("text", CONVERSATIONS, ids=["one", "slots"])
def test_a_conversation_of_the_page_is_the_servers(text: str, tmp_path: Path) -> None:
    with (
        serve("discrete", tmp_path, exploit=True) as port,
        socket.create_connection(("127.0.0.1", port), timeout=20) as connection,
    ):
        stream = connection.makefile("rb")
        for line in text.splitlines():
            if line.startswith("> "):
                connection.sendall(line[2:].encode() + b"\n")
            else:
                assert json.loads(stream.readline()) == json.loads(line[2:])
