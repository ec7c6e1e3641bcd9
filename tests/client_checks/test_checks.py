"""The table of checks, and where each is documented."""

import re
from pathlib import Path

import pytest
from support.cluster import ROOT

from relaax_like.client_checks import checks
from relaax_like.client_checks.checks import CHECKS, name_refusal
from relaax_like.wire.errors import ProtocolError

PAGE = ROOT / "docs" / "check_client.md"


def test_there_are_many_checks_and_each_has_one_line() -> None:
    lines = Path(checks.__file__).with_name("checks.txt").read_text().splitlines()
    rows = [line for line in lines if not line.startswith("#")]
    assert len(CHECKS) == len(rows) >= 60


def list_anchors(page: str) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_each_check_s_section_exists() -> None:
    missing = []
    for check in CHECKS.values():
        page, _, anchor = check.section.partition("#")
        if anchor not in list_anchors(page):
            missing.append(check)
    assert missing == []


def test_the_page_lists_all_checks() -> None:
    table = [
        f"| `{check.id}` | {check.expected} | "
        f"[{check.section.partition('#')[2].replace('-', ' ')}]"
        f"({check.section.replace('docs/', '').replace('environments', '../environments')}) |"
        for check in CHECKS.values()
    ]
    _, _, text = PAGE.read_text().partition("\n## The checks\n")
    found = [line for line in text.splitlines() if line.startswith("| `")]
    assert found == table, "write these lines instead:\n" + "\n".join(table)


@pytest.mark.parametrize(
    ("code", "field", "text", "id"),
    [
        ("MALFORMED", "", "received an empty message, or one of an unknown kind", "frames.body"),
        (
            "MALFORMED",
            "",
            "received 3 bytes that are not an rlx protocol message",
            "frames.message",
        ),
        ("INVALID_FIELD", "", "the message has more than 4 parts", "frames.message"),
        ("OUT_OF_ORDER", "step_id", "step_id, but Ready.features ...", "features.step_id_off"),
        ("OUT_OF_ORDER", "overridden", ", but Ready.features ...", "features.executed_off"),
        ("INVALID_FIELD", "step_id", "step_id: 1, expected more", "features.step_id"),
        ("INVALID_FIELD", "present", "present: int8 [1], expected bool [1]", "features.present"),
        ("INVALID_FIELD", "success", "success: 2 in slot 0", "ends.success"),
        ("INVALID_FIELD", "max_wait_ms", "max_wait_ms: 0, expected 1", "hello.max_wait"),
        ("NEW", "something", "that no check knows", "frames.message"),
    ],
)
def test_a_refusal_belongs_to_a_check(code: str, field: str, text: str, id: str) -> None:
    assert name_refusal(ProtocolError(text, code, field)) == id
