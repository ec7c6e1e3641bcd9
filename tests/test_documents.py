"""Links lead somewhere, modules that a page names exist, and the first pages are short."""

import collections
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
from support.cluster import ROOT

# A link's target, a reference `[name]: target`, and a page that code or messages name.
LINK = re.compile(r"\]\(([^()\s]+)\)|^\[[^\]]+\]: (\S+)", re.MULTILINE)
NAMED = re.compile(r"\b((?:docs|environments)/[\w/]+\.md(?:#[a-z0-9_-]+)?)")
MODULE = re.compile(r"`([a-z_]+(?:/[a-z_]+)+\.(?:py|txt))`")
# What a module's path can be relative to, beside the page's own folder.
FOLDERS = ("", "relaax_like", "algorithms", "environments", "tests")
LIMITS = {"README.md": 2200, "docs/architecture.md": 1800}  # words, as `wc -w` counts them


def list_files(*patterns: str) -> list[str]:
    """Returns the tracked files, and new ones that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


PAGES = list_files("*.md")
SOURCES = list_files("*.py", "*.proto", "*.yaml", "*.yml", "*.txt", "Makefile")


def mask_code(text: str, inline: bool = True) -> str:
    """Blanks fenced blocks and, if asked, inline code; the lines stay."""
    text = re.sub(
        r"^( *)```.*?^\1```", lambda m: "\n" * m[0].count("\n"), text, flags=re.M | re.DOTALL
    )
    return re.sub(r"`[^`\n]+`", "", text) if inline else text


def find_anchors(text: str) -> set[str]:
    """Returns the anchors of a page's headings, formed as GitHub does."""
    seen: collections.Counter[str] = collections.Counter()
    anchors = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", mask_code(text, inline=False), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        anchors.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return anchors


def find_broken_links(page: Path, text: str) -> Iterator[str]:
    """Yields "LINE: TARGET: why" for each relative link of a page that leads nowhere."""
    masked = mask_code(text)
    for match in LINK.finditer(masked):
        target = match[1] or match[2]
        if not re.match(r"[a-z]+:", target):
            why = find_fault(page, text, target)
            if why:
                yield f"{masked.count(chr(10), 0, match.start()) + 1}: {target}: {why}"


def find_fault(page: Path, text: str, target: str) -> str:
    """Returns what is wrong with a relative target in a page; "" if it exists."""
    path, _, anchor = unquote(target).partition("#")
    file = page.parent / path if path else page
    if file != page and not file.exists():
        return "no such file"
    if anchor and anchor not in find_anchors(text if file == page else file.read_text("utf-8")):
        return "no such heading"
    return ""


@pytest.mark.parametrize("name", PAGES)
def test_each_relative_link_leads_to_a_file_and_a_heading(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    assert list(find_broken_links(ROOT / name, text)) == []


def test_each_page_that_code_names_exists() -> None:
    broken = []
    for name in sorted({*SOURCES} - {"tests/test_documents.py"}):
        for target in NAMED.findall((ROOT / name).read_text("utf-8")):
            why = find_fault(ROOT / "page.md", "", target)
            broken += [f"{name}: {target}: {why}"] if why else []
    assert broken == []


@pytest.mark.parametrize("name", [name for name in PAGES if name != "CHANGELOG.md"])
def test_each_module_that_a_page_names_exists(name: str) -> None:
    page = ROOT / name
    places = [page.parent, *(ROOT / folder for folder in FOLDERS)]
    named = MODULE.findall(mask_code(page.read_text("utf-8"), inline=False))
    assert [path for path in named if not any((place / path).exists() for place in places)] == []


@pytest.mark.parametrize(("name", "limit"), LIMITS.items())
def test_the_first_pages_stay_short(name: str, limit: int) -> None:
    words = len((ROOT / name).read_text("utf-8").split())
    assert words <= limit, f"{name} has {words} words; move what a newcomer does not need to docs/"


def list_commands(text: str) -> set[str]:
    """Returns the lines of a page's blocks of code, without comments."""
    lines, is_fenced = set(), False
    for line in text.splitlines():
        is_fenced ^= line.startswith("```")
        if is_fenced or line.startswith("    "):
            lines.add(line.partition("  #")[0].strip())
    return lines


def test_the_page_in_chinese_has_commands_and_links_of_the_first_page() -> None:  # covers J20
    page, readme = ((ROOT / name).read_text("utf-8") for name in ("README.zh-CN.md", "README.md"))
    assert list_commands(page) <= list_commands(readme)
    targets = {match[1] for match in LINK.finditer(mask_code(page))}
    assert targets <= {match[1] for match in LINK.finditer(mask_code(readme))} | {"README.md"}
    assert {"make run", "make test", "python lamps.py"} <= list_commands(page)
    assert {"docs/coming_from.md#joyrl", "docs/coming_from.md#di-engines-learner"} <= targets
    # Each Chinese character is a word.
    assert len(re.findall(r"[\u4e00-\u9fff]|[A-Za-z0-9_./-]+", mask_code(page))) <= 800


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("[a](docs/json.md#spaces) [b](#one) [c](https://x.y/z)\n\n# One\n", []),
        ("\n[a](docs/nothing.md)\n", ["2: docs/nothing.md: no such file"]),
        ("[a](docs/json.md#nothing)", ["1: docs/json.md#nothing: no such heading"]),
        (
            "[a](#two) [b](#one-1)\n\n# One\n",
            ["1: #two: no such heading", "1: #one-1: no such heading"],
        ),
        ("[a](#one-1)\n# One\n# One\n", []),
        ("[a](#run-it-at-once)\n## Run `it`, at once!\n", []),
        ("[a](#hidden)\n```\n# hidden\n```\n", ["1: #hidden: no such heading"]),
        ("`[a](nothing.md)`\n```\n[a](nothing.md)\n```\n", []),
        ("[a]\n\n[a]: nothing.md\n", ["3: nothing.md: no such file"]),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_broken_link_is_found(text: str, broken: list[str]) -> None:
    assert list(find_broken_links(ROOT / "page.md", text)) == broken
