"""Counts tensor-core instructions in a cubin, without a disassembler.

A cubin is an ELF file. From sm_75 on every instruction takes 16 bytes, and its lowest 12 bits are the opcode; HMMA, the
half-precision matrix multiply-add that WMMA becomes, is 0x23c on all architectures from sm_75 to sm_120.
"""

from __future__ import annotations

import struct
from pathlib import Path

HMMA = 0x23C
_INSTRUCTION_BYTES = 16


def count_hmma(cubin: Path, entry: str) -> int:
    """HMMA instructions in the code of the kernel `entry`."""
    code = _section(cubin.read_bytes(), f".text.{entry}")
    words = struct.iter_unpack("<QQ", code[: len(code) // _INSTRUCTION_BYTES * _INSTRUCTION_BYTES])
    return sum(low & 0xFFF == HMMA for low, _ in words)


def _section(elf: bytes, wanted: str) -> bytes:
    """Content of the ELF64 section called `wanted`."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry_size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * entry_size) for i in range(count)]
    name_table = headers[names][4]
    for name, _, _, _, offset, size in headers:
        start = name_table + name
        if elf[start : elf.index(b"\0", start)].decode() == wanted:
            return elf[offset : offset + size]
    raise LookupError(f"no section {wanted}")
