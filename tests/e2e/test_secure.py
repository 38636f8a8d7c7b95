"""test_secure.py - who may use the endpoint: keys, roles, limits, Host, Origin, what others can reach.  The worker is scripted."""
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import server

HI = {"model": server.NAME, "messages": [{"role": "user", "content": "hi"}],
      "chat_template_kwargs": {"enable_thinking": False}}
CHAT = "/v1/chat/completions"


def keys(*args, text=None):
    """Run `lignum keys`; exit status, standard output, standard error."""
    p = subprocess.run([server.LIGNUM, "keys", *args], input=text, capture_output=True, text=True, timeout=30)
    return p.returncode, p.stdout, p.stderr


def bearer(key):
    return {"Authorization": "Bearer " + key}


class KeysCommand(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.file = os.path.join(self.dir.name, "keys")

    def tearDown(self):
        self.dir.cleanup()

    def test_add_list_remove(self):
        code, key, said = keys("add", self.file, "--name", "alice", "--concurrent", "2")
        key = key.strip()
        self.assertEqual((code, key[:3], len(key)), (0, "lg-", 46), said)
        self.assertEqual(os.stat(self.file).st_mode & 0o777, 0o600)
        with open(self.file, "a") as f:
            f.write("# a comment\n")
        self.assertEqual(keys("add", self.file, "--name", "bob", "--role", "admin")[0], 0)
        with open(self.file) as f:
            text = f.read()
        self.assertNotIn(key, text)
        self.assertNotIn(key[3:], text)
        self.assertIn("# a comment\n", text)
        row = json.loads(text.splitlines()[0])
        self.assertEqual((row["name"], row["role"], row["concurrent"]), ("alice", "user", 2))
        self.assertEqual(keys("hash", text=key + "\n")[1].strip(), row["hash"])
        self.assertRegex(keys("list", self.file)[1], r"alice +user +- +- +2 +- +0\nbob +admin")
        self.assertEqual(keys("remove", self.file, "--name", "alice")[0], 0)
        with open(self.file) as f:
            left = f.read()
        self.assertEqual(left, "".join(text.splitlines(True)[1:]))

    def test_wrong_use(self):
        keys("add", self.file, "--name", "alice")
        before = open(self.file).read()
        for args, code in ((["add", self.file, "--name", "alice"], 1), (["add", self.file], 2), (["add", self.file, "--name", "a b"], 2),
                           (["add", self.file, "--name", "x", "--role", "root"], 2), (["remove", self.file, "--name", "carol"], 1),
                           (["add", self.file, "--name", "x", "--concurrent", "0"], 2), (["list", self.file + "x"], 1), ([], 2)):
            got, _, said = keys(*args)
            self.assertEqual(got, code, (args, said))
            self.assertTrue(said)
        self.assertEqual(keys("hash", text="short\n")[0], 1)
        self.assertEqual(open(self.file).read(), before)
        self.assertEqual(os.listdir(self.dir.name), ["keys"])


class Keyed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory()
        cls.file = os.path.join(cls.dir.name, "keys")
        cls.key = {}
        for name, more in (("user", []), ("admin", ["--role", "admin"]), ("metrics", ["--role", "metrics"]),
                           ("slow", ["--requests-per-minute", "2"]), ("one", ["--concurrent", "1"]),
                           ("thrifty", ["--tokens-per-minute", "30"]), ("short", ["--max-context", "20"])):
            code, out, said = keys("add", cls.file, "--name", name, *more)
            assert code == 0, said
            cls.key[name] = out.strip()
        path, cls.text = server.script(tokens=40, step_us=1000)
        cls.s = server.scripted("--keys", cls.file, path=path)

    @classmethod
    def tearDownClass(cls):
        cls.s.stop(signal.SIGKILL)
        cls.dir.cleanup()

    def ask(self, name, body=HI):
        return self.s.request("POST", CHAT, body, headers=bearer(self.key[name]))

    def test_no_key_and_wrong_key(self):
        for headers in ({}, bearer("x"), bearer(self.key["user"] + "x"), bearer(self.key["user"][:-1]), {"X-Api-Key": ""},
                        {"Authorization": "Basic " + self.key["user"]}):
            for method, path, body in (("POST", CHAT, HI), ("GET", "/v1/models", None), ("GET", "/metrics", None), ("GET", "/nowhere", None)):
                code, got, answer = self.s.request(method, path, body, headers=headers)
                self.assertEqual((code, got["WWW-Authenticate"]), (401, "Bearer"), (headers, path))
                self.assertEqual(answer["error"]["code"], "invalid_api_key")
        self.assertEqual(self.s.get("/live")[0], 200)
        self.assertEqual(self.s.get("/ready")[0], 200)

    def test_roles(self):
        want = {"user": (200, 403), "admin": (200, 200), "metrics": (403, 200)}
        for name, (models, metrics) in want.items():
            for headers in (bearer(self.key[name]), {"x-api-key": self.key[name]}):
                self.assertEqual(self.s.request("GET", "/v1/models", headers=headers)[0], models)
                self.assertEqual(self.s.request("GET", "/metrics", headers=headers)[0], metrics)
        code, _, answer = self.ask("user")
        self.assertEqual((code, answer["choices"][0]["message"]["content"]), (200, self.text))

    def test_a_body_is_not_read_without_a_key(self):
        with self.s.connect(10) as c:
            c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000\r\n\r\n" % CHAT.encode())
            answer = server.read_all(c)
        self.assertTrue(answer.startswith(b"HTTP/1.1 401 "))
        self.assertIn(b"Connection: close", answer)
        with self.s.connect(10) as c:  # nor is it asked for
            c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n" % CHAT.encode())
            self.assertTrue(server.read_all(c).startswith(b"HTTP/1.1 401 "))

    def test_requests_per_minute(self):
        for left in ("1", "0"):
            code, headers, _ = self.ask("slow")
            self.assertEqual((code, headers["x-ratelimit-limit-requests"], headers["x-ratelimit-remaining-requests"]), (200, "2", left))
        code, headers, answer = self.ask("slow")
        self.assertEqual((code, answer["error"]["type"], answer["error"]["code"]), (429, "rate_limit_error", "rate_limit_exceeded"))
        self.assertTrue(1 <= int(headers["Retry-After"]) <= 30, headers["Retry-After"])
        self.assertEqual(self.ask("user")[0], 200)

    def test_tokens_per_minute(self):
        code, headers, answer = self.ask("thrifty")
        self.assertEqual((code, headers["x-ratelimit-remaining-tokens"]), (200, "0"))
        code, headers, answer = self.ask("thrifty")
        self.assertEqual(code, 429)
        self.assertIn("30 tokens a minute", answer["error"]["message"])

    def test_concurrent(self):
        results = server.in_threads([lambda: self.ask("one")[0] for _ in range(6)])
        self.assertIn(200, results)
        self.assertIn(429, results)
        self.assertEqual(set(results), {200, 429})
        self.assertEqual(self.ask("one")[0], 200)

    def test_max_context(self):
        code, _, answer = self.ask("short")
        self.assertEqual((code, answer["choices"][0]["finish_reason"]), (200, "length"))
        self.assertEqual(answer["usage"]["total_tokens"], 20)
        code, _, answer = self.ask("short", {**HI, "max_tokens": 20})
        self.assertEqual((code, answer["error"]["code"]), (400, "context_length_exceeded"))

    def test_no_secret_and_no_text_in_the_log(self):
        body = {**HI, "messages": [{"role": "user", "content": "canary-4711"}], "max_tokens": -1}
        self.assertEqual(self.ask("user", body)[0], 400)
        self.ask("user", b'{"messages": [{"role": "user", "content": "canary-4711"')
        self.s.request("POST", CHAT, HI, headers=bearer("canary-4711"))
        said = self.s.errors()
        for secret in ["canary-4711", *self.key.values()]:
            self.assertNotIn(secret, said)


class Reload(unittest.TestCase):
    def test_sighup(self):
        with tempfile.TemporaryDirectory() as d:
            file = os.path.join(d, "keys")
            a = keys("add", file, "--name", "a")[1].strip()
            path, text = server.script(tokens=100, step_us=10000)
            with server.scripted("--keys", file, path=path) as s:
                def models(key):
                    return s.request("GET", "/v1/models", headers=bearer(key))[0]

                def until(key, code):
                    deadline = time.monotonic() + 5
                    while models(key) != code and time.monotonic() < deadline:
                        time.sleep(0.02)
                    self.assertEqual(models(key), code)
                self.assertEqual(models(a), 200)
                got = []
                t = threading.Thread(target=lambda: got.append(s.request("POST", CHAT, HI, headers=bearer(a))))
                t.start()
                time.sleep(0.3)
                b = keys("add", file, "--name", "b")[1].strip()
                keys("remove", file, "--name", "a")
                self.assertEqual(models(b), 401)
                s.process.send_signal(signal.SIGHUP)
                until(b, 200)
                self.assertEqual(models(a), 401)
                t.join()  # what was admitted goes on
                self.assertEqual((got[0][0], got[0][2]["choices"][0]["message"]["content"]), (200, text))
                with open(file, "a") as f:
                    f.write("{broken\n")
                s.process.send_signal(signal.SIGHUP)
                deadline = time.monotonic() + 5
                while "stay as they were" not in s.errors() and time.monotonic() < deadline:
                    time.sleep(0.02)
                self.assertIn("line 2", s.errors())
                self.assertEqual(models(b), 200)

    def test_no_start_with_a_bad_file(self):
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as f:
            f.write('{"name": "a"}\n')
            f.flush()
            path, _ = server.script()
            s = server.scripted("--keys", f.name, path=path, wait=False)
            self.assertEqual(s.process.wait(20), 1)
            self.assertIn("line 1", s.errors())


class Local(unittest.TestCase):
    """Without keys: this machine only, and no web page."""
    @classmethod
    def setUpClass(cls):
        path, _ = server.script(tokens=3, step_us=0)
        cls.s = server.scripted("--allow-host", "box.lan", "--cors-origin", "https://app.example", path=path)

    @classmethod
    def tearDownClass(cls):
        cls.s.stop(signal.SIGKILL)

    def test_host(self):
        for host, code in (("localhost", 200), ("127.0.0.1:1", 200), ("[::1]", 200), ("box.lan:80", 200), ("evil.example", 403),
                           ("box.lan.evil.example", 403)):
            got, _, answer = self.s.request("GET", "/v1/models", headers={"Host": host})
            self.assertEqual(got, code, host)
            if code == 403:
                self.assertEqual(answer["error"]["code"], "host_not_allowed")

    def test_origin(self):
        code, headers, answer = self.s.request("POST", CHAT, HI, headers={"Origin": "https://evil.example"})
        self.assertEqual((code, answer["error"]["code"], headers["Access-Control-Allow-Origin"]), (403, "origin_not_allowed", None))
        code, headers, _ = self.s.request("POST", CHAT, HI, headers={"Origin": "https://app.example"})
        self.assertEqual((code, headers["Access-Control-Allow-Origin"]), (200, "https://app.example"))
        code, headers, _ = self.s.request("OPTIONS", CHAT, headers={"Origin": "https://app.example", "Access-Control-Request-Method": "POST",
                                                                   "Access-Control-Request-Headers": "content-type"})
        self.assertEqual((code, headers["Access-Control-Allow-Headers"]), (200, "content-type"))
        code, headers, _ = self.s.request("OPTIONS", CHAT, headers={"Origin": "https://evil.example"})
        self.assertEqual((code, headers["Access-Control-Allow-Origin"]), (403, None))

    def test_others_cannot_reach_it_unless_said(self):
        path, _ = server.script()
        for host in ("0.0.0.0", "::"):
            s = server.scripted("--host", host, path=path, wait=False)
            self.assertEqual(s.process.wait(20), 1)
            self.assertIn("--insecure", s.errors())
        with tempfile.TemporaryDirectory() as d:
            keys("add", os.path.join(d, "keys"), "--name", "a")
            s = server.scripted("--host", "0.0.0.0", "--keys", os.path.join(d, "keys"), path=path, wait=False)
            self.assertEqual(s.process.wait(20), 1)
            self.assertIn("is no TLS", s.errors())
        s = server.scripted("--host", "0.0.0.0", "--insecure", path=path, wait=False)
        self.assertIn("Loading", s.process.stdout.readline())
        self.assertIn("http://0.0.0.0:", s.process.stdout.readline())
        s.stop(signal.SIGKILL)


class Connections(unittest.TestCase):
    def test_limits(self):
        path, _ = server.script(tokens=3, step_us=0)
        for option, code in (("--max-connections", 503), ("--max-connections-per-address", 429)):
            with server.scripted(option, "5", path=path) as s:
                held = [s.connect() for _ in range(5)]
                deadline = time.monotonic() + 5
                answer = b""
                while not answer and time.monotonic() < deadline:  # the five may still be in the accept queue
                    with s.connect(5) as c:
                        answer = server.read_all(c)
                self.assertTrue(answer.startswith(b"HTTP/1.1 %d " % code), answer)
                self.assertIn(b"Retry-After", answer)
                held.pop().close()
                while s.raw(b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")[9:12] != b"200":
                    self.assertLess(time.monotonic(), deadline)
                for c in held:
                    c.close()
                time.sleep(0.2)
                self.assertGreater(s.metrics()["lignum_connections_refused_total"], 0)

    def test_deadlines_can_be_set(self):
        path, _ = server.script(tokens=3, step_us=0)
        with server.scripted("--head-deadline", "1", "--body-deadline", "1", "--idle-deadline", "1", path=path) as s:
            for data, want in ((b"", b""), (b"GET /live HTTP/1.1\r\n", b"408"),
                               (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{", b"408")):
                start = time.monotonic()
                self.assertEqual(s.raw(data, timeout=8)[9:12], want)
                self.assertTrue(0.8 < time.monotonic() - start < 4)


class Process(unittest.TestCase):
    def test_no_core_files_unless_said(self):
        path, _ = server.script(tokens=3, step_us=0)
        for args, soft in (((), "0"), (("--core-dumps",), None)):
            with server.Server(*args) as s:
                for pid in (s.process.pid, s.worker()):
                    with open("/proc/%d/limits" % pid) as f:
                        core = next(line.split()[4] for line in f if line.startswith("Max core file size"))
                    if soft is not None:
                        self.assertEqual(core, soft)
                    with open("/proc/%d/status" % pid) as f:
                        self.assertRegex(f.read(), r"NoNewPrivs:\s+1")
                    if os.getuid() != 0:  # a process that may not be looked into belongs to root in /proc
                        self.assertEqual(os.stat("/proc/%d" % pid).st_uid == 0, soft is not None)


class Systemd(unittest.TestCase):
    """The protocols of sd_notify(3) and sd_listen_fds(3)."""

    def test_readiness_reload_and_stop(self):
        with tempfile.TemporaryDirectory() as d, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(os.path.join(d, "notify"))
            manager.settimeout(20)
            path, _ = server.script(tokens=3, step_us=0)
            with server.scripted(path=path, env={"NOTIFY_SOCKET": os.path.join(d, "notify")}) as s:
                self.assertEqual(manager.recv(1000), b"READY=1")
                with open("/proc/%d/environ" % s.worker(), "rb") as f:
                    self.assertNotIn(b"NOTIFY_SOCKET", f.read())
                s.process.send_signal(signal.SIGHUP)
                self.assertRegex(manager.recv(1000), rb"^RELOADING=1\nMONOTONIC_USEC=\d+$")
                self.assertEqual(manager.recv(1000), b"READY=1")
                s.process.send_signal(signal.SIGTERM)
                self.assertEqual(manager.recv(1000), b"STOPPING=1")
                self.assertEqual(s.process.wait(20), 0)

    def test_sockets_are_taken_over(self):
        path, _ = server.script(tokens=3, step_us=0)
        with tempfile.TemporaryDirectory() as d, socket.socket() as tcp, socket.socket(socket.AF_UNIX) as unix:
            tcp.bind(("127.0.0.1", 0))
            unix.bind(os.path.join(d, "socket"))
            for listener in (tcp, unix):
                listener.listen(10)
            command = "import os,sys; os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='2'); os.dup2(%d, 13); os.dup2(%d, 14); " \
                "os.dup2(13, 3); os.dup2(14, 4); os.execv(sys.argv[1], sys.argv[1:])" % (tcp.fileno(), unix.fileno())
            p = subprocess.Popen([sys.executable, "-c", command, server.LIGNUM, "serve", "--model", server.MODEL, "--worker", server.SCRIPTED],
                                 env={**os.environ, "LG_SCRIPT": path}, stdout=subprocess.PIPE, text=True,
                                 pass_fds=(tcp.fileno(), unix.fileno()))
            try:
                for line in p.stdout:
                    if line.startswith("Ctrl-C"):
                        break
                    if "is ready" in line:
                        self.assertIn("http://127.0.0.1:%d" % tcp.getsockname()[1], line)
                for address in (tcp.getsockname(), unix.getsockname()):
                    with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as c:
                        c.settimeout(10)
                        c.connect(address)
                        c.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                        self.assertTrue(server.read_all(c).startswith(b"HTTP/1.1 200"))
            finally:
                p.kill()
                p.wait()
                p.stdout.close()


if __name__ == "__main__":
    unittest.main(warnings="ignore", verbosity=2)
