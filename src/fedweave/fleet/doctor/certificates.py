"""Judge the certificate of a server: its dates, its names and who signed it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from fedweave.fleet.doctor.expected import Expected
from fedweave.fleet.doctor.finding import Finding
from fedweave.fleet.doctor.probe import Facts

SOON = timedelta(days=30)


def judge_certificate(facts: Facts, expected: Expected) -> Iterator[Finding]:
    """Judge a certificate: dates, name and signature, and the dates of the given roots."""
    certificate, here = facts.certificate, str(facts.address)
    renew = "Create new certificates (fedweave flower keys), give ca.crt to every node, restart the SuperLink."
    if certificate is None:
        yield Finding("unknown", "certificate", here, "The certificate could not be read.", "Try again.")
        return
    problems = [_dates(certificate, "The certificate", here, renew)]
    if expected.roots:
        roots = x509.load_pem_x509_certificates(Path(expected.roots).read_bytes())
        problems += [_dates(root, "A root certificate that was given", here, renew) for root in roots]
        if facts.untrusted is None:
            what = "Whether the certificate is signed by the given root could not be found out."
            problems.append(Finding("unknown", "certificate", here, what, "Try again."))
        elif facts.untrusted:
            what = f"The certificate is not signed by the given root: {facts.untrusted}."
            mend = "Give every node the ca.crt that was created with server.pem; if it did, somebody else answers here."
            problems.append(Finding("critical", "certificate", here, what, mend))
    if not is_made_for(certificate, facts.address.host):
        what = f"The certificate is not made for {facts.address.host}, so nodes and users refuse it at this address."
        mend = f"Create certificates with --host {facts.address.host}, or connect to a name that it has."
        problems.append(Finding("critical", "certificate", here, what, mend))
    found = [p for p in problems if p]
    yield from found
    if not expected.roots:
        what = "Who signed the certificate was not checked."
        yield Finding("unknown", "certificate", here, what, "Give --root-certificates ca.crt.")
    elif not found:
        last = f"{certificate.not_valid_after_utc:%Y-%m-%d}"
        yield Finding("ok", "certificate", here, f"The certificate is signed by the given root and valid until {last}.")


def _dates(certificate: x509.Certificate, which: str, here: str, mend: str) -> Finding | None:
    now, end = datetime.now(UTC), certificate.not_valid_after_utc
    if now > end:
        return Finding("critical", "certificate", here, f"{which} expired on {end:%Y-%m-%d}.", mend)
    if now < certificate.not_valid_before_utc:
        what = f"{which} is valid only from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC."
        return Finding("critical", "certificate", here, what, "Set the clocks, or create another one.")
    if end - now < SOON:
        return Finding("warning", "certificate", here, f"{which} expires on {end:%Y-%m-%d}.", mend)
    return None


def is_made_for(certificate: x509.Certificate, host: str) -> bool:
    """Whether a certificate is made for a host."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    try:
        return ipaddress.ip_address(host) in names.get_values_for_type(x509.IPAddress)
    except ValueError:
        wanted = host.lower().rstrip(".")
        dns = [name.lower() for name in names.get_values_for_type(x509.DNSName)]
        return wanted in dns or f"*.{wanted.partition('.')[2]}" in dns
