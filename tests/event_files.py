"""A reader of TensorBoard's event files that shares nothing with what writes them: records, checksums and messages."""

from __future__ import annotations

import struct


def crc32c(data):
    """Return the Castagnoli checksum, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def checked(data, stored):
    """Return the data if its masked checksum is the stored one."""
    crc = crc32c(data)
    rotated = ((crc >> 15) | (crc << 17)) & 0xFFFFFFFF
    assert struct.unpack("<I", stored)[0] == (rotated + 0xA282EAD8) & 0xFFFFFFFF
    return data


def records(content):
    """Yield the records of a file: length, its checksum, data, its checksum."""
    while content:
        (length,) = struct.unpack("<Q", checked(content[:8], content[8:12]))
        yield checked(content[12 : 12 + length], content[12 + length : 16 + length])
        content = content[16 + length :]


def message(data):
    """Return the fields of a protocol buffer as lists by number: whole numbers, floats or bytes."""
    fields, place = {}, 0

    def varint():
        nonlocal place
        value = shift = 0
        while True:
            byte, place = data[place], place + 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while place < len(data):
        key = varint()
        number, kind = key >> 3, key & 7
        if kind == 0:
            value = varint()
        else:
            size = {1: 8, 5: 4}.get(kind) or varint()
            value, place = data[place : place + size], place + size
            value = struct.unpack("<d" if kind == 1 else "<f", value)[0] if kind in (1, 5) else value
        fields.setdefault(number, []).append(value)
    return fields


def events(path):
    """Return the events of a file as dictionaries, each with its time and step, and the values of its summary by tag.

    A value is a number, or the bytes of a text or of a plug-in.
    """
    found = []
    for record in records(path.read_bytes()):
        event = message(record)
        values = {}
        for value in message(event[5][0]).get(1, ()) if 5 in event else ():
            one = message(value)
            tag = one[1][0].decode()
            assert tag not in values
            text = message(one[8][0])[8][0] if 8 in one else None  # a tensor of strings
            plugin = message(message(one[9][0])[1][0]).get(2, [b""])[0] if 9 in one else None  # its metadata
            values[tag] = one[2][0] if 2 in one else text if text is not None else plugin
        found.append(
            {
                "time": event[1][0],
                "step": event.get(2, [0])[0],
                "version": event.get(3, [b""])[0].decode(),
                "restart": 7 in event,
                "values": values,
            }
        )
    return found
