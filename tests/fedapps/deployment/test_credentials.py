"""Certificates and node keys for other machines: files, printed instructions and invalid arguments."""

import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from cryptography.x509.oid import ExtensionOID

from fedapps.cli.commands import main
from fedapps.deployment.credentials import Certificates, make_certificates, make_key_pair


def test_certificates_are_for_the_hosts_and_the_loopback(tmp_path, capsys):
    given = ["keys", "certificates", str(tmp_path), "--host", "fl.example.org", "10.0.0.7", "--days", "90"]
    assert main(given) == 0
    certificate = x509.load_pem_x509_certificate((tmp_path / "superlink.crt").read_bytes())
    names = certificate.extensions.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7", "127.0.0.1"]
    until = certificate.not_valid_after_utc
    assert (until - certificate.not_valid_before_utc).days == 90
    assert capsys.readouterr().out.splitlines() == [
        f"certificates for fl.example.org, 10.0.0.7, 127.0.0.1, localhost, valid until {until:%Y-%m-%d}:",
        f"  {tmp_path / 'ca.crt'}: public; copy it to every node and to every machine that calls flwr",
        f"  {tmp_path / 'superlink.crt'}: public; keep it on the SuperLink's machine",
        f"  {tmp_path / 'superlink.key'}: SECRET; keep it on the SuperLink's machine. Anybody who has it can "
        "impersonate the server",
    ]


def test_a_node_key_is_named_after_its_node(tmp_path, capsys):
    assert main(["keys", "node", str(tmp_path / "keys"), "car-7"]) == 0
    assert sorted(path.name for path in (tmp_path / "keys").iterdir()) == ["car-7.key", "car-7.pub"]
    assert stat.S_IMODE((tmp_path / "keys" / "car-7.key").stat().st_mode) == 0o600
    out = capsys.readouterr().out
    assert f"{tmp_path / 'keys' / 'car-7.key'}: SECRET; keep it on the node" in out
    assert f"flwr supernode register {tmp_path / 'keys' / 'car-7.pub'} CONNECTION" in out


def test_existing_keys_are_not_replaced(tmp_path, capsys):
    certificates = ["keys", "certificates", str(tmp_path), "--host", "a"]
    node = ["keys", "node", str(tmp_path), "car-7"]
    assert [main(certificates), main(node)] == [0, 0]
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert [main(certificates), main(node)] == [2, 2]
    err = capsys.readouterr().err
    assert f"{tmp_path / 'superlink.key'} exists: nodes trust the existing ca.crt" in err
    assert f"{tmp_path / 'car-7.key'} exists: the node may be registered with it" in err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", ["ca.crt", "superlink.crt", "car-7.pub"])
def test_a_file_of_another_authority_or_key_is_not_replaced(tmp_path, capsys, name):
    """A node has a ``ca.crt``, and a machine that registers nodes their public keys."""
    (tmp_path / name).write_text("the old one")
    what, *further = ("node", "car-7") if name == "car-7.pub" else ("certificates", "--host", "a")
    assert main(["keys", what, str(tmp_path), *further]) == 2
    assert f"{tmp_path / name} exists: " in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "the old one"


@pytest.mark.parametrize("host", ["https://fl.example.org", "fl.example.org:9092", "", "two words", "-x"])
def test_invalid_hosts_are_refused(tmp_path, capsys, host):
    assert main(["keys", "certificates", str(tmp_path), f"--host={host}"]) == 2
    assert "must be a name or an IP address without scheme and port" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../car", ".car", "two words", "", "a/b"])
def test_invalid_node_names_are_refused(tmp_path, capsys, name):
    assert main(["keys", "node", str(tmp_path), name]) == 2
    assert "must consist of letters, digits, '-', '_' and '.', such as car-7" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def server(tmp_path):
    """Certificates, and the port of a server that uses them."""
    certificates = make_certificates(tmp_path / "certificates")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    listening = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            try:
                context.wrap_socket(connection, server_side=True).close()
            except OSError:
                connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    yield certificates, listening.getsockname()[1]
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join()


def shake_hands(ca: Path, port: int, host: str) -> None:
    context = ssl.create_default_context(cafile=ca)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    with socket.create_connection(("127.0.0.1", port)) as plain, context.wrap_socket(plain, server_hostname=host):
        pass


def test_certificates_are_valid_for_the_loopback_only(server: tuple[Certificates, int]):
    certificates, port = server
    for host in ("127.0.0.1", "localhost"):
        shake_hands(certificates.ca, port, host)
    with pytest.raises(ssl.SSLCertVerificationError, match="example"):
        shake_hands(certificates.ca, port, "example.org")


def test_a_certificate_of_another_authority_is_rejected(server: tuple[Certificates, int], tmp_path: Path):
    _, port = server
    other = make_certificates(tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(other.ca, port, "127.0.0.1")


def test_only_the_owner_can_read_keys_even_if_an_older_file_was_readable(tmp_path: Path):
    (tmp_path / "superlink.key").write_text("open to all")
    (tmp_path / "superlink.key").chmod(0o644)
    secrets = [make_certificates(tmp_path).key, make_key_pair(tmp_path, "robot").private]
    assert [stat.S_IMODE(path.stat().st_mode) for path in secrets] == [0o600, 0o600]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "ca.crt", "robot.key", "robot.pub", "superlink.crt", "superlink.key"
    ]  # fmt: skip


def test_certificates_need_hosts_and_days(tmp_path: Path):
    with pytest.raises(ValueError, match="hosts is empty"):
        make_certificates(tmp_path, hosts=[])
    for days in (0, 10**8):
        with pytest.raises(ValueError, match=f"days = {days}: must be at least 1 and at most 365000"):
            make_certificates(tmp_path, days=days)
    assert make_certificates(tmp_path, days=365_000).ca.exists()


def test_a_key_pair_has_the_format_that_flower_reads(tmp_path: Path):
    pair = make_key_pair(tmp_path)
    private = load_ssh_private_key(pair.private.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(private.curve, ec.SECP384R1)
    assert load_ssh_public_key(pair.public.read_bytes()) == private.public_key()
    assert make_key_pair(tmp_path / "other").public.read_bytes() != pair.public.read_bytes()
