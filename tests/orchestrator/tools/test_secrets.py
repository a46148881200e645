"""Passwords: what is hidden of addresses, and that no screen, page or file shows one."""

from __future__ import annotations

import base64
import html
import json
import subprocess
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from orchestrator.commands.session import _page
from orchestrator.record.folder import SweepFolder
from orchestrator.tools.secrets import _Secrets, public_address, redact, redacted
from orchestrator.tracking.client import resolve_uri


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("http://me:pw@host:5000/x", "http://***@host:5000/x"),
        ("postgresql+psycopg://u:p%40@h/db", "postgresql+psycopg://***@h/db"),
        ("cannot reach postgresql://u:a/b@c@h/db now", "cannot reach postgresql://***@h/db now"),
        ("https://h/x?token=abc&user=b", "https://h/x?token=***&user=b"),
        ("sqlite:////home/me/mlflow.db", None),
        ("http://127.0.0.1:5000", None),
        # an "@" in a path or a bucket is part of a name, one in a password is not
        ("sqlite:////home/me@example/My Drive/mlflow.db", None),
        ("s3://bucket/me@example/runs", None),
        ("postgresql://u:p@ss/w@rd@h/db", "postgresql://***@h/db"),
        ("http://token@h:5000", "http://***@h:5000"),
        ('{"uri":"http://h:5000","who":"a@b"}', None),
        ("http://h:5000/x is away; paused by root@vm", None),
        ("eos_token=</s>, key=value, monkey=1", None),
        ("--set 'training.max_steps=5' http://h/?page=2&name=x", None),
        ("see it in MLflow: http://127.0.0.1:5000/#/experiments/1/runs?viewStateShareKey=front-3ae719f2", None),
    ],
)
def test_redaction(given: str, shown: str | None) -> None:
    """None: it has no secret, and stays."""
    assert redact(given) == (shown or given)


PASSWORDS = ("it's5ecret", 'a"5ecret', "5e<cret>5ecret", "p@5ecret", "a 5ecret")
PASSWORDS += ("5ecret:x", "a/5ecret", "p@a 5ecret", "12'5ecret", "a`5ecret#?")


@pytest.mark.parametrize(
    "address",
    [
        *(f"postgresql://bob:{password}@db/m" for password in PASSWORDS),
        *("http://5ecret@h", "http://5e'5ecret@h:5000/x", "s3://AKIA:5ecret@bucket/x", "me://a@b.org:5ecret@h"),
        *(
            f"https://h/?x=1&{name}=5ecret"
            for name in ("sig", "api_key", "access_token", "auth", "PASSWORD", "ssl.pwd", "X-Amz-Signature")
        ),
        *("https://h/?key=it's5ecret", "https://h/?token=5e&key=%35ecret5ecret", "https://h/?next=http%3A//u%3A5ecret%40h"),
        "mssql+pyodbc:///?odbc_connect=UID%3Dsa%3BPWD%3D5ecret",
        "mssql+pyodbc:///?odbc_connect=UID%253Dsa%253BPWD%253D5ecret",
        *("postgresql://h/db?options=-c%20password%3D5ecret", "postgresql:///db?options=-csslmode=x+-c+password=5ecret"),
    ],
)
def test_no_form_of_an_address_shows_its_secrets(address: str) -> None:
    for text in (address, f"cannot reach {address} now", f'{{"uri": "{address}"}}'):
        assert "5ecret" not in redact(text)
    assert "5ecret" not in json.dumps(redacted({address: [address]}))


@pytest.mark.parametrize("password", ["it's-5ecret", 'a"5ecret<&>', "5e cret", "p%40ss%2F5ecret", "ünter-5ecret"])
def test_the_secrets_of_an_address_in_use_are_hidden_alone_and_in_every_spelling(
    password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = _Secrets(
        {"HTTPS_PROXY": "http://proxy:pr0xy-5ecret@h:8080", "MLFLOW_TRACKING_TOKEN": "t0ken-5ecret", "PWD": "/x5ecret"}
    )
    monkeypatch.setattr("orchestrator.tools.secrets._secrets", lambda: secrets)
    address = f"postgresql://bob:{password}@db/m?sslmode=verify-full&odbc_connect=PWD%3D{{br;5ecret}}"
    assert resolve_uri(address) == address
    assert redact(f"{address} is away") == "postgresql://***@db/m?sslmode=***&odbc_connect=*** is away"
    meant = unquote(password)
    spellings = [password, meant, repr(meant)[1:-1], json.dumps(meant)[1:-1], html.escape(meant), quote(meant, safe="")]
    spellings += ["br;5ecret", "pr0xy-5ecret", "t0ken-5ecret", base64.b64encode(f"bob:{meant}".encode()).decode()]
    for spelling in spellings:
        assert redact(f"<{spelling}>") == "<***>", spelling
    assert redact('authentication failed for user "bob" of bob\'s /home/bob/x5ecret') == (
        'authentication failed for user "***" of bob\'s /home/bob/x5ecret'
    )
    assert public_address(address) == "postgresql://db/m"


def test_what_the_environment_says_of_a_storage_server_is_no_secret() -> None:
    address = "s3://bucket/x?endpoint_override=minio.lab:9000&region=us-east-1"
    hide = _Secrets({"RUNS": f"{address}&token=5ecret", "DATA": address}).hide
    assert hide(f"{address}&token=5ecret, {address}, us-east-1") == f"{address}&token=***, {address}, us-east-1"


def test_the_process_that_makes_the_page_gets_the_address_by_its_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[list[str], str]] = []

    def run(command: list[str], *, input: str, **_: object) -> subprocess.CompletedProcess[str]:
        calls.append((command, input))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("orchestrator.commands.session.subprocess.run", run)
    uri = "http://me:5ecret@h:5000"
    _page(SweepFolder(tmp_path), "5" * 32, uri)
    ((command, address),) = calls
    assert address == uri
    assert "5ecret" not in " ".join(command)
    assert command[1] == "-P", "no module in the user's folder takes the place of a library's"


@pytest.mark.parametrize("secret", ["語" * 86, "k" * 300, "x\0y" * 5], ids=["not ASCII", "long", "with a null"])
def test_a_secret_that_is_no_name_of_a_file_is_hidden(secret: str) -> None:
    assert _Secrets({"MY_TOKEN": secret}).hide(f"it is {secret}.") == "it is ***."
