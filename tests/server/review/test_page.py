"""The page as any program on this machine can reach it: what it takes to get in, and what no request can do."""

from __future__ import annotations

import http.client
import re
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from samebits.server.review.door import TRIES, Door
from samebits.tools.schema import reviews
from samebits.tools.schema.errors import UserError
from samebits.tools.schema.proposals import open_proposal


class Visitor:
    """Raw requests to the page."""

    def __init__(self, address: str, person: Any) -> None:
        self.person = person
        self.port = int(address.split(":")[2].split("/")[0])
        self.origin = f"http://127.0.0.1:{self.port}"
        self.cookie = ""
        self.answer: http.client.HTTPResponse

    def ask(self, method: str, path: str, form: dict[str, str] | None = None, **headers: str) -> str:
        """One request; the text of its answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        body = urllib.parse.urlencode(form).encode() if form is not None else None
        sent = {"Cookie": self.cookie} if self.cookie else {}
        if method == "POST":
            sent |= {"Origin": self.origin, "Content-Type": "application/x-www-form-urlencoded"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, {name: value for name, value in sent.items() if value})
        self.answer = connection.getresponse()
        text = self.answer.read().decode()
        connection.close()
        return text

    @property
    def status(self) -> int:
        return self.answer.status

    def enter(self, code: str) -> int:
        """Type the code."""
        self.ask("POST", "/unlock", {"code": code, "to": "/"})
        given = self.answer.getheader("set-cookie") or ""
        self.cookie = given.split(";")[0]
        self.person.wrong = 0 if self.status == 303 else self.person.wrong + 1
        if self.status == 303 or self.person.wrong == TRIES:
            self.person.due += 1
            self.person.wrong = 0
        return self.status

    def form(self, id: str) -> dict[str, str]:
        """The hidden fields of a proposal's form."""
        text = self.ask("GET", f"/proposal/{id}")
        assert self.status == 200, text
        return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', text))


@pytest.fixture
def stranger(person: Any) -> Visitor:
    """Somebody who has not seen the terminal."""
    return Visitor(person.address_and_code()[0], person)


@pytest.fixture
def inside(person: Any, stranger: Visitor) -> Visitor:
    """Whoever typed the code."""
    assert stranger.enter(person.newest_code()) == 303
    return stranger


def decided(project: Path, id: str) -> Any:
    return reviews.find(open_proposal(project / ".samebits" / "jobs" / id))


def test_without_the_code_nothing_is_shown_and_nothing_decided(
    stranger: Visitor, proposed: Callable[..., str], project: Path
) -> None:
    id = proposed()
    for path in ("/", f"/proposal/{id}", "/proposal/x"):
        text = stranger.ask("GET", path)
        assert stranger.status == 401
        assert "rms_norm" not in text
    form = {
        "decision": "approved",
        "note": "",
        "token": "",
        "proposal": open_proposal(project / ".samebits/jobs" / id).digest,
    }
    for cookie in ("", "samebits-review=", "samebits-review=x"):
        stranger.cookie = cookie
        stranger.ask("POST", f"/decide/{id}", form)
        assert stranger.status == 401
    assert decided(project, id) is None


def test_the_code_opens_once_and_five_wrong_ones_make_another(person: Any, stranger: Visitor) -> None:
    code = person.newest_code()
    for _ in range(TRIES):
        assert stranger.enter("AAAA-AAAA") == 401
        assert not stranger.cookie
    assert stranger.enter(code) == 401, "it was replaced"
    fresh = person.newest_code()
    assert fresh != code
    assert stranger.enter(fresh.lower().replace("-", " ")) == 303
    assert stranger.enter(fresh) == 401, "a code opens once"


def test_codes_and_sessions_are_not_alike() -> None:
    shown: list[str] = []
    door = Door(shown.append)
    assert door.enter("") is None, "no code yet: an empty one opens nothing"
    for _ in range(50):
        door.renew()
    cookies = {door.enter(shown[-1]) for _ in range(20)}
    assert None not in cookies
    assert len(cookies) == 20
    assert len(set(shown)) == len(shown) > 60
    tokens = {door.token(cookie) for cookie in cookies}
    assert len(tokens) == 20
    assert door.token("") is door.token(None) is door.token("x") is None


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", "0.0.0.0:{port}", "[::1]:{port}"]
)
def test_another_host_name_is_turned_away(inside: Visitor, host: str) -> None:
    inside.ask("GET", "/", Host=host.format(port=inside.port))
    assert inside.status == 421
    inside.ask("GET", "/", Host=f"localhost:{inside.port}")
    assert inside.status == 200


@pytest.mark.parametrize(
    "origin",
    ["", "null", "https://evil.example", "http://127.0.0.1", "http://localhost:{port}", "https://127.0.0.1:{port}"],
)
def test_a_form_of_another_origin_is_turned_away(
    inside: Visitor, proposed: Callable[..., str], project: Path, origin: str
) -> None:
    id = proposed()
    form = inside.form(id) | {"decision": "approved", "note": ""}
    inside.ask("POST", f"/decide/{id}", form, Origin=origin.format(port=inside.port))
    assert inside.status == 403
    inside.ask("POST", "/unlock", {"code": "x"}, Origin=origin.format(port=inside.port))
    assert inside.status == 403
    assert decided(project, id) is None


def test_a_form_without_the_sessions_own_token_decides_nothing(
    person: Any, inside: Visitor, proposed: Callable[..., str], project: Path
) -> None:
    id = proposed()
    other = Visitor(f"http://127.0.0.1:{inside.port}/", person)
    assert other.enter(person.newest_code()) == 303
    form = inside.form(id) | {"decision": "approved", "note": ""}
    for token in ("", "x", other.form(id)["token"], "\u00e9"):
        inside.ask("POST", f"/decide/{id}", form | {"token": token})
        assert inside.status == 403
    inside.ask("POST", f"/decide/{id}", form | {"decision": "maybe"})
    assert inside.status == 400
    inside.ask("GET", f"/decide/{id}?" + urllib.parse.urlencode(form))
    assert inside.status == 405
    assert decided(project, id) is None


def test_a_decision_is_written_with_its_note_and_shown(
    inside: Visitor, proposed: Callable[..., str], project: Path
) -> None:
    id = proposed()
    inside.ask("POST", f"/decide/{id}", inside.form(id) | {"decision": "approved", "note": "Fine.\r\n<b>Really</b>"})
    assert inside.status == 303
    review = decided(project, id)
    assert (review.decision, review.note, review.surface) == ("approved", "Fine.\n<b>Really</b>", "page")
    text = inside.ask("GET", f"/proposal/{id}")
    assert "<b>Approved</b> by" in text
    assert "&lt;b&gt;Really&lt;/b&gt;" in text


def test_a_rejection_without_a_note_counts_for_nothing_and_keeps_what_was_typed(
    inside: Visitor, proposed: Callable[..., str], project: Path
) -> None:
    id = proposed()
    text = inside.ask("POST", f"/decide/{id}", inside.form(id) | {"decision": "rejected", "note": "  "})
    assert inside.status == 409
    assert "Not decided: a rejection without a note" in text
    assert decided(project, id) is None


def test_what_changed_while_it_was_looked_at_is_not_decided(
    inside: Visitor, proposed: Callable[..., str], project: Path
) -> None:
    id = proposed()
    form = inside.form(id) | {"decision": "approved", "note": "kept"}
    manifest = project / ".samebits" / "jobs" / id / "manifest.json"
    manifest.write_text(manifest.read_text().replace("One order", "Any order"))
    text = inside.ask("POST", f"/decide/{id}", form)
    assert inside.status == 409
    assert "changed while it was looked at" in text
    assert ">kept</textarea>" in text
    assert decided(project, id) is None
    manifest.with_name("change.patch").write_text("")
    text = inside.ask("GET", f"/proposal/{id}")
    assert inside.status == 409
    assert "its bytes are not those the manifest names" in text
    assert "unusable" in inside.ask("GET", "/")


@pytest.mark.parametrize("path", ["../../../etc", "x", "..%2f..%2fetc%2fpasswd", "x/y/z", ".hidden/proposal", "%00"])
def test_only_proposals_of_the_project_are_shown(inside: Visitor, path: str) -> None:
    text = inside.ask("GET", f"/proposal/{path}")
    assert inside.status in (404, 409)
    assert "root:" not in text


def test_a_long_or_unmeasured_body_is_turned_away(inside: Visitor) -> None:
    inside.ask("POST", "/unlock", {"code": "x" * 40_000})
    assert inside.status == 413
    connection = http.client.HTTPConnection("127.0.0.1", inside.port, timeout=120)
    connection.request("POST", "/unlock", iter([b"code=x"]), {"Origin": inside.origin}, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


def test_every_answer_forbids_frames_foreign_code_and_keeping(inside: Visitor, proposed: Callable[..., str]) -> None:
    for path in ("/", f"/proposal/{proposed()}", "/proposal/none"):
        inside.ask("GET", path)
        policy = inside.answer.getheader("content-security-policy") or ""
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert inside.answer.getheader("cache-control") == "no-store"
    assert inside.cookie.startswith("samebits-review=")


def test_it_listens_on_loopback_alone(inside: Visitor) -> None:
    entries = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    listening = [entry[1] for entry in entries if entry[3] == "0A" and int(entry[1].split(":")[1], 16) == inside.port]
    assert [address.split(":")[0] for address in listening] == ["0100007F"]


def test_the_code_and_the_session_are_nowhere_an_agent_can_read(
    person: Any, inside: Visitor, proposed: Callable[..., str], project: Path, home: Path
) -> None:
    id = proposed()
    inside.ask("POST", f"/decide/{id}", inside.form(id) | {"decision": "approved", "note": ""})
    codes = re.findall(r"code: (\S+)\n", person.seen)
    assert codes
    secrets = [word.encode() for code in codes for word in (code, code.replace("-", ""))]
    secrets.append(inside.cookie.partition("=")[2].encode())
    read = [path for folder in (project, home) for path in folder.rglob("*") if path.is_file()]
    read += [Path(f"/proc/{person.process.pid}/{name}") for name in ("cmdline", "environ")]
    assert len(read) > 20
    assert [str(path) for path in read for secret in secrets if secret in path.read_bytes()] == []


def test_a_decision_needs_a_key_that_can_be_written(
    project: Path, proposed: Callable[..., str], monkeypatch: pytest.MonkeyPatch, kit: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match="Next: check the path"):
        kit.review(project / ".samebits" / "jobs" / proposed())
