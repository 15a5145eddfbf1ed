"""A replica without an engine: a real HTTP server in a process of its own, told what to do.

What it does with a request stands in the request: a member ``stub`` of the body, or of a
``x-stub`` header. It remembers what it was sent, byte for byte, and who left early. An answer can
be held until the test releases it, so that nothing depends on how long anything takes. It is
written on plain streams and shares no code with the router.
"""

import argparse
import asyncio
import json
import os
import ssl
import sys
import time

# What a router asks for by itself.
OWN = ("/health", "/metrics", "/v1/models", "/v1/kvikk/cache")


class Stub:
    def __init__(self, models, name):
        self.models = models
        self.name = name
        self.seen = []
        self.running = 0
        self.cancelled = 0
        self.finished = 0
        self.released = 0
        self.health = 200
        self.checks = 0

    async def serve(self, reader, writer):
        try:
            while await self.one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def one(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")[:-2]
        target = lines[0].split(" ")[1]
        headers = [tuple(line.split(": ", 1)) for line in lines[1:]]
        lower = {name.lower(): value for name, value in headers}
        body = await reader.readexactly(int(lower.get("content-length", 0)))
        if target in OWN or target.startswith("/stub/"):
            self.checks += target == "/health"
            status, answer = self.own(target, body)
            writer.write(
                b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\n\r\n%b" % (status, len(answer), answer)
            )
            await writer.drain()
            return True
        self.seen.append({"line": lines[0], "headers": headers, "body": body.decode("latin-1")})
        if "x-stub" in lower:
            wanted = json.loads(lower["x-stub"])
        else:
            try:
                wanted = json.loads(body).get("stub", {})
            except ValueError:
                wanted = {}
        self.running += 1
        gone = asyncio.ensure_future(reader.read(1))  # the next request, or the end
        work = asyncio.ensure_future(self.answer(writer, wanted))
        try:
            await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
            can_go_on = await work
            self.finished += 1
        except (asyncio.CancelledError, ConnectionError):
            self.cancelled += 1
            return False
        finally:
            self.running -= 1
        first = await gone if can_go_on else b""
        gone.cancel()
        reader._buffer[:0] = first  # put it back
        return bool(first)

    def own(self, target, body):
        if target == "/health":
            return self.health, b"{}"
        if target == "/metrics":
            return 200, b"process_start_time_seconds %f\n" % STARTED_S
        if target == "/v1/kvikk/cache":
            return 404, b"{}"
        if target == "/v1/models":
            data = [{"id": model, "object": "model"} for model in self.models]
            return 200, json.dumps({"object": "list", "data": data}).encode()
        if target == "/stub/set":
            self.__dict__.update(json.loads(body))
        elif target == "/stub/forget":
            self.seen, self.cancelled, self.finished, self.released = [], 0, 0, 0
        return 200, json.dumps(self.__dict__).encode()

    async def released_to(self, count):
        while self.released < count:
            await asyncio.sleep(0.01)

    async def answer(self, writer, wanted):
        """Whether the connection can be used again."""
        await asyncio.sleep(wanted.get("delay_s", 0))
        if wanted.get("held"):
            await self.released_to(1)
        if wanted.get("die"):
            os._exit(1)
        if wanted.get("hang_up"):
            writer.transport.abort()
            return False
        extra = "".join(f"{name}: {value}\r\n" for name, value in wanted.get("headers", []))
        status = wanted.get("status", 200)
        if "raw" in wanted:
            for piece in wanted["raw"]:
                writer.write(piece.encode("latin-1"))
                await writer.drain()
                await asyncio.sleep(wanted.get("interval_s", 0))
            return False
        if "chunks" not in wanted:
            text = wanted.get("body", json.dumps({"from": self.name})).encode()
            head = (
                f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n"
                f"{extra}content-length: {len(text)}\r\n\r\n"
            )
            writer.write(head.encode())
            if "half_s" in wanted:
                writer.write(text[: len(text) // 2])
                await asyncio.sleep(wanted["half_s"])
                if wanted.get("break"):
                    writer.transport.abort()
                    return False
                text = text[len(text) // 2 :]
            writer.write(text)
            await writer.drain()
            return True
        writer.write(
            f"HTTP/1.1 {status} X\r\ncontent-type: text/event-stream\r\n{extra}"
            "transfer-encoding: chunked\r\n\r\n".encode()
        )
        for index in range(wanted["chunks"]):
            pad = "x" * wanted.get("pad", 0)
            event = f'data: {{"from":"{self.name}","index":{index},"pad":"{pad}"}}\n\n'.encode()
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await writer.drain()
            if wanted.get("held_each"):
                await self.released_to(index + 1)
            elif index + 1 == wanted.get("held_after"):
                await self.released_to(1)
            if index + 1 == wanted.get("cut_after"):
                if wanted.get("within"):
                    writer.write(b'40\r\ndata: {"from"')
                    await writer.drain()
                writer.close()
                return False
            await asyncio.sleep(wanted.get("interval_s", 0))
        for event in wanted.get("tail", ["data: [DONE]\n\n"]):
            writer.write(b"%x\r\n%b\r\n" % (len(event.encode()), event.encode()))
            await writer.drain()
            await asyncio.sleep(wanted.get("tail_s", 0))
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--models", default="stub")
    parser.add_argument("--name", default="stub")
    parser.add_argument("--certificate")
    options = parser.parse_args()
    models = [model for model in options.models.split(",") if model]
    tls = None
    if options.certificate:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(options.certificate)
    server = await asyncio.start_server(
        Stub(models, options.name).serve, "127.0.0.1", options.port, ssl=tls, backlog=512
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    STARTED_S = time.time()
    sys.exit(asyncio.run(main()))
