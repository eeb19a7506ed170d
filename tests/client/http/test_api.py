"""How the client reaches a service."""

import ssl

import pytest

from scheduler_svc.client.http.api import trusted
from scheduler_svc.client.service_address import ServiceAddress


@pytest.mark.parametrize("url", ["https://box", "HTTPS://box:8000"])
def test_a_service_with_tls_is_trusted_as_httpx_decides(url):
    assert trusted(ServiceAddress(url)) is True


def test_without_tls_no_certificate_is_read_and_none_would_be_trusted():
    context = trusted(ServiceAddress("http://box"))
    assert context.cert_store_stats()["x509"] == 0
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
