"""Documents, messages, docstrings and comments contain none of the expressions below.

They are not plain English, in any context. A sentence without them can still read like a
translation; finding it is the reviewer's work.
"""

import ast
import fnmatch
import functools
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from support.cluster import ROOT

# Regular expression, replacement, example that it must find. A space matches any white space, so an
# expression is also found across the end of a line.
EXPRESSIONS = (
    (r"\banew\b", "again", "it starts anew"),
    (r"\bfor ever\b", "forever, indefinitely", "it waits for ever"),
    (r"\bwhom\b", "who; or turn the sentence round", "the client to whom it belongs"),
    (r"\b[Ww]hoever\b", "the caller that, the holder", "whoever has it"),
    (r"\bwho waits?\b", "the caller that waits", "who waits is woken"),
    (r"\bsaid aloud\b", "explicit", "unless said aloud"),
    (r"\bby turns\b", "alternately", "they run by turns"),
    (r"\btakes? turns\b", "alternate", "two files take turns"),
    (r"\b[Gg]o(es)? on\b", "continues, resumes", "the training goes on"),
    (r"\b[Cc]omes? back\b", "returns, reconnects, retries", "the server comes back"),
    (
        r"\b(comes?|came) to (nothing|something|anything)\b",
        "fails, gives",
        "a start came to nothing",
    ),
    (r"\bhas come to\b", "has reached, has published", "what a learner has come to"),
    (
        r"\bHa(s|ve) (the|a|an|all|agents|it|what|layers|episodes)\b",
        "Makes, Tells",
        "Has the server save",
    ),
    (
        r"\bha(s|ve|d) (it|them|the server|servers|agents|all who wait) "
        r"(act|end|go|look|pass|save|start|stop|take|wait|write)\b",
        "makes it, tells it to",
        "`save` has it write a snapshot",
    ),
    (r"\bgives? (\w+ ){1,3}free\b", "releases", "gives the folder free"),
    (r"(?<!\bthere )(?<!\bThere )\b(is|are) none\b(?! of)", "is not a ...", "these bytes are none"),
    (
        r"(?<!\bthere )(?<!\bThere )\b(is|are) no "
        r"(actions?|bool|costs?|end|errors?|files?|folder|integers?|keys?|list|messages?|multiple|"
        r"names?|numbers?|reason|spaces?|strings?|token|URL)\b",
        "is not a ...",
        "7 is no multiple of 4",
    ),
    (r"\bno costs\b", "not a valid ...", "these are no costs"),
    (r"\b[Ww]ish(es|ed)?\b", "request", "a wish for the newest values"),
    (r"\bmay\b", "can, is allowed to, must", "it may be lost"),
    (
        r"\b(is|are|was|were|be|being) told\b",
        "is notified, receives, reports",
        "the client is told why",
    ),
    (
        r"\btells? (where|which|what|how|why|whether|when|that|of)\b",
        "reports, shows, says",
        "the log tells why",
    ),
    (r"\b(line|log|status|output|message|warning) tells?\b", "reports, says", "as a line tells"),
    (r"\bin whole\b|\btrust whole\b", "complete, fully", "a network that you trust whole"),
    (
        r"\b[Ww]hole or (absent|nothing|not)\b",
        "complete or absent, atomic",
        "a snapshot is whole or absent",
    ),
    (r"\bnothing whole\b", "no complete ...", "nothing whole came"),
    (
        r"\b(makes?|made) [\d\s.,]+(k |M )?(of (them|these)|rounds|steps/s|steps a second)",
        "runs at N per second",
        "it makes 60 of them a second",
    ),
    (r"\bof one's own\b", "your own", "a folder of one's own"),
    (r"\bno cost but worth knowing\b", "diagnostics", "what is no cost but worth knowing"),
    (
        r"\bthe one that never was\b",
        "bit-identical to an uninterrupted run",
        "is the one that never was",
    ),
    (r"\bthe \d+\. (?=[a-z])", "third, or the number without a point", "the 3. to end"),
    (r"\bso to say\b", "leave it out", "a turn, so to say"),
)

# File, exact excerpt, reason why it is correct there.
ALLOWED: tuple[tuple[str, str, str], ...] = ()

GROUPS = {
    "README": ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"],
    "docs": ["docs/*.md"],
    "algorithms": ["algorithms/*/README.md", "environments/*.md", "findings/*.md"],
    "protos": ["protos/*.proto"],
    "compose": ["Procfile", "*.Procfile", "docker-compose.yml"],
    "yaml": ["*.yaml", "*.yml"],
    "python": ["relaax_like/*.py", "algorithms/*.py", "environments/*.py"],
    "tests": ["tests/*.py", "benchmarks/*.py", "deploy/*.py"],
}


# Their strings are data as often as messages, so only docstrings and comments are read.
_DATA = ("tests/", "benchmarks/", "deploy/")


class Passage(NamedTuple):
    """Text that people read, and the line where it starts. Other parts of the file are masked."""

    line: int
    text: str


def read_markdown(text: str) -> list[Passage]:
    """Returns the prose, with fenced and indented code blocks and inline code masked."""
    text = re.sub(r"^```.*?^```", _blank, text, flags=re.MULTILINE | re.DOTALL)
    # An indented block follows an empty line; in a list, indented text is prose.
    text = re.sub(r"(?<=\n\n)(?: {4}.*\n|\n(?= {4}))+", _blank, text)
    return [Passage(1, re.sub(r"`[^`\n]+`", _blank, text))]


def read_comments(text: str, mark: str) -> list[Passage]:
    """Returns the comments that start with `mark`, including a `mark` within a string."""
    lines = []
    for line in text.splitlines():
        _, found, comment = line.partition(mark)
        lines.append(re.sub(r"`[^`]+`", _blank, comment) if found else "")
    return [Passage(1, "\n".join(lines))]


def read_python_comments(text: str) -> list[Passage]:
    """Returns the comments; those of consecutive lines are one passage."""
    comments = {
        token.start[0]: token.string[1:]
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    }
    passages: list[Passage] = []
    for line, comment in comments.items():
        if line - 1 in comments:
            first, before = passages.pop()
            passages.append(Passage(first, f"{before}\n{comment}"))
        else:
            passages.append(Passage(line, comment))
    return [Passage(line, re.sub(r"`[^`\n]+`", _blank, part)) for line, part in passages]


def read_docstrings(text: str) -> list[Passage]:
    """Returns the docstrings of modules, classes and functions."""
    return [
        Passage(one.lineno, re.sub(r"`[^`\n]+`", _blank, str(one.value)))
        for one in find_docstrings(ast.parse(text))
    ]


def find_docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yields the docstrings of a module, and of the classes and functions in it."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            yield first.value


def read_strings(text: str) -> list[Passage]:
    """Returns the string constants except docstrings; descriptions of fields are included."""
    tree = ast.parse(text)
    skipped = set(find_docstrings(tree))
    skipped |= {
        part
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
        if isinstance(part, ast.Constant)
    }
    passages = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            # Join the parts, since an expression can contain a value: f"{name} goes {where}".
            words = [str(p.value) if isinstance(p, ast.Constant) else "{}" for p in node.values]
            passages.append(Passage(node.lineno, "".join(words)))
        elif isinstance(node, ast.Constant) and node not in skipped and isinstance(node.value, str):
            passages.append(Passage(node.lineno, node.value))
    return [Passage(line, re.sub(r"`[^`\n]+`", _blank, part)) for line, part in passages]


def read_passages(name: str, text: str) -> list[Passage]:
    """Returns the texts of a file that users read; the file name determines the format."""
    if name.endswith(".md"):
        return read_markdown(text)
    if name.endswith(".proto"):
        return read_comments(text, "//")
    if name.endswith(".py"):
        strings = [] if name.startswith(_DATA) else read_strings(text)
        return [*strings, *read_docstrings(text), *read_python_comments(text)]
    return read_comments(text, "#")


def find_wrong(name: str, text: str) -> Iterator[str]:
    """Yields "FILE:LINE: 'found' -> write 'instead'" for each expression in a file's text."""
    excerpts = [excerpt for file, excerpt, _ in ALLOWED if file == name]
    passages = read_passages(name, text)
    everything = "\0".join(passage.text for passage in passages)
    for expression, instead, _ in EXPRESSIONS:
        pattern = _flexible(expression)
        if not pattern.search(everything):  # almost always, and quicker than piece by piece
            continue
        for passage in passages:
            for match in pattern.finditer(passage.text):
                if _is_allowed(match, excerpts):
                    continue
                line = passage.line + passage.text.count("\n", 0, match.start())
                found = " ".join(match.group().split())
                yield f"{name}:{line}: {found!r} -> write {instead!r}"


def _is_allowed(match: re.Match[str], excerpts: list[str]) -> bool:
    return any(
        start <= match.start() and match.end() <= start + len(excerpt)
        for excerpt in excerpts
        for start in [match.string.find(excerpt, max(0, match.end() - len(excerpt)))]
        if start >= 0
    )


@functools.cache
def _flexible(expression: str) -> re.Pattern[str]:
    """Makes a space match any white space, except in lookbehinds, which need a fixed width."""
    parts = re.split(r"(\(\?<!.*?\)|\[.*?\])", expression)
    return re.compile(
        "".join(p if p.startswith(("(?<!", "[")) else p.replace(" ", r"\s+") for p in parts)
    )


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "\N{MIDDLE DOT}", match.group())


def list_files(group: str) -> list[str]:
    """Returns the tracked files of a group ; `*` also matches a slash."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [
        name
        for name in listed.stdout.splitlines()
        if any(fnmatch.fnmatch(name, pattern) for pattern in GROUPS[group])
        and not name.endswith(("_pb2.py", "_pb2_grpc.py"))
    ]


@pytest.mark.parametrize("group", GROUPS)
def test_texts_contain_no_expression_of_the_table(group: str) -> None:
    names = list_files(group)
    assert names
    wrong = [
        line
        for name in names
        for line in find_wrong(name, (ROOT / name).read_text(encoding="utf-8"))
    ]
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("expression", "instead", "example"), EXPRESSIONS, ids=lambda value: value[:30]
)
def test_each_expression_is_found(expression: str, instead: str, example: str) -> None:
    wanted = f"-> write {instead!r}"
    broken = example.replace(" ", "\n")
    for name, text, line in (
        ("a.md", f"# Title\n\n{broken}\n", 3),
        ("a.proto", "int32 x = 1;\n// " + example.replace(" ", "\n  // "), 2),
        ("a.yaml", f"key: 1  # {example}\n", 1),
        ("a.py", f'x = 1\nprint(f"{{x}}: {example}")\n', 2),
        ("a.py", f'class A:\n    x: int = 1\n    "{example}"\n', 3),
        ("a.py", f'parser.add_argument("--x", help="{example}")\n', 1),
        ("a.py", f"print(f'''{{\"{example}\" if x else 0}}''')\n", 1),
        ("tests/a.py", f'def f():\n    """{broken}"""\n', 2),
        ("tests/a.py", "x = 1\n# " + example.replace(" ", "\n# ") + "\n", 2),
    ):
        found = [place for place in find_wrong(name, text) if place.endswith(wanted)]
        assert found, (name, example)
        at = int(found[0].split(":")[1])
        assert line <= at <= line + example.count(" "), found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", "```\nit goes on\n```\n\n    it goes on\n\nthe words `it goes on`\n"),
        ("a.md", "there are none; none of them; there is no key\n"),
        ("a.proto", "string may = 1;\n"),
        ("a.yaml", "may: 1\n"),
        ("a.py", 'class A:\n    """Where `it goes on`."""\n\n    x = 1  # `it goes on`\n'),
        ("a.py", "goes = on = 1\n"),
        ("tests/a.py", 'print("it goes on")\n'),
    ],
)
def test_code_is_not_scanned(name: str, text: str) -> None:
    assert list(find_wrong(name, text)) == []


def test_an_allowed_excerpt_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ALLOWED", (("a.md", "the song goes on", "a quotation"),))
    text = "It goes on. In the words of the poet, the song goes on."
    assert list(find_wrong("a.md", text)) == ["a.md:1: 'goes on' -> write 'continues, resumes'"]
    assert len(list(find_wrong("b.md", text))) == 2


def test_each_allowed_excerpt_is_still_there() -> None:
    gone = [
        (name, text) for name, text, _ in ALLOWED if text not in (ROOT / name).read_text("utf-8")
    ]
    assert gone == []
