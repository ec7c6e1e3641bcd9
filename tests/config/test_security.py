"""The section `security`: paths and contradictions."""

from pathlib import Path

import pytest

from relaax_like.config.loader import dump_experiment, load_experiment
from relaax_like.config.models import SecurityConfig
from relaax_like.wire.errors import ConfigError

ALGORITHM = Path(__file__).parents[1] / "support" / "bare_algorithm"
TLS = "tls_cert: a.pem, tls_key: b.pem, tls_ca: /etc/c.pem"


def load(folder: Path, section: str, *overrides: str):
    file = folder / "experiment.yaml"
    file.write_text(f"algorithm: {{path: '{ALGORITHM}'}}\nsecurity: {{{section}}}\n")
    return load_experiment(file, overrides)


def test_without_the_section_nothing_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text(f"algorithm: {{path: '{ALGORITHM}'}}\n")
    assert load_experiment(file).security == SecurityConfig()


def test_paths_begin_at_the_file_s_folder_and_stay_so_in_the_dumped_file(
    tmp_path: Path, monkeypatch
) -> None:
    section = f"{TLS}, tokens_file: ../tokens, token_file: d/token, tls_client_cert_required: true"
    experiment = load(tmp_path, section)
    want = SecurityConfig(
        tls_cert=tmp_path / "a.pem",
        tls_key=tmp_path / "b.pem",
        tls_ca=Path("/etc/c.pem"),
        tokens_file=tmp_path.parent / "tokens",
        token_file=tmp_path / "d" / "token",
        tls_client_cert_required=True,
    )
    assert experiment.security == want
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "config.yaml").write_text(dump_experiment(experiment))
    assert load_experiment(elsewhere / "config.yaml").security == want


@pytest.mark.parametrize(
    ("section", "want"),
    [
        ("tls_cert: a", ["tls_key: missing, but tls_cert is set", "tls_ca: missing, but"]),
        ("tls_ca: a", ["tls_cert: missing, but tls_ca is set", "tls_key: missing, but"]),
        ("tls_cert: a, tls_key: b", ["tls_ca: missing, but tls_cert is set"]),
        ("tls_client_cert_required: true", ["tls_client_cert_required: true, but TLS is off"]),
        ("token: x", ["token: unknown key; did you mean token_file?"]),
        ("insecure: 1", ["insecure: expected true or false, got 1"]),
    ],
)
def test_contradictions_name_their_fields(tmp_path: Path, section: str, want: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, section)
    lines = str(raised.value).splitlines()
    assert len(lines) == len(want)
    for line, text in zip(sorted(lines), sorted(want), strict=True):
        assert f"experiment.yaml:2: security.{text}" in line


def test_the_flag_sets_it(tmp_path: Path) -> None:
    assert load(tmp_path, "insecure: false", "security.insecure=true").security.insecure
