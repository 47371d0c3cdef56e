#!/usr/bin/env python3
"""Loads a server for a while: 64 clients that complete, cancel, read slowly or send nonsense, beside idle and half-open
connections.

  soak_test.py PROGRAM [--seconds 30] [--streams 64] [--idle 1000] [--half-open 200] [--seed 1]

Fails unless every completed output is what `PROGRAM generate` writes for it, no answer has a status from 500 on, the
server's resident memory at the end is within --most-growth of what it was after the first fifth, and no page and no
request is left in the end. Prints what happened as JSON. CI runs it for 30 s; ten minutes show what grows slowly.
"""
import argparse
import asyncio
import collections
import json
import os
import random
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

host = "127.0.0.1"
words = ("Once upon a time", "The old fox", "Lily and Tom went", "In the garden", "A very long day", "One night the moon",
         "The dog saw a cat", "Rusty was", "It rained", "Grandma said")


def make_requests(count, chance):
    """Bodies of /v1/completions, greedy and seeded, some with a long common beginning."""
    story = "The dog saw a cat in the garden. " * 6
    requests = []
    for number in range(count):
        fields = {"prompt": (story if chance.random() < 0.3 else "") + chance.choice(words) + " " * chance.randrange(2),
                  "max_tokens": chance.randrange(1, 80), "temperature": 0}
        if chance.random() < 0.5:
            fields.update(temperature=0.9, seed=number, top_p=0.95)
        if chance.random() < 0.3:
            fields["presence_penalty"] = 0.5
        if chance.random() < 0.3:
            fields["ignore_eos"] = True
        if chance.random() < 0.2:
            fields["stop"] = ["and", "."]
        requests.append(fields)
    return requests


def generated(program, requests):
    """The text of each, as `generate` continues it."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for request in requests:
            print(json.dumps(request), file=file)
        file.flush()
        done = subprocess.run([program, "generate", "--prompts", file.name, "--dtype", "f32", "--quiet"],
                              check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line)["text"] for line in done.stdout.splitlines()]


class Server:
    """`serve` of the embedded model. Its KV is soon all used, as a page takes memory when it is first written, and too
    small for all outputs at once, so that some make way for others."""

    def __init__(self, program, streams):
        self.process = subprocess.Popen(
            [program, "serve", "--port", "0", "--dtype", "f32", "--max-sequences", str(streams // 2),
             "--kv-tokens", "1024", "--max-model-len", "512"],
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        said = self.process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", said)
        if not found:
            raise SystemExit(f"no server: {said}")
        self.port = int(found[1])

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


class Lost(Exception):
    """The server has closed the connection."""


class Client:
    """One connection."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port, receive_bytes=None):
        connection = socket.socket()
        if receive_bytes:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, (host, port))
        return cls(*await asyncio.open_connection(sock=connection))

    def send(self, method, path, body=b""):
        self.writer.write(f"{method} {path} HTTP/1.1\r\nHost: soak\r\nContent-Type: application/json\r\n"
                          f"Content-Length: {len(body)}\r\n\r\n".encode() + body)

    async def head(self):
        """The status, and the headers by their names in small letters."""
        try:
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Lost() from error
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
        return int(lines[0].split()[1]), headers

    async def body(self, headers):
        try:
            return await self.reader.readexactly(int(headers["content-length"]))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Lost() from error

    async def event(self):
        """The data of a stream's next event; chunks' sizes are passed over."""
        while True:
            try:
                line = await self.reader.readline()
            except ConnectionError as error:
                raise Lost() from error
            if not line:
                raise Lost()
            if line.startswith(b"data: "):
                return line[6:].strip().decode()

    def close(self, abruptly=False):
        if abruptly:
            self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.writer.transport.abort()
        else:
            self.writer.close()


class Soak:
    """What the clients share."""

    def __init__(self, port, requests, texts, chance):
        self.port, self.requests, self.texts, self.chance = port, requests, texts, chance
        self.counts = collections.Counter()
        self.statuses = collections.Counter()
        self.wrong = []
        self.over = False

    def note(self, status):
        self.statuses[status] += 1
        if status >= 500:
            self.wrong.append(f"status {status}")

    def compare(self, number, text):
        self.counts["compared"] += 1
        if text != self.texts[number]:
            self.wrong.append(f"{self.requests[number]} gave {text!r}, generate {self.texts[number]!r}")

    # What a client may do.

    async def ask(self):
        """A keep-alive connection with a few requests."""
        client = await Client.open(self.port)
        for _ in range(self.chance.randrange(1, 4)):
            number = self.chance.randrange(len(self.requests))
            client.send("POST", "/v1/completions", json.dumps(self.requests[number]).encode())
            status, headers = await client.head()
            self.note(status)
            answer = json.loads(await client.body(headers))
            if status == 200:
                self.compare(number, answer["choices"][0]["text"])
        client.close()

    async def stream(self, pause_s=0.0, receive_bytes=None):
        client = await Client.open(self.port, receive_bytes)
        number = self.chance.randrange(len(self.requests))
        client.send("POST", "/v1/completions", json.dumps({**self.requests[number], "stream": True}).encode())
        status, headers = await client.head()
        self.note(status)
        if status == 200:
            text = ""
            while (event := await client.event()) != "[DONE]":
                text += json.loads(event)["choices"][0]["text"]
                if pause_s:
                    await asyncio.sleep(self.chance.random() * pause_s)
            self.compare(number, text)
        client.close()

    async def read_slowly(self):
        await self.stream(pause_s=0.2, receive_bytes=4096)

    async def cancel(self):
        client = await Client.open(self.port)
        number = self.chance.randrange(len(self.requests))
        client.send("POST", "/v1/completions", json.dumps({**self.requests[number], "stream": True}).encode())
        events = self.chance.randrange(-1, 12)
        if events >= 0:
            self.note((await client.head())[0])
        for _ in range(events):
            if await client.event() == "[DONE]":
                break
        client.close(abruptly=self.chance.random() < 0.5)

    async def send_half(self):
        client = await Client.open(self.port)
        body = json.dumps(self.requests[0]).encode()
        whole = (f"POST /v1/completions HTTP/1.1\r\nHost: soak\r\nContent-Length: {len(body)}\r\n\r\n").encode() + body
        client.writer.write(whole[:self.chance.randrange(1, len(whole))])
        await asyncio.sleep(self.chance.random() * 0.1)
        client.close(abruptly=self.chance.random() < 0.5)

    async def send_garbage(self):
        client = await Client.open(self.port)
        if self.chance.random() < 0.5:
            client.writer.write(self.chance.randbytes(self.chance.randrange(1, 2000)) + b"\r\n\r\n")
        else:
            client.send("POST", "/v1/completions", self.chance.randbytes(self.chance.randrange(1, 2000)))
        status, _ = await client.head()
        self.note(status)
        if status == 200:
            self.wrong.append("garbage was answered with 200")
        client.close()

    async def keep_asking(self):
        deeds = (self.ask, self.stream, self.read_slowly, self.cancel, self.send_half, self.send_garbage)
        while not self.over:
            deed = self.chance.choices(deeds, (15, 40, 10, 20, 8, 7))[0]
            try:
                await deed()
            except Lost:
                # Garbage may end a connection without an answer; nobody else may lose it.
                if deed not in (self.send_garbage, self.cancel):
                    self.wrong.append(f"{deed.__name__}: the connection was lost")
            except ConnectionError as error:
                if deed not in (self.send_garbage, self.cancel, self.send_half):
                    self.wrong.append(f"{deed.__name__}: {error}")
            self.counts[deed.__name__] += 1

    async def hold(self, beginning):
        """A connection that says no more than this, opened again where the server ends it."""
        while not self.over:
            client = await Client.open(self.port)
            client.writer.write(beginning)
            answer = await client.reader.read()
            if answer:
                self.note(int(answer.split(b" ", 2)[1]))
            self.counts["idle ended" if not beginning else "half-open ended"] += 1
            client.close()


async def fetch_json(port, path):
    client = await Client.open(port)
    client.send("GET", path)
    status, headers = await client.head()
    if status != 200:
        raise SystemExit(f"{path}: status {status}")
    answer = json.loads(await client.body(headers))
    client.close()
    return answer


async def resident_bytes(server):
    """The median of some looks, as buffers come and go."""
    looks = []
    for _ in range(21):
        looks.append(server.resident_bytes())
        await asyncio.sleep(0.05)
    return sorted(looks)[len(looks) // 2]


async def soak(server, arguments, requests, texts):
    chance = random.Random(arguments.seed)
    state = Soak(server.port, requests, texts, chance)
    half = b"POST /v1/completions HTTP/1.1\r\nHost: so"
    held = [asyncio.create_task(state.hold(b"")) for _ in range(arguments.idle)]
    held += [asyncio.create_task(state.hold(half)) for _ in range(arguments.half_open)]
    clients = [asyncio.create_task(state.keep_asking()) for _ in range(arguments.streams)]
    begin = time.monotonic()
    resident = []  # after each tenth
    for tenth in range(1, 11):
        await asyncio.sleep(max(0.0, begin + tenth * arguments.seconds / 10 - time.monotonic()))
        resident.append(await resident_bytes(server))
    state.over = True
    await asyncio.gather(*clients)
    for task in held:
        task.cancel()
    await asyncio.gather(*held, return_exceptions=True)
    for _ in range(500):  # cancelled ones may be on their way
        live = await fetch_json(server.port, "/live")
        if live["running"] + live["waiting"] == 0:
            break
        await asyncio.sleep(0.02)
    growth = resident[-1] / resident[1] - 1
    if abs(growth) > arguments.most_growth:
        state.wrong.append(f"resident memory went from {resident[1]} to {resident[-1]} bytes")
    for what, count in [("running", live["running"]), ("waiting", live["waiting"])]:
        if count:
            state.wrong.append(f"{count} requests are {what} in the end")
    for pool in live["pools"]:
        if pool["used_pages"]:
            state.wrong.append(f"{pool['used_pages']} pages are used in the end")
    return state, {"seconds": arguments.seconds, "deeds": dict(state.counts), "statuses": dict(state.statuses),
                   "resident_bytes": resident, "growth_from_a_fifth_on": growth,
                   "output_tokens": live["output_tokens"], "prefix_hit_tokens": live["prefix_hit_tokens"],
                   "preemptions": live["preemptions"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--half-open", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most-growth", type=float, default=0.02,
                        help="of resident memory, from the first fifth on; in the first minutes an allocator still grows")
    arguments = parser.parse_args()
    files = arguments.streams + arguments.idle + arguments.half_open + 100
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < files:
        print(f"skipped: {hard} open files are allowed, {files} are needed")
        return 77
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, files), hard))
    requests = make_requests(60, random.Random(arguments.seed))
    texts = generated(arguments.program, requests)
    server = Server(arguments.program, arguments.streams)
    try:
        state, figures = asyncio.run(soak(server, arguments, requests, texts))
    finally:
        code = server.stop()
    if code != 0:
        state.wrong.append(f"the server ended with {code}")
    if not state.counts["compared"]:
        state.wrong.append("nothing was compared")
    print(json.dumps(figures, indent=1))
    for wrong in state.wrong[:20]:
        print("FAILED:", wrong)
    return 1 if state.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
