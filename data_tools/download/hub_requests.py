"""Requests to the hub: retries with exponential backoff, and a `DataError` for every kind of failure.

All requests use `huggingface_hub`'s session, so that its environment applies: `HF_ENDPOINT`, `HF_HOME`, `HF_TOKEN`,
`HF_HUB_OFFLINE`, `HF_HUB_DOWNLOAD_TIMEOUT`, proxies and certificates.
"""

from __future__ import annotations

import email.utils
import importlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers, fix_hf_endpoint_in_url, get_session, hf_raise_for_status

from efficientbench.basics.errors import DataError, first_line
from efficientbench.data_tools.download.hub_names import is_of_modelscope, modelscope_endpoint, without_secrets

RETRIED_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses that are retried: timeouts, too many requests, and failures of the server or of those behind it."""

NO_NETWORK = (
    ": is there a network here? HTTPS_PROXY names a proxy, HF_ENDPOINT=https://hf-mirror.com a mirror of the hub, "
    "modelscope:OWNER/NAME one of ModelScope's names; files that are here already need none: efficientbench-data "
    "tokenize FILES"
)
"""Hint for a server that cannot be reached."""

OLD_LIBRARY = (
    "downloads need huggingface_hub 1.0 or newer, and {} is installed, as transformers 4 wants it: prepare the data in "
    "another environment, where python3 -m pip install 'efficientbench[data]' ran, and copy it"
)
"""Error for huggingface_hub below 1.0, which uses `requests`, with other streams and errors."""

MOST_PAGES = 1000
"""Most pages of a listing; a page of the hub has 1,000 files."""
LONGEST_LIST_BYTES = 64 << 20
"""Largest size of one page."""
SLOWEST_BYTES_S = 1000.0
RATE_WINDOW_S = 60.0
"""Seconds for which a server may stay below `SLOWEST_BYTES_S` bytes a second."""

Result = TypeVar("Result")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Patience:
    """How often, and after which waits, a failed request is retried."""

    attempts: int = 6
    """Consecutive failures, without a new byte in between, after which the download fails."""
    first_wait_s: float = 1.0
    """The wait after the first failure; it doubles with each further failure."""
    longest_wait_s: float = 60.0
    """The longest wait, unless the server asks for a longer one."""
    longest_retry_after_s: float = 900.0
    """The longest wait that a server may ask for (`Retry-After`); if it asks for more, the download fails."""


class TryAgainError(Exception):
    """A transient failure; `wait_s` is the wait that the server asks for, in seconds, or None."""

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class NoConnectionError(TryAgainError):
    """The server cannot be reached at all."""


class TooSlowError(TryAgainError):
    """The server sends so few bytes that they are no progress."""


class HubUnreachableError(DataError):
    """The hub does not respond: no network, a server that keeps failing, or offline mode."""


class StoppedError(Exception):
    """Another transfer failed or was interrupted, so this one stops."""


def retry(what: str, request: Callable[[], Result], patience: Patience) -> Result:
    """Call `request` until it no longer raises `TryAgainError`, and return its result; `what` names it in messages.

    Raises:
        HubUnreachableError: all attempts failed.
    """
    for failures in range(1, patience.attempts + 1):
        try:
            return request()
        except TryAgainError as error:
            wait_or_give_up(what, error, failures, patience, threading.Event())
    raise AssertionError("unreachable: the last failure gives up")


def wait_or_give_up(what: str, error: TryAgainError, failures: int, patience: Patience, stop: threading.Event) -> None:
    """Wait before the next attempt, after `failures` consecutive failures.

    Raises:
        HubUnreachableError: no attempt is left, or the server asks for more than `longest_retry_after_s`.
        StoppedError: `stop` was set.
    """
    if failures >= patience.attempts:
        hint = NO_NETWORK if isinstance(error, NoConnectionError) else ""
        raise HubUnreachableError(f"{what}: {error} ({failures} attempts in a row){hint}") from None
    own_wait_s: float = min(patience.first_wait_s * 2 ** (failures - 1), patience.longest_wait_s)
    wait_s = own_wait_s if error.wait_s is None else error.wait_s
    if wait_s > patience.longest_retry_after_s:
        raise HubUnreachableError(f"{what}: {error}, and asks to wait {wait_s:,.0f} s: call again then") from None
    logger.warning("%s: %s; next attempt in %.0f s", what, error, wait_s)
    if stop.wait(wait_s):
        raise StoppedError


def json_pages(url: str, params: dict[str, Any] | None) -> Iterator[Any]:
    """Yield the JSON content of a paginated address of the hub, page by page. HTTP errors are the library's own.

    The library's own function is not used: it retries by itself, and sends the token to whatever address a page names.

    Raises:
        DataError: there are more than `MOST_PAGES` pages, or one is larger than `LONGEST_LIST_BYTES`.
    """
    following = url
    for _ in range(MOST_PAGES):
        response = _get(following, params)
        yield response.json()
        params = None  # the address of the next page holds them
        link = response.links.get("next", {}).get("url")
        if link is None:
            return
        following = str(fix_hf_endpoint_in_url(link, endpoint=None))
    raise DataError(f"{urlsplit(url).hostname} lists files on more than {MOST_PAGES:,} pages: is HF_ENDPOINT a mirror?")


def _get(url: str, params: dict[str, Any] | None) -> Any:
    """Return a response of the hub with its content; refuse one that is too large or too slow."""
    timeout_s = constants.HF_HUB_DOWNLOAD_TIMEOUT
    request = get_session().stream("GET", url, params=params, headers=headers_for(url), timeout=timeout_s)
    content = bytearray()
    with request as response:
        for chunk in not_too_slow(response.iter_bytes()):
            content += chunk
            if len(content) > LONGEST_LIST_BYTES:
                raise DataError(f"{urlsplit(url).hostname} lists files in more than {LONGEST_LIST_BYTES:,} bytes")
    whole = type(response)(
        response.status_code, headers=response.headers, content=bytes(content), request=response.request
    )
    hf_raise_for_status(whole)
    return whole


def not_too_slow(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the chunks of a response's body.

    Raises:
        TooSlowError: the server sent fewer than `SLOWEST_BYTES_S` bytes a second for `RATE_WINDOW_S`.
    """
    begin_s, received_bytes = time.monotonic(), 0
    for chunk in chunks:
        received_bytes += len(chunk)
        yield chunk
        passed_s = time.monotonic() - begin_s
        if passed_s >= RATE_WINDOW_S:
            if received_bytes < SLOWEST_BYTES_S * passed_s:
                raise TooSlowError(f"the server sends {received_bytes / passed_s:,.0f} bytes a second")
            begin_s, received_bytes = time.monotonic(), 0


def headers_for(url: str) -> dict[str, str]:
    """Return the request headers for an address; only the hub gets the token, not the storage that it redirects to."""
    ours = urlsplit(url)[:2] == urlsplit(constants.ENDPOINT)[:2]
    headers: dict[str, str] = build_hf_headers(token=None if ours else False)
    headers["Accept-Encoding"] = "identity"  # else sizes and positions are those of compressed content
    return headers


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the wait that a response asks for, in seconds, or None.

    The response has `Retry-After` in seconds or as a date (RFC 9110, 10.2.3), or the hub's `RateLimit: "api";r=0;t=55`.
    """
    value = headers.get("Retry-After", "").strip()
    if value.isdigit():
        return float(value)
    if value:
        try:
            return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
        except ValueError:
            return None
    limit = re.search(r"\br=0\s*;\s*t=(\d+)", headers.get("RateLimit", ""))
    return float(limit[1]) if limit else None


@contextmanager
def hub_errors_explained(repository: str, revision: str) -> Iterator[None]:
    """Turn an error of a request to the hub into a `TryAgainError`, or into a `DataError` that says what would help."""
    # The HTTP library below `huggingface_hub`, for its error classes: httpx, or in later versions httpx2.
    http = importlib.import_module(type(get_session()).__module__.partition(".")[0])
    if http.__name__ == "requests":
        raise DataError(OLD_LIBRARY.format(huggingface_hub.__version__))
    of_modelscope = is_of_modelscope(repository)
    endpoint = modelscope_endpoint() if of_modelscope else without_secrets(constants.ENDPOINT)
    setting = "MODELSCOPE_ENDPOINT" if of_modelscope else "HF_ENDPOINT"
    host = urlsplit(endpoint).hostname
    where = f"{repository!r} at {host}" if of_modelscope else f"dataset {repository!r} at {host}"
    try:
        yield
    except DataError:
        raise
    except HFValidationError:
        raise DataError(f"{repository!r} cannot be the name of a dataset on the hub: give OWNER/NAME") from None
    except OfflineModeIsEnabled:
        raise HubUnreachableError(f"{where} cannot be reached: HF_HUB_OFFLINE is set") from None
    except GatedRepoError:
        raise DataError(
            f"{where} is gated: accept its terms on its page, and set HF_TOKEN to a token of that account"
        ) from None
    except RepositoryNotFoundError:
        raise DataError(f"{where}: no such dataset, or it wants a token (HF_TOKEN)") from None
    except RevisionNotFoundError:
        raise DataError(
            f"{where} has no revision {revision!r}: give a branch, a tag or a commit (--revision)"
        ) from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        reason = f"the server answers {status}"
        if status in RETRIED_STATUSES:
            raise TryAgainError(reason, retry_after_s(error.response.headers)) from None
        raise DataError(f"{where}: {reason}: {without_secrets(first_line(error))}") from None
    except (http.UnsupportedProtocol, http.InvalidURL):
        raise DataError(f"{setting} is {endpoint!r}, which is no address: it looks like https://hub.example") from None
    except (http.ConnectError, http.ConnectTimeout) as error:
        reason = without_secrets(first_line(error)) or type(error).__name__
        raise NoConnectionError(f"{host} cannot be reached: {reason}") from None
    except http.TransportError as error:
        raise TryAgainError(f"{type(error).__name__}: {without_secrets(first_line(error))}") from None
    except http.RequestError as error:
        raise DataError(f"{where}: {type(error).__name__}: {without_secrets(first_line(error))}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{where} sends a response unlike the hub's ({type(error).__name__}): is {setting} a mirror?"
        ) from None
