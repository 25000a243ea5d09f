"""A certificate authority of localbus's own, kept in a folder so that a restart keeps it."""

from __future__ import annotations

import os
import ssl
from pathlib import Path


class ForeignCertificate(ValueError):
    """A file of the folder is not what this server keeps there; the text says which."""


_ISSUER = "pairbus localbus"
HOSTS = ("localhost", "127.0.0.1", "::1")


def server_context(folder: Path, name: str) -> tuple[ssl.SSLContext, Path]:
    """A TLS context, and the file of the CA that clients must trust; made once per folder."""
    folder.mkdir(parents=True, exist_ok=True)
    ca_file, chain = folder / "ca.pem", folder / "server.pem"
    if ca_file.exists() and not chain.exists():  # ours is written last
        raise ForeignCertificate(f"{ca_file} is not localbus's own, since there is no server.pem beside it")
    if chain.exists() and not ca_file.exists() and not _is_ours(chain):
        raise ForeignCertificate(f"{chain} is not localbus's own, since there is no ca.pem beside it")
    if not (ca_file.exists() and chain.exists()):
        import trustme  # a tenth of the time that localbus takes to start, and most never ask for TLS

        authority = trustme.CA(organization_name=_ISSUER)
        leaf = authority.issue_cert(*HOSTS, f"{name}.servicebus.windows.net")
        # The CA's file comes last: where it is, the rest is whole.
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
            f"{chain} holds no certificate with its key that could be used ({error.reason})"
        ) from None
    return context, ca_file


def _is_ours(chain: Path) -> bool:
    """Whether a certificate is one that a localbus has made, and was killed before it could write the CA's file."""
    text = chain.read_text(encoding="utf-8", errors="replace")
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    first = text[text.find(begin) : text.find(end) + len(end)]
    try:
        return _ISSUER.encode() in ssl.PEM_cert_to_DER_cert(first)
    except ValueError:
        return False
