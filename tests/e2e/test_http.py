"""test_http.py - HTTP itself: routes, limits, deadlines, pipelining, probes, metrics, drain.  The worker is scripted."""
import json
import re
import signal
import socket
import threading
import time
import unittest

import server

HI = {"model": server.NAME, "messages": [{"role": "user", "content": "hi"}],
      "chat_template_kwargs": {"enable_thinking": False}}
CHAT = "/v1/chat/completions"


def head(body, path=CHAT, more=""):
    return ("POST %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %d\r\n\r\n" % (path, more, len(body))).encode()


def status(answer):
    return int(answer.split(b" ", 2)[1]) if answer else None


def error_body(answer):
    return json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]


class Http(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.path, cls.text = server.script(tokens=40, step_us=1000)
        cls.s = server.scripted(path=cls.path)

    @classmethod
    def tearDownClass(cls):
        cls.s.stop(signal.SIGKILL)

    def test_chat_plain_and_streamed(self):
        answer = self.s.chat(HI)
        self.assertEqual(answer["choices"][0]["message"]["content"], self.text)
        events = list(self.s.stream(CHAT, HI))
        self.assertEqual(events[-1], "[DONE]")
        self.assertEqual(server.text_of(events)[1], self.text)

    def test_unknown_route_and_wrong_method(self):
        code, headers, body = self.s.get("/v2/chat")
        self.assertEqual((code, body["error"]["type"]), (404, "invalid_request_error"))
        self.assertIn("/v2/chat", body["error"]["message"])
        for path, allow in ((CHAT, "POST"), ("/v1/models", "GET"), ("/metrics", "GET"), ("/live", "GET")):
            code, headers, body = self.s.request("DELETE", path)
            self.assertEqual((code, headers["Allow"]), (405, allow))
            self.assertIn("message", body["error"])

    def test_bad_bodies_are_400_and_keep_the_connection(self):
        for body in (b"", b"{", b"[]", b'{"messages": 3}', b'{"model": "tiny-qwen35moe"}', b"\xff\xfe{}", b'{"a":' * 100000):
            code, _, answer = self.s.post(CHAT, body)
            self.assertEqual((code, answer["error"]["type"]), (400, "invalid_request_error"), body[:20])
        two = (head(b"{") + b"{") + head(b"[") + b"["
        answer = self.s.raw(two + b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        self.assertEqual(re.findall(rb"HTTP/1.1 (\d+)", answer), [b"400", b"400", b"200"])

    def test_a_body_of_many_small_values_takes_little_memory(self):
        code, _, answer = self.s.post(CHAT, b'{"messages": [' + b"0," * 900000 + b"0]}")
        self.assertEqual(code, 400)
        self.assertIn("more values", answer["error"]["message"])
        with open("/proc/%d/status" % self.s.process.pid) as f:
            peak = int(next(line.split()[1] for line in f if line.startswith("VmHWM")))
        self.assertLess(peak, 400 * 1024)

    def test_malformed_http(self):
        cases = [
            (b"GARBAGE\r\n\r\n", 400),
            (b"GET /live HTTP/1.1\r\n\r\n", 400),  # no Host
            (b"GET /live HTTP/1.1\nHost: localhost\n\n", 400),  # bare line feeds
            (b"GET /live HTTP/2.0\r\nHost: localhost\r\n\r\n", 505),
            (b"GET /live HTTP/1.1\r\nHost: localhost\r\nHost: y\r\n\r\n", 400),
            (b"GET /live HTTP/1.1\r\nHost : x\r\n\r\n", 400),
            (b"GET /live HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n", 400),
            (b"GET /live HTTP/1.1\r\nHost: localhost\0\r\n\r\n", 400),
            (b"GET http://x/live HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
            (b"POST /live HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
            (b"POST /live HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", 400),
            (b"POST /live HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n", 413),
            (b"POST /live HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
            (b"POST /live HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
            (b"POST /live HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
            (b"POST /live HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n", 400),
        ]
        for data, want in cases:
            answer = self.s.raw(data)
            self.assertEqual(status(answer), want, data)
            self.assertIn(b"Connection: close", answer)
            self.assertTrue(error_body(answer)["message"])

    def test_oversized_head_and_body(self):
        self.assertEqual(status(self.s.raw(b"GET /live HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 40000 + b"\r\n\r\n")), 431)
        self.assertEqual(status(self.s.raw(b"GET /" + b"a" * 40000)), 431)
        self.assertEqual(status(self.s.raw(b"GET /live HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 200 + b"\r\n")), 431)
        # A body that announces too much is refused before it is sent; the answer survives unread input.
        with self.s.connect() as c:
            c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50000000\r\n\r\n" % CHAT.encode())
            try:
                for _ in range(200):
                    c.sendall(b" " * 65536)
            except ConnectionError:
                pass
            self.assertEqual(status(server.read_all(c)), 413)
        chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        with self.s.connect() as c:
            c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" % CHAT.encode())
            try:
                for _ in range(40):
                    c.sendall(chunk)
            except ConnectionError:
                pass
            self.assertEqual(status(server.read_all(c)), 413)

    def test_chunked_body_in_single_bytes(self):
        body = json.dumps(HI).encode()
        data = b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n" % CHAT.encode()
        for byte in body:
            data += b"1;ext=1\r\n%c\r\n" % byte
        data += b"0\r\nTrailer: t\r\n\r\n"
        with self.s.connect() as c:
            for i in range(0, len(data), 7):
                c.sendall(data[i:i + 7])
            answer = server.read_all(c)
        self.assertEqual(status(answer), 200)
        self.assertIn(self.text.strip().encode(), answer)

    def test_expect_continue(self):
        body = json.dumps(HI).encode()
        with self.s.connect(5) as c:
            c.sendall(head(body, more="Expect: 100-continue\r\nConnection: close\r\n"))
            self.assertTrue(c.recv(100).startswith(b"HTTP/1.1 100 Continue\r\n\r\n"))
            c.sendall(body)
            self.assertEqual(status(server.read_all(c)), 200)

    def test_pipelined_requests_are_answered_in_order(self):
        body, stream = json.dumps(HI).encode(), json.dumps({**HI, "stream": True}).encode()
        data = head(body) + body + head(stream) + stream + b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
        data += b"GET /none HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        answer = self.s.raw(data)
        self.assertEqual(re.findall(rb"HTTP/1.1 (\d+)", answer), [b"200", b"200", b"200", b"404"])
        self.assertLess(answer.index(b"[DONE]"), answer.index(b'"list"'))

    def test_http10_and_half_closed_clients(self):
        answer = self.s.raw(b"GET /live HTTP/1.0\r\n\r\n")
        self.assertEqual(status(answer), 200)
        self.assertIn(b"Connection: close", answer)
        stream = json.dumps({**HI, "stream": True}).encode()
        answer = self.s.raw(b"POST %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(stream)) + stream)
        self.assertNotIn(b"chunked", answer)
        self.assertTrue(answer.endswith(b"data: [DONE]\n\n"))
        with self.s.connect() as c:
            c.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            c.shutdown(socket.SHUT_WR)
            self.assertEqual(status(server.read_all(c)), 200)

    def test_probes_models_metrics(self):
        self.assertEqual(self.s.get("/live")[0], 200)
        self.assertEqual(self.s.get("/ready")[2], {"status": "ready"})
        code, _, models = self.s.get("/v1/models")
        self.assertEqual((code, models["object"], models["data"][0]["id"]), (200, "list", "tiny-qwen35moe"))
        before = self.s.metrics()
        self.s.chat(HI)
        after = self.s.metrics()

        def rise(name):
            return after[name] - before.get(name, 0)
        self.assertEqual(rise('lignum_http_requests_total{route="chat",status="200"}'), 1)
        self.assertEqual(rise("lignum_generated_tokens_total"), 40)
        self.assertGreater(rise("lignum_prompt_tokens_total"), 0)
        self.assertEqual(rise("lignum_time_to_first_token_seconds_count"), 1)
        self.assertEqual(rise("lignum_inter_token_seconds_count"), 39)
        self.assertEqual(after["lignum_worker_up"], 1)
        text = self.s.get("/metrics")[2]
        for line in text.splitlines():
            self.assertRegex(line, r'^(# (HELP|TYPE) lignum_\w+ .+|lignum_\w+(\{(\w+="[^"]*",?)+\})? [0-9.e+-]+)$')
        buckets = [int(v) for v in re.findall(r"lignum_inter_token_seconds_bucket\{le=\"[^\"]+\"\} (\d+)", text)]
        self.assertEqual(buckets, sorted(buckets))
        self.assertEqual(buckets[-1], after["lignum_inter_token_seconds_count"])


class Deadlines(unittest.TestCase):
    def test_slow_head_is_cut_off_while_others_are_served(self):
        path, _ = server.script(tokens=5, step_us=0)
        with server.scripted(path=path) as s:
            slow = [s.connect(30) for _ in range(50)]
            for c in slow:
                c.sendall(b"GET /live HTTP/1.1\r\n")
            start, closed = time.monotonic(), {}
            while len(closed) < len(slow) and time.monotonic() - start < 25:
                self.assertEqual(s.get("/live")[0], 200)
                time.sleep(0.5)
                for i, c in enumerate(slow):
                    if i in closed:
                        continue
                    try:
                        c.sendall(b"a")
                        c.setblocking(False)
                        got = c.recv(1000)
                        closed[i] = got
                    except BlockingIOError:
                        pass
                    except ConnectionError:
                        closed[i] = b""
                    c.setblocking(True)
            took = time.monotonic() - start
            self.assertEqual(len(closed), 50)
            self.assertTrue(8 < took < 14, took)
            self.assertEqual(status(closed[0]), 408)
            self.assertEqual(s.metrics()["lignum_timeouts_total"], 50)


class Crowd(unittest.TestCase):
    def test_more_answers_than_allowed_get_429(self):
        path, text = server.script(tokens=3, slots=1024, step_us=1500000)
        with server.scripted(path=path) as s:
            results = []
            body = {**HI, "n": 8}
            threads = [threading.Thread(target=lambda: results.append(s.post(CHAT, body))) for _ in range(128)]
            for t in threads:
                t.start()
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                m = s.metrics()
                if m["lignum_requests_running"] + m["lignum_requests_waiting"] == 1024:
                    break
            code, headers, answer = s.post(CHAT, HI)
            self.assertEqual((code, answer["error"]["code"], headers["Retry-After"]), (429, "queue_full", "1"))
            for t in threads:
                t.join()
            self.assertEqual([r[0] for r in results], [200] * 128)
            for _, _, r in results:
                self.assertEqual([c["message"]["content"] for c in r["choices"]], [text] * 8)


class Link(unittest.TestCase):
    """Workers that break the protocol, and a gateway that is gone."""

    def fails(self, extra, why):
        path, _ = server.script(extra=extra)
        s = server.scripted(path=path, wait=False)
        self.assertEqual(s.process.wait(20), 1)
        self.assertIn(why, s.errors())

    def test_other_version(self):
        self.fails("version 99", "link version 99; expected ")

    def test_garbage_instead_of_frames(self):
        path, _ = server.script(extra="garbage 100")
        with server.scripted("--restart-deadline", "1", path=path, wait=False) as s:
            deadline = time.monotonic() + 20
            while "link: frame" not in s.errors() and time.monotonic() < deadline:
                time.sleep(0.05)
            self.assertIn("link: frame", s.errors())
            self.assertIsNone(s.process.poll())

    def test_worker_ends_with_the_gateway(self):
        path, _ = server.script()
        for s in (server.scripted(path=path), server.Server()):
            worker = s.worker()
            s.stop(signal.SIGKILL)
            deadline = time.monotonic() + 5
            while server.alive(worker) and time.monotonic() < deadline:
                time.sleep(0.02)
            self.assertFalse(server.alive(worker))

    def test_port_in_use(self):
        path, _ = server.script()
        with server.scripted(path=path) as s:
            other = server.scripted("--port", str(s.port), path=path, wait=False)
            self.assertEqual(other.process.wait(20), 1)
            self.assertIn("port %d" % s.port, other.errors())


class Drain(unittest.TestCase):
    def test_running_streams_end_and_new_ones_are_refused(self):
        path, text = server.script(tokens=100, step_us=10000)
        with server.scripted(path=path) as s:
            got = []
            t = threading.Thread(target=lambda: got.extend(s.stream(CHAT, HI)))
            t.start()
            s.wait_metric("lignum_requests_running", 1)
            s.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            self.assertEqual(s.get("/live")[0], 200)
            code, headers, body = s.get("/ready")
            self.assertEqual((code, body["status"]), (503, "draining"))
            code, headers, body = s.post(CHAT, HI)
            self.assertEqual((code, body["error"]["code"], headers["Retry-After"]), (503, "shutting_down", "1"))
            t.join()
            self.assertEqual(server.text_of(got)[1], text)
            self.assertEqual(got[-1], "[DONE]")
            self.assertEqual(s.process.wait(10), 0)

    def test_drain_deadline_ends_streams_with_an_error(self):
        path, _ = server.script(tokens=1000, step_us=10000)
        with server.scripted("--drain", "1", path=path) as s:
            events = s.stream(CHAT, HI)
            next(events)
            start = time.monotonic()
            s.process.send_signal(signal.SIGTERM)
            last = list(events)[-1]
            self.assertEqual(last["error"]["code"], "shutting_down")
            self.assertEqual(s.process.wait(10), 0)
            self.assertTrue(0.8 < time.monotonic() - start < 4)

    def test_second_signal_forces(self):
        path, _ = server.script(tokens=1000, step_us=10000)
        with server.Server("--worker", server.SCRIPTED, env={"LG_SCRIPT": path, "LG_LOG": "info"}) as s:
            events = s.stream(CHAT, HI)
            next(events)
            s.process.send_signal(signal.SIGINT)
            time.sleep(0.3)
            self.assertIsNone(s.process.poll())
            self.assertIn("info: signal 2: finishing 1 requests", s.errors())
            s.process.send_signal(signal.SIGINT)
            self.assertEqual(s.process.wait(4), 0)


if __name__ == "__main__":
    unittest.main(warnings="ignore", verbosity=2)
