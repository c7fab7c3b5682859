"""Sealed messages in plain integers and the standard library's hash: slow, not constant in time, obvious.

RFC 7748 (X25519), RFC 5869 (HKDF), RFC 8439 (ChaCha20-Poly1305), and the construction of `silosynth.privacy.sealed`.
"""

from __future__ import annotations

import hmac

P = 2**255 - 19
MASK = 2**32 - 1


def x25519(private: bytes, public: bytes) -> bytes:
    """RFC 7748, section 5: the Montgomery ladder."""
    k = int.from_bytes(private, "little") & ~7 & ~(1 << 255) | 1 << 254
    x1 = int.from_bytes(public, "little") & (1 << 255) - 1
    x2, z2, x3, z3 = 1, 0, x1, 1
    for bit in reversed(range(255)):
        if swapped := k >> bit & 1:
            x2, z2, x3, z3 = x3, z3, x2, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        aa, bb, da, cb = a * a % P, b * b % P, d * a % P, c * b % P
        e = aa - bb
        x3, z3 = (da + cb) ** 2 % P, x1 * (da - cb) ** 2 % P
        x2, z2 = aa * bb % P, e * (aa + 121665 * e) % P
        if swapped:
            x2, z2, x3, z3 = x3, z3, x2, z2
    return (x2 * pow(z2, P - 2, P) % P).to_bytes(32, "little")


def public(private: bytes) -> bytes:
    return x25519(private, bytes([9]) + bytes(31))


def hkdf(secret: bytes, info: bytes, salt: bytes = b"", length: int = 32) -> bytes:
    """RFC 5869 with SHA-256."""
    key, block, out = hmac.digest(salt, secret, "sha256"), b"", b""
    for number in range(1, -(-length // 32) + 1):
        block = hmac.digest(key, block + info + bytes([number]), "sha256")
        out += block
    return out[:length]


def chacha20_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    """RFC 8439, section 2.3."""
    raw = b"expand 32-byte k" + key + counter.to_bytes(4, "little") + nonce
    start = [int.from_bytes(raw[i : i + 4], "little") for i in range(0, 64, 4)]
    s = list(start)
    for _ in range(10):
        for turn in ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)):
            _quarter(s, *turn)
        for turn in ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)):
            _quarter(s, *turn)
    return b"".join((a + b & MASK).to_bytes(4, "little") for a, b in zip(s, start, strict=True))


def _quarter(s: list[int], a: int, b: int, c: int, d: int) -> None:
    for x, y, z, left in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        s[x] = s[x] + s[y] & MASK
        mixed = s[z] ^ s[x]
        s[z] = (mixed << left | mixed >> 32 - left) & MASK


def chacha20_poly1305(key: bytes, nonce: bytes, plaintext: bytes, about: bytes) -> bytes:
    """RFC 8439, section 2.8: ciphertext and tag."""
    stream = b"".join(chacha20_block(key, 1 + i, nonce) for i in range(-(-len(plaintext) // 64)))
    sealed = bytes(a ^ b for a, b in zip(plaintext, stream, strict=False))
    lengths = len(about).to_bytes(8, "little") + len(sealed).to_bytes(8, "little")
    return sealed + _poly1305(chacha20_block(key, 0, nonce)[:32], _padded(about) + _padded(sealed) + lengths)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 16)


def _poly1305(key: bytes, message: bytes) -> bytes:
    r = int.from_bytes(key[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
    total = 0
    for i in range(0, len(message), 16):
        total = (total + int.from_bytes(message[i : i + 16] + b"\1", "little")) * r % (2**130 - 5)
    return (total + int.from_bytes(key[16:], "little") & 2**128 - 1).to_bytes(16, "little")


def seal(sender: bytes, receiver: bytes, names: tuple[str, str], context: str, plaintext: bytes, ephemeral: bytes):
    """The ephemeral public key and the ciphertext, from both private keys and that of the ephemeral key."""
    theirs, once = public(receiver), public(ephemeral)
    header = b"silosynth sealed 1"
    for text in (*names, context):
        header += len(text.encode()).to_bytes(4, "big") + text.encode()
    shared = x25519(ephemeral, theirs) + x25519(sender, theirs)
    key = hkdf(shared, header, once + public(sender) + theirs)
    return once, chacha20_poly1305(key, bytes(12), plaintext, header)
