"""No line of the project can execute what it reads: from the wire, or from a file.

The walk knows modules by the names that a file has given them: `import numpy as n; n.load(...)` is
found. What a program hides on purpose (`getattr(builtins, "ev" + "al")`) is not.
"""

import ast
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from support.cluster import ROOT

FOLDERS = ("relaax_like", "algorithms", "environments", "benchmarks", "deploy", "docs", "tests")
MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
CALLS = {
    "eval": "executes text",
    "exec": "executes text",
    "compile": "makes code of text",
    "__import__": "loads a module by a name that came from somewhere",
    "yaml.load": "may build any object: use yaml.safe_load",
    "yaml.load_all": "may build any object",
    "yaml.unsafe_load": "may build any object",
    "yaml.full_load": "may build any object",
    "os.system": "runs a shell",
    "os.popen": "runs a shell",
    "subprocess.getoutput": "runs a shell",
    "subprocess.getstatusoutput": "runs a shell",
}
METHODS = {"loads_pickle", "read_pickle", "to_pickle"}
# Keyword -> what it does unless it is literally False.
KEYWORDS = {"allow_pickle": "unpickles", "shell": "runs a shell"}
# What must stand there, and why.
EXCEPTIONS = {
    ("tests/parameter_server/test_initial_values.py", "imports pickle"): "a file to be refused",
}


def find_banned(text: str) -> Iterator[str]:
    """Gives "LINE: what is banned there" for a file's text."""
    nodes = list(ast.walk(ast.parse(text)))
    names = _find_names(nodes)
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for module in _imported_modules(node):
                if module.split(".")[0] in MODULES:
                    yield f"{node.lineno}: imports {module}"
        elif isinstance(node, ast.Call):
            yield from _find_in_call(node, names)


def _find_names(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Returns what the names of a file's imports stand for: {"np": "numpy", "run": "os.system"}."""
    names = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            names.update({alias.asname: alias.name for alias in node.names if alias.asname})
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _imported_modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [] if node.level else [node.module or ""]


def _find_in_call(node: ast.Call, names: dict[str, str]) -> Iterator[str]:
    head, dot, rest = ast.unparse(node.func).partition(".")
    name = names.get(head, head) + dot + rest
    name = name.removeprefix("builtins.")
    if name in CALLS:
        yield f"{node.lineno}: {name} {CALLS[name]}"
    elif rest and name.rpartition(".")[2] in METHODS:
        yield f"{node.lineno}: {name}"
    for keyword in node.keywords:
        is_false = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        if keyword.arg in KEYWORDS and not is_false:
            yield f"{node.lineno}: {name} with {keyword.arg} {KEYWORDS[keyword.arg]}"
    # Without the keyword numpy does not unpickle today; that it never did before is not so.
    if name == "numpy.load" and not any(k.arg == "allow_pickle" for k in node.keywords):
        yield f"{node.lineno}: numpy.load without allow_pickle=False"


def find_files() -> list[Path]:
    """Returns all Python of the project, programs without a suffix and code made by tools too."""
    files = [ROOT / "setup.py"]
    for folder in FOLDERS:
        files += [p for p in (ROOT / folder).rglob("*") if _is_python(p)]
    return sorted(p for p in files if p != Path(__file__))


def _is_python(path: Path) -> bool:
    return path.suffix == ".py" or (path.name == "main" and "python" in path.open().readline())


def test_nothing_in_the_project_is_banned() -> None:
    files = find_files()
    assert len(files) > 200
    found = {
        (path.relative_to(ROOT).as_posix(), what.partition(": ")[2]): what
        for path in files
        for what in find_banned(path.read_text())
    }
    assert {key: what for key, what in found.items() if key not in EXCEPTIONS} == {}
    assert set(found) == set(EXCEPTIONS), "an exception is no longer needed"


def test_the_walk_sees_all_python_that_git_tracks() -> None:
    done = subprocess.run(
        ["git", "ls-files", "*.py", "*/main"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    if done.returncode:
        pytest.skip("not a git checkout")
    tracked = {ROOT / line for line in done.stdout.splitlines()}
    existing = {path for path in tracked if path.exists() and _is_python(path)}
    assert existing - set(find_files()) <= {Path(__file__)}


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "import pickle as p",
        "from pickle import loads",
        "def f():\n    import marshal",
        "import shelve",
        "import dill",
        "from cloudpickle import dumps",
        "import joblib.numpy_pickle",
        "eval(x)",
        "exec(x)",
        "import builtins\nbuiltins.eval(x)",
        "import builtins as b\nb.exec(x)",
        "compile(x, 'f', 'exec')",
        "__import__(x)",
        "import yaml\nyaml.load(f)",
        "import yaml\nyaml.load(f, Loader=yaml.SafeLoader)",
        "from yaml import load as read\nread(f)",
        "import yaml as y\ny.unsafe_load(f)",
        "import numpy as np\nnp.load(f, allow_pickle=True)",
        "import numpy as np\nnp.load(f, allow_pickle=wanted)",
        "import numpy as np\nnp.load(f)",
        "import numpy\nnumpy.load(f)",
        "from numpy import load\nload(f)",
        "import subprocess\nsubprocess.run(x, shell=True)",
        "import subprocess as s\ns.Popen(x, shell=1)",
        "from subprocess import run\nrun(x, shell=flag)",
        "import os\nos.system(x)",
        "from os import system\nsystem(x)",
        "import os\nos.popen(x)",
    ],
)
def test_the_walk_finds(text: str) -> None:
    assert len(list(find_banned(text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "import yaml\nyaml.safe_load(f)",
        "import numpy as np\nnp.load(f, allow_pickle=False)",
        "import subprocess\nsubprocess.run([x])",
        "import subprocess\nsubprocess.run([x], shell=False)",
        "import re\nre.compile(x)",
        "model.eval(x)",
        "snapshots.load(x)",
        "from .pickle import sour",
    ],
)
def test_the_walk_leaves_alone(text: str) -> None:
    assert list(find_banned(text)) == []
