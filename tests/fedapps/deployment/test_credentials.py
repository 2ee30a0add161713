"""Certificates and node keys for other machines: files, printed instructions and invalid arguments."""

import stat

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtensionOID

from fedapps.cli.commands import main


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


def test_days_are_at_least_one(tmp_path, capsys):
    assert main(["keys", "certificates", str(tmp_path), "--host", "a", "--days", "0"]) == 2
    assert "days = 0: must be at least 1" in capsys.readouterr().err
