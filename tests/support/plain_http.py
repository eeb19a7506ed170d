"""HTTP to services of tests, which speak no TLS: for each call of its own functions httpx reads the certificates of all
authorities, 20 ms long."""

import ssl

import httpx

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
# In place of the module `httpx`: each request has a connection of its own, and 20 s.
http = httpx.Client(verify=NO_TLS, timeout=20, limits=httpx.Limits(max_connections=None, max_keepalive_connections=0))
