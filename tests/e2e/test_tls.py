"""test_tls.py - the endpoint over TLS: versions, client certificates, reload, clients that leave or do not read.  The worker is scripted.

Certificates are made here with the command `openssl`; without it the test is skipped.
"""
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import unittest

import server

HI = {"model": server.NAME, "messages": [{"role": "user", "content": "hi"}],
      "chat_template_kwargs": {"enable_thinking": False}}
CHAT = "/v1/chat/completions"


class Certs:
    """An authority, and certificates that it has signed, in a folder."""

    def __init__(self, folder):
        self.folder = folder
        self.run("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=test authority",
                 "-keyout", "ca.key", "-out", "ca.pem")

    def run(self, *args):
        subprocess.run(["openssl", *args], cwd=self.folder, check=True, capture_output=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def make(self, name, cn="localhost"):
        self.run("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=" + cn, "-keyout", name + ".key", "-out", name + ".csr")
        with open(self.path("ext"), "w") as f:
            f.write("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        self.run("x509", "-req", "-in", name + ".csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2", "-extfile", "ext", "-out", name + ".pem")

    def context(self, client=None):
        c = ssl.create_default_context(cafile=self.path("ca.pem"))
        if client:
            c.load_cert_chain(self.path(client + ".pem"), self.path(client + ".key"))
        return c


def files_of(pid):
    return len(os.listdir("/proc/%d/fd" % pid))


class Served(unittest.TestCase):
    """A server with a certificate, which plays the script of SCRIPT."""
    SCRIPT = {}

    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory()
        cls.certs = Certs(cls.dir.name)
        cls.certs.make("one")
        path, cls.text = server.script(**cls.SCRIPT)
        cls.s = server.scripted("--tls-cert", cls.certs.path("one.pem"), "--tls-key", cls.certs.path("one.key"), "--head-deadline", "2",
                                path=path, tls=cls.certs.context())

    @classmethod
    def tearDownClass(cls):
        cls.s.stop(signal.SIGKILL)
        cls.dir.cleanup()


class Tls(Served):
    SCRIPT = {"tokens": 60, "step_us": 1000}

    def test_answers_and_streams(self):
        self.assertTrue(any("https://127.0.0.1" in line for line in self.s.said))
        self.assertEqual(self.s.chat(HI)["choices"][0]["message"]["content"], self.text)
        jobs = [lambda: server.text_of(list(self.s.stream(CHAT, HI)))[1] for _ in range(16)]
        self.assertEqual(server.in_threads(jobs), [self.text] * 16)
        big = {**HI, "messages": [{"role": "user", "content": "x " * 200000}]}
        self.assertEqual(self.s.post(CHAT, big)[0], 400)  # more records than one, and longer than the context

    def test_versions_and_ciphers(self):
        def with_version(v):
            c = self.certs.context()
            c.minimum_version = c.maximum_version = v
            with socket.create_connection(("127.0.0.1", self.s.port), 10) as s, c.wrap_socket(s, server_hostname="localhost") as t:
                return t.version(), t.cipher()[0], t.compression()
        self.assertEqual(with_version(ssl.TLSVersion.TLSv1_3)[0], "TLSv1.3")
        version, cipher, compression = with_version(ssl.TLSVersion.TLSv1_2)
        self.assertEqual((version, cipher[:5], compression), ("TLSv1.2", "ECDHE", None))
        for old in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
            with self.assertRaises((ssl.SSLError, ConnectionError, ValueError)):
                with_version(old)
        c = self.certs.context()
        c.maximum_version = ssl.TLSVersion.TLSv1_2
        c.set_ciphers("AES128-GCM-SHA256:ECDHE-ECDSA-AES128-SHA:@SECLEVEL=0")  # no forward secrecy; no authenticated cipher
        with socket.create_connection(("127.0.0.1", self.s.port), 10) as s, self.assertRaises((ssl.SSLError, ConnectionError)):
            c.wrap_socket(s, server_hostname="localhost")

    def test_plain_clients_and_garbage_are_cut_off(self):
        for data in (b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"\xff" * 3000, b"\0" * 100000):
            with socket.create_connection(("127.0.0.1", self.s.port), 10) as c:
                try:
                    c.sendall(data)
                    self.assertNotIn(b"200", server.read_all(c))
                except ConnectionError:
                    pass
        self.assertEqual(self.s.get("/live")[0], 200)

    def test_a_handshake_has_a_deadline(self):
        with socket.create_connection(("127.0.0.1", self.s.port), 10) as c:
            start = time.monotonic()
            c.sendall(b"\x16\x03\x01\x02")
            self.assertEqual(server.read_all(c), b"")
            self.assertTrue(1.5 < time.monotonic() - start < 5)

    def test_close_is_clean_and_nothing_leaks(self):
        self.s.get("/live")
        time.sleep(0.2)
        before = files_of(self.s.process.pid)
        for _ in range(50):
            with self.s.connect(10) as c:
                c.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                answer = b""
                while True:
                    part = c.recv(65536)  # an end without close_notify would raise
                    if not part:
                        break
                    answer += part
                self.assertTrue(answer.startswith(b"HTTP/1.1 200 "))
                self.assertTrue(answer.endswith(b"}"))
        deadline = time.monotonic() + 10
        while files_of(self.s.process.pid) > before and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(files_of(self.s.process.pid), before)


class Leaving(Served):
    SCRIPT = {"tokens": 1900, "step_us": 5000}

    def test_a_client_that_leaves_is_noticed(self):
        for stream in (True, False):
            body = json.dumps({**HI, "stream": stream}).encode()
            for how in ("close", "unwrap"):
                c = self.s.connect(10)
                c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(body)) + body)
                self.s.wait_metric("lignum_requests_running", 1)
                if how == "unwrap":
                    c.setblocking(False)
                    try:
                        c.unwrap()
                    except (ssl.SSLError, OSError):
                        pass
                c.close()
                took = self.s.wait_metric("lignum_requests_running", 0)
                self.assertLess(took, 3)


class Slow(Served):
    # With n = 8 some 8 MB: more than the kernel's buffers (4 MB at most) and the backlog that is allowed together.
    SCRIPT = {"tokens": 1900, "slots": 16, "step_us": 0, "text": "x" * 300}

    def test_a_client_that_does_not_read_is_cut_off(self):
        body = json.dumps({**HI, "stream": True, "n": 8}).encode()
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", self.s.port))
        with self.s.tls.wrap_socket(raw, server_hostname="localhost") as c:
            c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(body)) + body)
            self.s.wait_metric("lignum_slow_clients_total", 1)
        self.s.wait_metric("lignum_requests_running", 0)


class Clients(unittest.TestCase):
    def test_client_certificates_and_reload(self):
        with tempfile.TemporaryDirectory() as d:
            certs = Certs(d)
            for name in ("one", "two", "client"):
                certs.make(name, cn=name)
            for part in (".pem", ".key"):
                shutil.copy(certs.path("one" + part), certs.path("use" + part))
            path, _ = server.script(tokens=3, step_us=0)
            with server.scripted("--tls-cert", certs.path("use.pem"), "--tls-key", certs.path("use.key"), "--tls-client-ca", certs.path("ca.pem"),
                                 path=path, tls=certs.context("client")) as s:
                self.assertEqual(s.post(CHAT, HI)[0], 200)
                s.tls = certs.context()
                with self.assertRaises((ssl.SSLError, ConnectionError)):
                    s.get("/live")
                s.tls = certs.context("client")

                def name():
                    with s.connect(10) as c:
                        return dict(x[0] for x in c.getpeercert()["subject"])["commonName"]
                self.assertEqual(name(), "one")
                with s.connect(10) as old:  # open connections live through a reload
                    for part in (".pem", ".key"):
                        shutil.copy(certs.path("two" + part), certs.path("use" + part))
                    s.process.send_signal(signal.SIGHUP)
                    deadline = time.monotonic() + 5
                    while name() != "two" and time.monotonic() < deadline:
                        time.sleep(0.02)
                    self.assertEqual(name(), "two")
                    old.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                    self.assertTrue(server.read_all(old).startswith(b"HTTP/1.1 200"))
                shutil.copy(certs.path("one.key"), certs.path("use.key"))  # not the certificate's
                s.process.send_signal(signal.SIGHUP)
                deadline = time.monotonic() + 5
                while "TLS stays as it was" not in s.errors() and time.monotonic() < deadline:
                    time.sleep(0.02)
                self.assertIn("use.key", s.errors())
                self.assertEqual(name(), "two")

    def test_bad_files_are_named(self):
        with tempfile.TemporaryDirectory() as d:
            certs = Certs(d)
            certs.make("one")
            certs.make("two")
            certs.run("ec", "-in", "one.key", "-aes128", "-passout", "pass:x", "-out", "locked.key")
            with open(certs.path("junk"), "w") as f:
                f.write("junk\n")
            path, _ = server.script()
            for cert, key, named in (("none.pem", "one.key", "none.pem"), ("junk", "one.key", "junk"), ("one.pem", "none.key", "none.key"),
                                     ("one.pem", "two.key", "two.key"), ("one.pem", "locked.key", "locked.key")):
                s = server.scripted("--tls-cert", certs.path(cert), "--tls-key", certs.path(key), path=path, wait=False)
                self.assertEqual(s.process.wait(20), 1)
                self.assertIn(named, s.errors())
            s = server.scripted("--tls-cert", certs.path("one.pem"), path=path, wait=False)
            self.assertEqual(s.process.wait(20), 2)


if __name__ == "__main__":
    if not shutil.which("openssl"):
        server.skip("the command openssl is not installed")
    unittest.main(warnings="ignore")
