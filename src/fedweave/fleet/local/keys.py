"""Create the TLS certificates and node keys of a fleet."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Key = ec.EllipticCurvePrivateKey


class ServerFiles(NamedTuple):
    """What the SuperLink needs; ``ca`` also goes to every node."""

    ca: Path
    certificate: Path
    key: Path


def server_files(folder: Path, hosts: Sequence[str], days: int = 365) -> ServerFiles:
    """Create a certificate authority and a server certificate for these host names and addresses.

    The authority signs this one certificate and its key is not stored, so that no other can be signed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority, key = _new_key(), _new_key()
    root = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedweave fleet")])
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
    of_authority = (
        _certificate(root, root, authority, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA256())
    )
    of_server = (
        _certificate(name, root, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_host(h) for h in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA256())
    )
    files = ServerFiles(folder / "ca.crt", folder / "server.pem", folder / "server.key")
    files.ca.write_bytes(of_authority.public_bytes(Encoding.PEM))
    files.certificate.write_bytes(of_server.public_bytes(Encoding.PEM))
    _write_secret(files.key, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return files


def node_key(folder: Path, name: str) -> Path:
    """Create a node's key pair, NAME and NAME.pub, and return the private one; the public one is to be registered."""
    folder.mkdir(parents=True, exist_ok=True)
    key, path = _new_key(), folder / name
    _write_secret(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    path.with_name(f"{name}.pub").write_bytes(public + b"\n")
    return path


def _new_key() -> Key:
    return ec.generate_private_key(ec.SECP384R1())


def _certificate(subject: x509.Name, issuer: x509.Name, key: Key, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    rest = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only"), False
    )
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        decipher_only=False,
        **rest,
    )


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read from the moment it exists."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
