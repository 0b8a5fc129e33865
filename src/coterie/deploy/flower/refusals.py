"""Why a client cannot join a server, in one sentence that says what to do."""

from __future__ import annotations

import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx

from coterie.core.errors import CoterieError

STILL_THERE = 412
"""What Flower answers to a key that it does not know, and to one whose last process it thinks is there: after a kill,
for two heartbeats."""
_FAST_SECONDS, _SLOW_SECONDS = 4.0, 300.0  # what Flower takes is 5 and 305; a Date has no parts of seconds


def turned_away(server: str, response: httpx.Response, has_key: bool, is_there: bool) -> CoterieError:
    """The server does not let this client in; `is_there`: a process of the same client has joined and not left."""
    wrong = _clock(response)
    if wrong and has_key:
        return CoterieError(
            f"{server} turned this client away because this machine's clock is {wrong} the server's; "
            "set the clocks of both (NTP does), then join again."
        )
    if is_there:
        return CoterieError(
            f"{server} says that the client with this key is there already (HTTP {STILL_THERE}); end the other process "
            "that has joined with it, then join again."
        )
    how = "this key" if has_key else "clients without a key"
    twice = has_key and response.status_code == STILL_THERE
    other = ", or, if another process has joined with this one, end that" if twice else ""
    return CoterieError(
        f"{server} turned this client away: it does not accept {how} "
        f"(HTTP {response.status_code}); ask for a key (`coterie certs`) and join with --certs{other}."
    )


def never_reached(server: str, ca: Path | None, error: Exception) -> str:
    """Why waiting for this server will not help; nothing where it may just not be there yet."""
    text = str(error)
    if "not yet valid" in text or "has expired" in text:
        return (
            f"The certificate of {server} is not valid by this machine's clock ({_now():%Y-%m-%d %H:%M} UTC): {text}; "
            f"set the clock, or make new certificates with `coterie certs`."
        )
    if "CERTIFICATE_VERIFY_FAILED" in text or "certificate verify failed" in text:
        return f"{server} is not the server that the CA in {ca} has signed ({text}); check the address and the CA."
    if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError) and ca is None:
        return f"{server} does not answer in plain text; join with --certs if it uses TLS ({text})."
    if "WRONG_VERSION_NUMBER" in text or "record layer failure" in text:
        return f"{server} does not use TLS; start `coterie serve` with --certs, too."
    return ""


def _clock(response: httpx.Response) -> str:
    """How far this machine's clock is from the server's, where that is why a signature is refused (HTTP 401)."""
    try:
        theirs = parsedate_to_datetime(response.headers["date"])
    except (KeyError, ValueError, TypeError):
        return ""
    ahead = (_now() - theirs.astimezone(datetime.UTC)).total_seconds()
    if response.status_code != 401 or -_SLOW_SECONDS < ahead < _FAST_SECONDS:
        return ""
    return f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'}"


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
