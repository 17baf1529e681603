#!/usr/bin/env python3
"""Publishes one Change for each file that was added to a store.

    python3 -m venv venv && venv/bin/pip install --require-hashes -r requirements.txt
    BROKERS=localhost:9092 venv/bin/python add.py ACCOUNT STORE SPACE FOLDER ITEM...

Each ITEM is the path of a file below FOLDER, which is also its name in SPACE.
"""

import datetime
import getpass
import hashlib
import json
import os
import pathlib
import sys

from kafka import KafkaProducer

OP_ADD = 1  # number in Op, part of the id


def key(*parts):
    """Joins parts. Different lists of parts have different keys."""
    return "/".join(p.replace("%", "%25").replace("/", "%2F") for p in parts).encode()


def change_id(*parts):
    """Returns a hash of the parts and their lengths: 128 bits in hex."""
    h = hashlib.sha256()
    for part in parts:
        data = part.encode()
        n = len(data)
        while n >= 0x80:
            h.update(bytes([n & 0x7F | 0x80]))
            n >>= 7
        h.update(bytes([n]) + data)
    return h.hexdigest()[:32]


def read(path):
    """Returns size, time in milliseconds and digests of a file, which must not change meanwhile."""
    before = path.stat()
    hashes = {"md5": hashlib.md5(), "sha256": hashlib.sha256()}
    with path.open("rb") as f:
        while data := f.read(1 << 20):
            for h in hashes.values():
                h.update(data)
    after = path.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise SystemExit(f"{path} was changed meanwhile")
    return after.st_size, after.st_mtime_ns // 1_000_000, {alg: h.hexdigest() for alg, h in hashes.items()}


def change(account, store, space, item, path):
    size, millis, digests = read(path)
    at = datetime.datetime.fromtimestamp(millis // 1000, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    digest_parts = [part for alg in sorted(digests) for part in (alg, digests[alg])]
    return {
        "id": change_id("change", account, store, space, item, str(OP_ADD), "d", *digest_parts, str(millis)),
        "op": "OP_ADD",
        "account": account,
        "store": store,
        "space": space,
        "item": item,
        "size": str(size),
        "digests": digests,
        "provenance": "PROVENANCE_CLAIMED",
        "time": f"{at}.{millis % 1000:03d}Z",
        "user": getpass.getuser(),
        "agent": "add.py",
        "origin": "ORIGIN_CLIENT",
    }


def main(args):
    if len(args) < 5 or "BROKERS" not in os.environ:
        print("usage: BROKERS=HOST:PORT add.py ACCOUNT STORE SPACE FOLDER ITEM...", file=sys.stderr)
        return 2
    account, store, space, folder, *items = args
    # All messages about an item must be in one partition: the client's default is that of Java, murmur2.
    producer = KafkaProducer(bootstrap_servers=os.environ["BROKERS"].split(","), acks="all", enable_idempotence=True)
    try:
        for item in items:
            c = change(account, store, space, item, pathlib.Path(folder, item))
            headers = {
                "ce_specversion": "1.0",
                "ce_id": c["id"],
                "ce_source": "example/python",
                "ce_type": "millrace.v1.Change",
                "ce_time": c["time"],
                "content-type": "application/json",
            }
            producer.send(
                os.environ.get("TOPIC", "millrace.changes"),
                key=key(account, space, item),
                value=json.dumps(c, ensure_ascii=False).encode(),
                headers=[(name, value.encode()) for name, value in headers.items()],
            ).get(timeout=60)  # wait for the acknowledgement
            print(c["id"], item)
    finally:
        producer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
