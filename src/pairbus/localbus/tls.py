"""localbus's own certificate authority and server certificate, kept in a folder so that restarts reuse them."""

from __future__ import annotations

import os
import ssl
from pathlib import Path


class ForeignCertificate(ValueError):
    """A file in the certificate folder was not written by localbus; the text names the file."""


_ISSUER = "pairbus localbus"
HOSTS = ("localhost", "127.0.0.1", "::1")


def server_context(folder: Path, name: str) -> tuple[ssl.SSLContext, Path]:
    """Return a TLS context and its CA file, made if missing; raise `ForeignCertificate` for certificates of others."""
    folder.mkdir(parents=True, exist_ok=True)
    ca_file, chain = folder / "ca.pem", folder / "server.pem"
    if ca_file.exists() and not chain.exists():  # localbus writes ca.pem last
        raise ForeignCertificate(f"{ca_file} was not written by localbus, since there is no server.pem beside it")
    if chain.exists() and not ca_file.exists() and not _is_ours(chain):
        raise ForeignCertificate(f"{chain} was not written by localbus, since there is no ca.pem beside it")
    if not (ca_file.exists() and chain.exists()):
        import trustme  # here, because the import is a tenth of the start and is needed once per folder

        authority = trustme.CA(organization_name=_ISSUER)
        leaf = authority.issue_cert(*HOSTS, f"{name}.servicebus.windows.net")
        # The CA file is written last: if it exists, server.pem is complete.
        part = folder / "server.pem.part"
        private = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(private, "wb") as out:
            out.write(leaf.private_key_pem.bytes())
            for certificate in leaf.cert_chain_pems:
                out.write(certificate.bytes())
        part.replace(chain)
        authority.cert_pem.write_to_path(str(ca_file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(chain)
    except ssl.SSLError as error:
        raise ForeignCertificate(
            f"{chain} does not contain a usable certificate with its key ({error.reason})"
        ) from None
    return context, ca_file


def _is_ours(chain: Path) -> bool:
    """Return True for a certificate of a localbus that was killed before it could write the CA file."""
    text = chain.read_text(encoding="utf-8", errors="replace")
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    first = text[text.find(begin) : text.find(end) + len(end)]
    try:
        return _ISSUER.encode() in ssl.PEM_cert_to_DER_cert(first)
    except ValueError:
        return False
