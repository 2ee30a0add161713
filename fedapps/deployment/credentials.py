"""Credentials of a deployment: the TLS certificates of a SuperLink and the keys of nodes."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from logging import WARNING
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from flwr.common import log

LOOPBACK = ("127.0.0.1", "localhost")
#: The longest validity of a certificate in days, about a thousand years: dates end with the year 9999.
_MOST_DAYS = 365_000
#: Days before the end of a certificate in which its users are warned.
_DAYS_OF_WARNING = 60
_RENEW = (
    "make new ones on the server with `fedapps keys certificates NEW-FOLDER --host ...`, and give the new ca.crt to "
    "every node (docs/deployment.md, Replace the certificate of the server)"
)
_HOST = re.compile(r"[A-Za-z0-9*][A-Za-z0-9.-]*")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Certificates:
    """Paths of PEM files.

    Attributes
    ----------
    ca : Path
        Certificate of the authority, which SuperNodes and ``flwr`` trust.
    certificate, key : Path
        Certificate and private key of the SuperLink.
    """

    ca: Path
    certificate: Path
    key: Path

    def superlink_options(self) -> list[str]:
        """The options of ``flower-superlink`` that name these files."""
        return [
            "--ssl-ca-certfile",
            str(self.ca),
            "--ssl-certfile",
            str(self.certificate),
            "--ssl-keyfile",
            str(self.key),
        ]


@dataclass(frozen=True)
class KeyPair:
    """OpenSSH files: the private key of a SuperNode, and the public key to register with the SuperLink."""

    private: Path
    public: Path


def make_certificates(folder: Path, hosts: Sequence[str] = LOOPBACK, days: int = 30) -> Certificates:
    """Write ``ca.crt``, ``superlink.crt`` and ``superlink.key``, and replace existing files of these names.

    The private key of the CA is never written to disk, so nobody can sign other certificates with it. To renew a
    certificate, make a new set and distribute the new ``ca.crt``.

    Parameters
    ----------
    folder : Path
        Where to write the files; created if missing.
    hosts : sequence of str
        Names and IP addresses by which SuperNodes and ``flwr`` reach the SuperLink.
    days : int
        Validity in days, at least 1.

    Raises
    ------
    ValueError
        If ``hosts`` is empty, or ``days`` is out of range.
    """
    if not hosts:
        raise ValueError("hosts is empty: give the names or IP addresses by which the SuperLink is reached")
    if not 1 <= days <= _MOST_DAYS:
        raise ValueError(f"days = {days}: must be at least 1 and at most {_MOST_DAYS}")
    folder.mkdir(parents=True, exist_ok=True)
    authority_key, key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority = _authority(authority_key, days)
    certificate = _server(key, hosts, days, authority, authority_key)
    files = Certificates(folder / "ca.crt", folder / "superlink.crt", folder / "superlink.key")
    files.ca.write_bytes(authority.public_bytes(Encoding.PEM))
    files.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
    write_secret(files.key, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return files


def make_key_pair(folder: Path, name: str = "supernode") -> KeyPair:
    """Write a P-384 key pair, ``name.key`` and ``name.pub``, into ``folder``; existing files are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    pair = KeyPair(folder / f"{name}.key", folder / f"{name}.pub")
    write_secret(pair.private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    pair.public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return pair


def issue_certificates(folder: Path, hosts: Sequence[str], days: int) -> str:
    """Write the certificates of a SuperLink into ``folder``.

    They are also valid for the loopback addresses, which ``flwr`` and the SuperLink's child processes use on the
    same machine.

    Parameters
    ----------
    folder : Path
        Where to write the files; created if missing.
    hosts : sequence of str
        Host names and IP addresses of the SuperLink.
    days : int
        Validity in days, at least 1.

    Returns
    -------
    str
        Text that lists the files and where each belongs.

    Raises
    ------
    ValueError
        If a host is neither a name nor an IP address, ``days`` is below 1, or ``folder`` already has certificates.
    """
    for host in hosts:
        _check_host(host)
    named = [*dict.fromkeys([*hosts, *LOOPBACK])]
    for name in ("superlink.key", "superlink.crt", "ca.crt"):
        _refuse_to_replace(
            folder / name, "nodes trust the existing ca.crt, so write the new certificates to a new folder"
        )
    files = make_certificates(folder, named, days)
    until = datetime.now(UTC) + timedelta(days=days)
    return "\n".join(
        [
            f"certificates for {', '.join(named)}, valid until {until:%Y-%m-%d}:",
            f"  {files.ca}: public; copy it to every node and to every machine that calls flwr",
            f"  {files.certificate}: public; keep it on the SuperLink's machine",
            f"  {files.key}: SECRET; keep it on the SuperLink's machine. Anybody who has it can impersonate the server",
        ]
    )


def issue_node_key(folder: Path, name: str) -> str:
    """Write the key pair of the node ``name`` into ``folder``.

    Returns
    -------
    str
        Text that lists the files and where each belongs.

    Raises
    ------
    ValueError
        If ``name`` has other characters than letters, digits, '-', '_' and '.', or ``folder`` already has its key.
    """
    if not _NODE.fullmatch(name):
        raise ValueError(f"NAME = {name!r}: must consist of letters, digits, '-', '_' and '.', such as car-7")
    for suffix in (".key", ".pub"):
        _refuse_to_replace(
            folder / f"{name}{suffix}",
            f"the node may be registered with it; give the new key another name, such as {name}-2",
        )
    pair = make_key_pair(folder, name)
    return "\n".join(
        [
            f"key pair of the node {name}:",
            f"  {pair.private}: SECRET; keep it on the node. Anybody who has it can impersonate the node",
            f"  {pair.public}: public; copy it to a machine that calls flwr, and register the node there:",
            f"    flwr supernode register {pair.public} CONNECTION",
        ]
    )


def check_expiry(certificates: Sequence[x509.Certificate], named: str) -> None:
    """Check that not all certificates have expired, and warn in the last 60 days of the one that lasts longest.

    Parameters
    ----------
    certificates : sequence of Certificate
        Those of one file, at least one.
    named : str
        What names the file, for the messages.

    Raises
    ------
    ValueError
        All have expired.
    """
    until, now = max(one.not_valid_after_utc for one in certificates), datetime.now(UTC)
    if until <= now:
        raise ValueError(f"{named}: expired on {until:%Y-%m-%d}; {_RENEW}")
    if until - now < timedelta(days=_DAYS_OF_WARNING):
        log(WARNING, "%s: expires on %s, and then no node can connect; before that, %s", named, until.date(), _RENEW)


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read (mode 0600 from its creation on)."""
    path.unlink(missing_ok=True)  # an existing file may have wider permissions
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _check_host(host: str) -> None:
    """Raise ``ValueError`` if ``host`` is neither a name nor an IP address, e.g. a URL or an address with a port."""
    try:
        ip_address(host)
    except ValueError:
        if not _HOST.fullmatch(host):
            raise ValueError(
                f"--host {host!r}: must be a name or an IP address without scheme and port, such as fl.example.org"
            ) from None


def _refuse_to_replace(path: Path, advice: str) -> None:
    if path.exists():
        raise ValueError(f"{path} exists: {advice}")


def _authority(key: ec.EllipticCurvePrivateKey, days: int) -> x509.Certificate:
    name = _name("fedapps authority")
    return (
        _signed_for(name, key, name, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )


def _server(
    key: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
    days: int,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    return (
        _signed_for(_name("fedapps SuperLink"), key, authority.subject, authority_key, days)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )


def _signed_for(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    days: int,
) -> x509.CertificateBuilder:
    """The fields common to both certificates. They are valid from an hour ago, to allow for clock differences."""
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
