"""test_cancel.py - a client that leaves frees its slot, wherever its request is, and touches nobody else."""
import http.client
import json
import signal
import socket
import struct
import time
import unittest

import server

CHAT = "/v1/chat/completions"
HI = {"model": server.NAME, "messages": [{"role": "user", "content": "hi"}],
      "chat_template_kwargs": {"enable_thinking": False}}
CANCELLED = "lignum_requests_cancelled_total"


def start(s, body):
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
    c.request("POST", CHAT, json.dumps(body), {"Content-Type": "application/json"})
    return c


class Scripted(unittest.TestCase):
    """Two slots and a slow worker: a third request waits in the worker's queue."""

    @classmethod
    def setUpClass(cls):
        path, cls.text = server.script(tokens=150, slots=2, step_us=10000)
        cls.s = server.scripted(path=path)

    @classmethod
    def tearDownClass(cls):
        cls.s.stop(signal.SIGKILL)

    def leave(self, stream, queued):
        s = self.s
        before = s.metrics().get(CANCELLED, 0)
        others = [s.stream(CHAT, HI) for _ in range(2 if queued else 1)]
        got = [[next(o)] for o in others]
        s.wait_metric("lignum_requests_running", len(others))
        c = start(s, {**HI, "stream": stream})
        if queued:
            s.wait_metric("lignum_requests_waiting", 1)
        else:
            s.wait_metric("lignum_requests_running", 2)
        c.sock.close()
        c.close()
        took = s.wait_metric(CANCELLED, before + 1)
        self.assertLess(took, 0.5)
        s.wait_metric("lignum_requests_waiting", 0)
        s.wait_metric("lignum_requests_running", len(others), timeout=2)
        for g, o in zip(got, others):
            g.extend(o)
            self.assertEqual(server.text_of(g)[1], self.text)
        s.wait_metric("lignum_worker_slots_free", 2)

    def test_in_decode_streaming(self):
        self.leave(True, False)

    def test_in_decode_not_streaming(self):
        self.leave(False, False)

    def test_in_queue_streaming(self):
        self.leave(True, True)

    def test_in_queue_not_streaming(self):
        self.leave(False, True)

    def test_reset_connection_with_pipelined_request(self):
        s = self.s
        before = s.metrics().get(CANCELLED, 0)
        c = start(s, HI)
        s.wait_metric("lignum_requests_running", 1)
        c.sock.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        c.sock.close()
        c.close()
        s.wait_metric(CANCELLED, before + 1)
        s.wait_metric("lignum_worker_slots_free", 2)


class SlowReader(unittest.TestCase):
    def test_a_client_that_does_not_read_is_cut_off(self):
        path, _ = server.script(tokens=4000, slots=4, step_us=0, text="x" * 31)
        with server.scripted(path=path) as s:
            socks = []
            for _ in range(12):
                c = socket.socket()
                c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                c.connect(("127.0.0.1", s.port))
                body = json.dumps({**HI, "stream": True, "n": 8}).encode()
                c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(body)) + body)
                socks.append(c)
            s.wait_metric("lignum_slow_clients_total", 12, timeout=30)
            s.wait_metric("lignum_requests_running", 0)
            with open("/proc/%d/status" % s.process.pid) as f:
                peak = int(next(line.split()[1] for line in f if line.startswith("VmHWM")))
            self.assertLess(peak, 400 * 1024)
            self.assertEqual(s.get("/live")[0], 200)


class Model(unittest.TestCase):
    """The real worker: leaving during a long prefill."""

    def test_in_prefill(self):
        words = " ".join("word%d" % (i % 97) for i in range(400))
        long = {**HI, "messages": [{"role": "user", "content": words}], "max_tokens": 4}
        with server.Server("--parallel", "4") as s:
            for stream in (True, False):
                before = s.metrics().get(CANCELLED, 0)
                made = s.metrics()["lignum_generated_tokens_total"]
                clients = [start(s, {**long, "stream": stream, "messages": [
                    {"role": "user", "content": "%d %s" % (i, words)}]}) for i in range(4)]
                for c in clients:
                    c.sock.close()
                    c.close()
                s.wait_metric(CANCELLED, before + 4, timeout=5)
                s.wait_metric("lignum_worker_slots_free", 4, timeout=5)
                self.assertEqual(s.metrics()["lignum_generated_tokens_total"], made)
            self.assertIn("choices", s.chat({**HI, "max_tokens": 2}))


if __name__ == "__main__":
    unittest.main(warnings="ignore", verbosity=2)
