"""The clients in other languages are short enough to be read and copied. covers PE8"""

import re

import pytest
from support.cluster import ROOT

FOLDER = ROOT / "environments"
MOST_COLUMNS = 100
# Files that are counted together -> most code lines.
LIMITS = {
    "javascript/rlx.js": 450,
    "lua/rlx.lua lua/cartpole.lua": 60,
    "shell/main": 60,
    "csharp/Rlx.cs": 450,
    "godot3/rlx.gd": 200,
    "godot4/rlx.gd": 200,
}
# What a line begins with that is a comment alone.
COMMENTS = {".js": "//", ".lua": "--", ".cs": "//", ".gd": "#", "": "#"}


@pytest.mark.parametrize(("names", "most"), LIMITS.items())
def test_a_client_is_short(names: str, most: int) -> None:
    count = 0
    for path in (FOLDER / name for name in names.split()):
        mark = re.escape(COMMENTS[path.suffix])
        lines = path.read_text().splitlines()
        count += sum(not re.fullmatch(rf"\s*({mark}.*)?", line) for line in lines)
        assert max(map(len, lines)) <= MOST_COLUMNS
    assert count <= most
