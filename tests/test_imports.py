"""Which module is allowed to import which, read from the source. covers F8, R1"""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.cluster import ROOT

PACKAGE = ROOT / "relaax_like"
CODE = [
    path
    for folder in ("relaax_like", "algorithms", "environments")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix == ".py" or (path.name == "main" and "python" in path.open().readline())
]
GENERATED = re.compile(r"_pb2(_grpc)?\.py$")
# Where TensorFlow is allowed to be imported: Model, Algorithm, the layers, and the border to NumPy.
TENSORFLOW = (
    r"relaax_like/algorithm/(algorithm|acting|actor_critic|batch|critics|flare|greedy|model"
    r"|parts|random|return_support|tracing)\.py",
    r"relaax_like/learn/(compiled_algorithm|updates)\.py",
    r"relaax_like/nn/.*\.py",
    r"algorithms/[^/]+/(model|algorithm)\.py",
)
NAMES = sorted(path.parent.name for path in (ROOT / "algorithms").glob("*/config.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def walk(path: Path) -> Sequence[ast.AST]:
    """Returns all nodes of a file; many tests need them, and parsing takes most of their time."""
    return tuple(ast.walk(ast.parse(path.read_text(), str(path))))


@functools.cache
def find_imports(path: Path) -> Sequence[tuple[int, str]]:
    """Returns (line, dotted name) of each import in the file; "from a import b" is a.b."""
    found = []
    for node in walk(path):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _resolve(path, node)
            found += [(node.lineno, f"{base}.{alias.name}") for alias in node.names]
    return found


def _resolve(path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parents = path.relative_to(ROOT).parts[: -node.level]
    return ".".join([*parents, *([node.module] if node.module else [])])


def find_forbidden(paths: list[Path], pattern: str) -> list[str]:
    """Returns the places where something is imported that matches the pattern."""
    return [
        f"{relative(path)}:{line}: {name}"
        for path in paths
        for line, name in find_imports(path)
        if re.match(pattern, name)
    ]


def in_packages(*names: str) -> list[Path]:
    return [path for name in names for path in sorted((PACKAGE / name).rglob("*.py"))]


def test_the_walk_sees_the_code_and_its_imports() -> None:
    assert len(CODE) > 80
    files = (PACKAGE / "cli" / "main.py", PACKAGE / "cli" / "training.py")
    imports = {name for file in files for _, name in find_imports(file)}
    assert "typer" in imports
    assert "relaax_like.launch.training.make_trainer" in imports  # inside a function
    model = ROOT / "algorithms" / "policy_gradient" / "algorithm.py"
    assert find_forbidden([model], "relaax_like.algorithm")


def test_tensorflow_stays_in_models_and_algorithms() -> None:
    outside = [p for p in CODE if not any(re.fullmatch(t, relative(p)) for t in TENSORFLOW)]
    names = r"(tensorflow|keras|relaax_like\.nn\.lazy_tensorflow)\b"
    assert find_forbidden(outside, names) == []


# What each package must not import. Imports point one way: cli, launch, servers, agent,
# learn, algorithm, nn; core, config and wire lie below them all and know none of them.
UPPER = "addons runs client_checks launch cli"
SERVERS = f"parameter_server rlx_server {UPPER}"
ROLES = f"agent learn algorithm nn {SERVERS}"
LAYERS = {
    "wire": f"core bridge config client metrics experience {ROLES}",
    "v1": f"wire core bridge config client metrics experience {ROLES}",
    "config": f"core bridge client metrics experience {ROLES}",
    "experience": f"core bridge client metrics {ROLES}",
    "core": f"bridge config client metrics {ROLES}",
    "core/journal": rf"core\.(?!journal)\w+ experience bridge config client metrics {ROLES}",
    "bridge": f"client experience {ROLES}",
    "metrics": f"client experience {ROLES}",
    "client": f"core bridge config metrics experience {ROLES}",
    "nn": f"bridge client metrics agent learn algorithm {SERVERS}",
    "algorithm": f"bridge client metrics agent learn {SERVERS}",
    "learn": f"agent client {SERVERS}",
    "agent": f"learn client {SERVERS}",
    "parameter_server": f"rlx_server agent learn algorithm nn client {UPPER}",
    "rlx_server": f"parameter_server client {UPPER}",
    "runs/processes": r"core bridge client metrics experience agent learn algorithm nn"
    r" parameter_server rlx_server runs\.(?!processes)\w+ addons client_checks launch cli",
    "runs/folders": "bridge experience agent algorithm nn rlx_server addons client_checks launch"
    " cli",
    # A coordinator knows queues and folders, a slave starts a command: neither trains.
    "addons/coordinator": r"client metrics experience agent algorithm nn rlx_server"
    r" runs\.(?!processes)\w+ addons\.sampling client_checks launch cli",
    "addons/sampling": r"parameter_server rlx_server runs addons\.coordinator client_checks"
    r" launch cli",
    # It plays the server with the session that a server has, and any agents.
    "client_checks": r"bridge metrics agent learn algorithm nn parameter_server"
    r" runs\.(?!processes)\w+ addons launch cli",
    "launch": "client_checks cli",
}


@pytest.mark.parametrize("package", LAYERS)
def test_imports_point_one_way(package: str) -> None:
    files = [path for path in in_packages(package) if not GENERATED.search(path.name)]
    assert files
    forbidden = rf"relaax_like\.({'|'.join(LAYERS[package].split())})\b"
    assert find_forbidden(files, forbidden) == []


def test_every_package_has_its_layer() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages - {"cli"} == {name.partition("/")[0] for name in LAYERS}


def test_there_are_few_packages() -> None:
    """Those that are generated aside."""
    assert len({path.parent.name for path in PACKAGE.glob("*/__init__.py")} - {"v1"}) <= 18


def test_each_class_has_a_name_of_its_own() -> None:
    names: dict[str, list[str]] = {}
    for module, path in find_modules().items():
        for node in walk(path):
            if isinstance(node, ast.ClassDef):
                names.setdefault(node.name, []).append(module)
    assert {name: modules for name, modules in names.items() if len(modules) > 1} == {}


def find_circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Returns the groups of nodes that reach each other, each sorted."""
    reached = {name: find_reached(graph, name) for name in graph}
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in graph
        if name in reached[name]
    }
    return [list(group) for group in sorted(groups)]


def find_reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """Returns all nodes that one or more steps lead to."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def find_modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in in_packages("")
        if not GENERATED.search(path.name)
    }


def find_run_time_imports(path: Path) -> Iterator[str]:
    """Yields what a module imports when it is loaded or used, and not for types only."""
    types_only = {
        line
        for node in walk(path)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in node.body
        for line in range(child.lineno, (child.end_lineno or child.lineno) + 1)
    }
    yield from (name for line, name in find_imports(path) if line not in types_only)


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert find_circles(graph) == [["a", "b", "c"], ["d", "e"]]


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Not even in functions; `relaax_like.load`, which imports what it needs then, aside."""
    modules = find_modules()
    del modules["relaax_like"]
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for name, path in modules.items():
        for imported in find_run_time_imports(path):
            # "from a import b" is of the module a.b, if there is one, else of a.
            for target in (imported, imported.rpartition(".")[0]):
                if target in modules:
                    graph[name] |= {target} - {name}
                    break
    assert sum(map(len, graph.values())) > 1_000
    assert find_circles(graph) == []


def find_package_graph() -> dict[str, set[str]]:
    """Returns the packages that each package imports, even in functions."""
    graph: dict[str, set[str]] = {}
    for path in find_modules().values():
        package = path.relative_to(PACKAGE).parts[0]
        for _, name in find_imports(path):
            parts = name.split(".")
            if (
                parts[0] == "relaax_like"
                and len(parts) > 1
                and (PACKAGE / parts[1] / "__init__.py").exists()
            ):
                graph.setdefault(package, set()).add(parts[1])
    names = {name.partition("/")[0] for name in [*LAYERS, "cli"]}
    return {name: graph.get(name, set()) - {name} for name in names}


def test_no_packages_import_each_other_in_a_circle() -> None:
    """Not even in functions."""
    assert find_circles(find_package_graph()) == []


def test_the_map_of_the_rooms_lists_each_package_below_those_that_it_imports() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \|", page.partition("## Map of the rooms")[2], re.MULTILINE)
    graph = find_package_graph()
    assert sorted(rows) == sorted(graph)
    above = {name: set(rows[: rows.index(name)]) for name in rows}
    assert {name: names - above[name] for name, names in graph.items() if names - above[name]} == {}


def test_algorithms_and_environments_are_never_imported_by_name() -> None:
    files = [path for path in CODE if relative(path).startswith("relaax_like/")]
    roots = rf"(relaax_like\.)?(algorithms|environments|relaax_algorithms|{'|'.join(NAMES)})\b"
    assert find_forbidden(files, roots) == []
    # Nor does a built-in algorithm reach into another one.
    for name in NAMES:
        others = "|".join(other for other in NAMES if other != name)
        own = sorted((ROOT / "algorithms" / name).glob("*.py"))
        assert find_forbidden(own, rf"(algorithms\.|relaax_algorithms\.)?({others})\b") == []


# Algorithms that layers are named after, as in their papers.
ALSO_LAYERS = ("impala",)


@pytest.mark.parametrize("name", NAMES)
def test_no_line_of_relaax_like_knows_an_algorithm_s_name(name: str) -> None:
    # covers R32
    if name in ALSO_LAYERS:
        pytest.skip(f"{name} is also a kind of layer")
    whole_word = re.compile(rf"\b{name}\b(?!\.yaml)")
    strings = [
        f"{relative(path)}:{node.lineno}"
        for path in in_packages("")
        for node in walk(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if whole_word.search(node.value)
    ]
    assert strings == []


FRESH = {
    "relaax_like": "grpc tensorflow pydantic numba gymnasium numpy google.protobuf",
    "relaax_like.client": "grpc tensorflow pydantic numba gymnasium",
    "relaax_like.bridge.control": "tensorflow numba gymnasium",
    "relaax_like.launch.parameter_server": "tensorflow gymnasium",
    "relaax_like.launch.rlx_server": "tensorflow gymnasium",
    "relaax_like.launch.worker_main": "tensorflow gymnasium",
    "relaax_like.launch.policy": "tensorflow gymnasium",
    "relaax_like.config.loader": "tensorflow grpc numba gymnasium",
    "relaax_like.client_checks.run": "tensorflow grpc numba gymnasium",
    "relaax_like.cli.main": "tensorflow grpc numba gymnasium",
    "relaax_like.algorithm.actor_critic": "tensorflow grpc numba gymnasium",
    "relaax_like.algorithm.acting": "tensorflow grpc numba gymnasium",
}


@pytest.mark.parametrize("module", FRESH)
def test_a_fresh_process_loads_no_more_than_it_needs(module: str, tmp_path: Path) -> None:
    code = f"import sys, {module}; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert module in loaded
    assert loaded.isdisjoint(FRESH[module].split())
