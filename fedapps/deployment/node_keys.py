"""Key pairs by which a SuperLink authenticates SuperNodes, in the format that Flower expects."""

from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from .certificates import write_secret


@dataclass(frozen=True)
class KeyPair:
    """OpenSSH files: the private key of a SuperNode, and the public key to register with the SuperLink."""

    private: Path
    public: Path


def make_key_pair(folder: Path, name: str = "supernode") -> KeyPair:
    """Write a P-384 key pair, ``name.key`` and ``name.pub``, into ``folder``; existing files are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    pair = KeyPair(folder / f"{name}.key", folder / f"{name}.pub")
    write_secret(pair.private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    pair.public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return pair
