#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An S3 server, and a proxy that makes it slow and unreliable. Each is a process of its own, started
by s3.py, and ends when its standard input ends.

    s3_server.py moto           prints its port
    s3_server.py proxy PORT TO  forwards from PORT (0: any) to TO; prints its port

The proxy reads lines of JSON: {"delay": seconds, "errors": share of the requests for objects and
listings that get a 5xx reply, "cut": share of the bodies that end early}. After each line it prints
how many requests it forwarded, refused and cut.
"""

import collections
import http.client
import http.server
import json
import random
import sys
import threading
import time

DROPPED = ("connection", "transfer-encoding", "content-length", "server", "date")


class Proxy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    faults = {"delay": 0, "errors": 0, "cut": 0}
    counts = collections.Counter(forwarded=0, errors=0, cut=0)
    lock = threading.Lock()
    rng = random.Random(0)
    to = None

    def log_message(self, *_):
        pass

    def happens(self, fault):
        with self.lock:
            is_now = self.rng.random() < self.faults[fault]
            self.counts[fault] += is_now
            return is_now

    def forward(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        time.sleep(self.faults["delay"])
        if self.happens("errors"):
            self.answer(self.rng.choice((500, 503)), {"Content-Type": "application/xml"},
                        b"<Error><Code>SlowDown</Code><Message>by the test</Message></Error>")
            return
        server = http.client.HTTPConnection("127.0.0.1", self.to)
        server.request(self.command, self.path, body, dict(self.headers))
        reply = server.getresponse()
        data = reply.read()
        headers = {k: v for k, v in reply.getheaders() if k.lower() not in DROPPED}
        length = reply.getheader("Content-Length") if self.command == "HEAD" else None
        server.close()
        with self.lock:
            self.counts["forwarded"] += 1
        is_cut = len(data) > 1 and self.happens("cut")
        self.answer(reply.status, headers, data[:len(data) // 2] if is_cut else data,
                    length or len(data))
        if is_cut:
            self.close_connection = True

    def answer(self, status, headers, data, length=None):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = forward


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, request, _):
        """The client closed the connection."""
        request.close()


def proxy(port, to):
    Proxy.to = int(to)
    server = Server(("127.0.0.1", int(port)), Proxy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    for line in sys.stdin:
        with Proxy.lock:
            Proxy.faults = json.loads(line)
            print(json.dumps(Proxy.counts), flush=True)


def moto():
    from moto.server import ThreadedMotoServer
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    {"proxy": proxy, "moto": moto}[sys.argv[1]](*sys.argv[2:])
