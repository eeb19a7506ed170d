"""Who sends a request, as far as its connection and its headers tell.

A browser sends what any page tells it to, from its user's machine, so a port that only this machine reaches is open to
every page that is read here. But the browser says which page sends (`Origin`, `Sec-Fetch-Site`), and the name that the
page asked for (`Host`), which shows the names that their owners let DNS lead here ("DNS rebinding"). With API keys none
of this is looked at: no page has a key, and browsers attach none. The sender's address is for logs, and for shares.
"""

import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import Scope

from scheduler_svc.frontend.errors import ApiError
from scheduler_svc.frontend_options import Network

VISITED_PATHS = ("/", "/docs")  # pages for people, to which pages of other sites may have links
OTHER_SITES = ("cross-site", "same-site")  # of Sec-Fetch-Site; to browsers all ports of a host are one site
PROXY_HEADERS = frozenset(
    (
        *("forwarded", "via", "cdn-loop"),  # RFC 7239, RFC 9110, RFC 8586
        *("x-real-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip", "cf-connecting-ip", "fastly-client-ip"),
        *("x-original-forwarded-for", "x-original-host", "x-scheme", "x-envoy-external-address"),
    )
)
PROXY_PREFIX = "x-forwarded-"
MAX_SHOWN_CHARACTERS = 253  # the longest name that DNS has
FORWARDED_FOR = "x-forwarded-for"
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+?)\.?)(?::[0-9]*)?", re.ASCII)


@dataclass(frozen=True)
class Callers:
    """Keep foreign names and foreign pages out of a service without API keys.

    Attributes:
        hosts: names in lower case by which the service may be asked for, beside addresses and names of loopback; None
            for every name.
        origins: those whose pages may use the service; "*" for all.
        trusted_proxies: networks of proxies that are believed whom they ask for.
    """

    hosts: frozenset[str] | None = None
    origins: tuple[str, ...] = ()
    trusted_proxies: Sequence[Network] = ()

    def check(self, scope: Scope, headers: Headers) -> None:
        """Raise ApiError for a request under a name that is not the service's, and for one by a foreign page."""
        host = headers.get("host", "")
        if not self._is_served(host):
            raise _host_not_allowed(host)
        if self._is_by_foreign_page(scope, headers):
            raise _origin_not_allowed(headers.get("origin", "null"))

    def network_of(self, scope: Scope) -> str:
        """Return the network whose requests count as one client's: an IPv4 address, or the /64 of an IPv6 address,
        because one machine may have all of that. Empty for a connection without an address."""
        address = _address(client_address(scope, self.trusted_proxies))
        if isinstance(address, ipaddress.IPv6Address):
            return str(ipaddress.IPv6Network((int(address), 64), strict=False))
        return str(address or "")

    def _is_served(self, host: str) -> bool:
        name = host_name(host)
        return self.hosts is None or name in self.hosts or _is_loopback_name(name) or _address(name) is not None

    def _is_by_foreign_page(self, scope: Scope, headers: Headers) -> bool:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if "*" in self.origins or origin in self.origins:
            return False
        # A proxy may send another Host; then the browser's word is all that shows the service's own page.
        if origin is not None and site != "same-origin" and not _is_own(origin, headers):
            return True
        return site in OTHER_SITES and not _is_visit(scope, headers)


def served_hosts(listener: socket.socket, allowed: tuple[str, ...]) -> frozenset[str] | None:
    """Return the names by which a service may be asked for; None for every name.

    Where other machines reach the service, DNS or a cluster names it: every name is taken, unless some are allowed.

    Args:
        listener: of the service.
        allowed: names that the operator allows.
    """
    address = listener.getsockname()  # a text or bytes for a Unix socket
    if isinstance(address, tuple) and not is_loopback(address[0]) and not allowed:
        return None
    names = (host_name(name) for name in (socket.gethostname(), *allowed))
    return frozenset(name for name in names if name)  # a machine may have a name that no `Host` can have


def is_this_machine(scope: Scope, headers: Headers) -> bool:
    """Tell whether the sender is on this machine and sends for itself: not a proxy for its client, nor a browser for a
    page of another service."""
    origin = headers.get("origin")
    name = host_name(headers.get("host", ""))
    peer, _ = scope.get("client") or ("", 0)
    return (
        is_loopback(peer)
        and (_is_loopback_name(name) or is_loopback(name))
        and (origin is None or _is_own(origin, headers))
        and not _is_by_proxy(scope, headers)
    )


def client_address(scope: Scope, trusted: Sequence[Network]) -> str:
    """Return the address that a request comes from, empty where its connection has none.

    A proxy's own address says nothing of its clients. One that is trusted is believed the last entry of
    X-Forwarded-For, which it has added itself; what stands before that entry is what any client may have sent.

    Args:
        trusted: networks of proxies.
    """
    peer, _ = scope.get("client") or ("", 0)
    address = _address(peer)
    if address is None or not any(address in network for network in trusted):
        return str(address or peer)
    said = Headers(scope=scope).getlist(FORWARDED_FOR)
    last = said[-1].rpartition(",")[2].strip() if said else ""
    return str(_address(last) or _address(host_name(last)) or address)  # some proxies add a port


def host_name(host: str) -> str:
    """Return the name or address in a `Host`, in lower case, without brackets, port and the dot that may end a name;
    empty if the value is not a host."""
    found = _HOST.fullmatch(host.lower())
    return (found[1] or found[2]) if found else ""


def is_loopback(address: str) -> bool:
    """Tell whether this is an address that only this machine reaches."""
    found = _address(address)
    return found is not None and found.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address  # how a socket for both sees IPv4


def _is_loopback_name(name: str) -> bool:
    return name == "localhost" or name.endswith(".localhost")  # RFC 6761: DNS is not asked


def _is_own(origin: str, headers: Headers) -> bool:
    host = headers.get("host", "").lower()
    return origin in (f"http://{host}", f"https://{host}")


def _is_visit(scope: Scope, headers: Headers) -> bool:
    """Tell whether a browser opens one of the pages for people, in a tab."""
    return (
        scope["method"] == "GET"
        and scope["path"] in VISITED_PATHS
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )


def _is_by_proxy(scope: Scope, headers: Headers) -> bool:
    """Tell whether a proxy has left a mark. One is HTTP/1.0, in which nginx asks by default and clients do not."""
    has_mark = any(name in PROXY_HEADERS or name.startswith(PROXY_PREFIX) for name in headers)
    return has_mark or scope["http_version"] == "1.0"


def _host_not_allowed(host: str) -> ApiError:
    name = host_name(host)[:MAX_SHOWN_CHARACTERS]
    message = (
        "This service has no API keys, so it answers only to an address, localhost, the machine's name and each "
        f"--allowed-host, and not to {host[:MAX_SHOWN_CHARACTERS]!r}. If that is one of its names (a proxy may pass it "
        f"on), start it with --allowed-host {name or 'NAME'}."
    )
    return ApiError(403, message, code="host_not_allowed")


def _origin_not_allowed(origin: str) -> ApiError:
    shown = origin[:MAX_SHOWN_CHARACTERS]
    page, option = ("pages of other sites", "ORIGIN") if origin == "null" else (f"pages of {shown}", shown)
    message = (
        f"This service has no API keys, so it does not take requests by {page}. If such a page may use it, start it "
        f"with --cors-origin {option}. If that is the service's own page behind a proxy, let the proxy pass Host on "
        "unchanged, and start the service with --allowed-host NAME."
    )
    return ApiError(403, message, code="origin_not_allowed")
