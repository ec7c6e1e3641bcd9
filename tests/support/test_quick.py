"""Which tests `make quick` runs for which changes."""

from pathlib import Path

from support.quick import select_tests

TLS, GATE, KILL = (
    Path("tests", *parts)
    for parts in (("wire", "test_tls.py"), ("support", "test_gate.py"), ("fault", "test_kill.py"))
)


def test_changed_tests_come_first_and_then_what_mirrors_names_and_imports_a_change() -> None:
    deleted = Path("tests", "wire", "test_that_is_gone.py")
    admission = Path("relaax_like/rlx_server/admission.py")  # has no test of its own
    c_client = Path("environments/c_cartpole/rlx_client.c")
    tls = Path("relaax_like/wire/tls.py")
    first, second, *others = select_tests([tls, GATE, deleted, admission, c_client])
    assert (first, second) == (GATE, TLS)
    assert Path("tests/rlx_server/test_batch.py") in others, "it imports admission"
    assert Path("tests/rlx_server/test_closing.py") in others, "it is in admission's folder"
    assert Path("tests/environments/test_c_cartpole.py") in others, "it names rlx_client.c"
    assert not [test for test in others if test.parts[1] == "fault"]
    assert len(others) < 40


def test_slow_tests_are_run_when_they_changed_themselves() -> None:
    assert select_tests([KILL]) == [KILL]
