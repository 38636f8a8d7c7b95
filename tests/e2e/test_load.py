"""test_load.py - many clients: restarts under load, many streams, many idle connections.  Figures are printed, not judged.

usage: test_load.py [long]     long: 1,000 streams of the bundled model, 10,000 idle connections
"""
import http.client
import json
import os
import re
import resource
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import server

LONG = "long" in sys.argv[1:]
CHAT = {"model": server.NAME, "stream": True, "messages": [{"role": "user", "content": "hi"}],
        "chat_template_kwargs": {"enable_thinking": False}}
# Starts a program with a listening socket as systemd does.
HANDED = "import os,sys; os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1'); os.dup2(int(sys.argv[1]), 3); " \
    "os.execv(sys.argv[2], sys.argv[2:])"


def start_with(listener, path):
    """A server on that socket, once it is ready."""
    p = subprocess.Popen([sys.executable, "-c", HANDED, str(listener.fileno()), server.LIGNUM, "serve", "--model", server.MODEL, "--name",
                          server.NAME, "--worker", server.SCRIPTED], env={**os.environ, "LG_SCRIPT": path}, stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, text=True, pass_fds=(listener.fileno(),))
    for line in p.stdout:
        if line.startswith("Ctrl-C"):
            threading.Thread(target=p.stdout.read, daemon=True).start()
            return p
    raise AssertionError("no server: status %s" % p.wait())


def ask(port, body):
    """The text of a streamed answer; raises when anything is not as it should be."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json", "Connection": "close"})
        r = c.getresponse()
        if r.status != 200:
            raise AssertionError("status %d: %s" % (r.status, r.read()[:200]))
        lines = [x[6:] for x in r.read().decode().split("\n") if x.startswith("data: ")]
        assert lines[-1] == "[DONE]", lines[-1]
        return server.text_of([json.loads(x) for x in lines[:-1]])[1]
    finally:
        c.close()


class RollingRestart(unittest.TestCase):
    """A successor on the same socket is started, then the old one gets SIGTERM; clients notice nothing."""

    def test_no_request_fails(self):
        n_restart, n_client = (20, 32) if LONG else (3, 8)
        path, text = server.script(tokens=30, slots=64, step_us=2000)
        counts, failures, over = [0] * n_client, [], threading.Event()
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(1024)
            port = listener.getsockname()[1]
            old = start_with(listener, path)

            def client(i):
                while not over.is_set():
                    try:
                        if ask(port, CHAT) != text:
                            failures.append("another text")
                    except (OSError, AssertionError, http.client.HTTPException) as e:
                        failures.append(repr(e))
                    counts[i] += 1

            threads = [threading.Thread(target=client, args=(i,)) for i in range(n_client)]
            for t in threads:
                t.start()
            try:
                for _ in range(n_restart):
                    time.sleep(0.3)
                    new = start_with(listener, path)
                    old.send_signal(signal.SIGTERM)
                    self.assertEqual(old.wait(60), 0)
                    old = new
                time.sleep(0.3)
            finally:
                over.set()
                for t in threads:
                    t.join()
                old.send_signal(signal.SIGTERM)
                old.wait(60)
        print("rolling restart: %d requests of %d clients over %d restarts, %d failed" % (sum(counts), n_client, n_restart, len(failures)))
        self.assertEqual(failures, [])
        self.assertGreater(min(counts), 0)


def cpu_s(pid):
    """Processor seconds of a process so far."""
    with open("/proc/%d/stat" % pid) as f:
        field = f.read().rsplit(")", 1)[1].split()
    return (int(field[11]) + int(field[12])) / os.sysconf("SC_CLK_TCK")


def rss_mb(pid):
    with open("/proc/%d/status" % pid) as f:
        return int(re.search(r"RssAnon:\s+(\d+)", f.read()).group(1)) / 1024


class Stream:
    """One request and what came back, on a socket that does not block."""

    def __init__(self, port, body, want):
        self.want, self.got, self.over = want, b"", False
        self.socket = socket.create_connection(("127.0.0.1", port), 60)
        data = json.dumps(body).encode()
        self.socket.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
                            b"Content-Length: %d\r\n\r\n" % len(data) + data)
        self.socket.setblocking(False)

    def read(self):
        more = self.socket.recv(1 << 16)
        self.got += more
        self.over = not more

    def text(self):
        events = re.findall(rb"^data: (\{.*\})", self.got, re.M)
        return self.got[9:12], server.text_of([json.loads(e) for e in events])[1]


def run_streams(port, bodies, seconds):
    """All at the same time; [(status, text)] in order."""
    streams = [Stream(port, body, None) for body in bodies]
    left = len(streams)
    with selectors.DefaultSelector() as ready:
        for s in streams:
            ready.register(s.socket, selectors.EVENT_READ, s)
        end = time.time() + seconds
        while left and time.time() < end:
            for key, _ in ready.select(1):
                key.data.read()
                if key.data.over:
                    ready.unregister(key.fileobj)
                    key.fileobj.close()
                    left -= 1
    return [s.text() for s in streams]


class ManyStreams(unittest.TestCase):
    """Every answer is the one that its prompt gets alone."""

    def test_scripted(self):
        n = 1000 if LONG else 200
        path, text = server.script(tokens=40, slots=n, step_us=20000)
        with server.scripted("--max-connections", str(n + 24), path=path) as s:
            start, cpu = time.time(), cpu_s(s.process.pid)
            answers = run_streams(s.port, [CHAT] * n, 120)
            wall, cpu = time.time() - start, cpu_s(s.process.pid) - cpu
            self.assertEqual(sum(a == (b"200", text) for a in answers), n)
            print("%d streams of 40 tokens: gateway %.0f us of processor a token, %.0f %% of a core, %.0f MB" % (
                n, cpu / (40 * n) * 1e6, 100 * cpu / wall, rss_mb(s.process.pid)))

    @unittest.skipUnless(LONG, "1,000 streams of the bundled model take minutes")
    def test_bundled_model(self):
        rows = server.evals()
        with server.Server("--max-connections", "1100", "--parallel", "64") as s:
            bodies = [server.chat_body(r, stream=True) for r in rows]
            alone = [run_streams(s.port, [b], 60)[0] for b in bodies[:50]]
            start, cpu = time.time(), cpu_s(s.process.pid)
            answers = run_streams(s.port, [bodies[i % 50] for i in range(1000)], 900)
            wall, cpu = time.time() - start, cpu_s(s.process.pid) - cpu
            self.assertEqual([i for i in range(1000) if answers[i] != alone[i % 50]], [])
            print("1,000 streams of the bundled model: %.0f s, gateway %.1f %% of a core" % (wall, 100 * cpu / wall))


class TokenDelay(unittest.TestCase):
    """How long a token is on its way from the worker through link and gateway to a client that waits for it."""

    def measure(self, where, n):
        out = subprocess.run([os.path.join(server.BUILD, "tests", "bench", "bench_gateway"), str(where), str(n)], capture_output=True,
                             text=True, timeout=120)
        self.assertEqual(out.returncode, 0, out.stderr)
        r = json.loads(out.stdout)
        self.assertEqual(r["tokens"], 200 * n)
        return r

    def leave_last_processor(self, s):
        """To the client, which else takes turns with gateway and worker on a small machine."""
        cpus = os.sched_getaffinity(0)
        if len(cpus) < 2:
            return
        with open("/proc/%d/task/%d/children" % (s.process.pid, s.process.pid)) as f:
            pids = [s.process.pid, *map(int, f.read().split())]
        for pid in pids:
            for thread in os.listdir("/proc/%d/task" % pid):
                os.sched_setaffinity(int(thread), cpus - {max(cpus)})

    def test_delay(self):
        """Of one stream, of 64 whose tokens are made in the same instant, and of 64 whose tokens come one after the other.  What a plain loop
        of sends takes to the same client is the sockets' share; the rest is what gateway and link add."""
        show = "p50 %(p50_us)d us, p90 %(p90_us)d us, p99 %(p99_us)d us, max %(max_us)d us"
        for spread in (0, 1):
            path, _ = server.script(tokens=200, slots=64, step_us=5000, extra="stamp 1\nspread %d" % spread)
            with server.scripted(path=path) as s:
                self.leave_last_processor(s)
                for n in (64,) if spread else (1, 64):
                    r = self.measure(s.port, n)
                    print("token delay, %d streams, %s: %s" % (n, "one by one" if spread else "at once", show % r))
                    if not spread:
                        floor = self.measure("floor", n)
                        print("  a plain loop of sends: %s; gateway and link add p50 %d us, p99 %d us" % (
                            show % floor, r["p50_us"] - floor["p50_us"], r["p99_us"] - floor["p99_us"]))


class LongPrompts(unittest.TestCase):
    """Prompts of a megabyte, one after the other, beside streams of others: their tokens come on time, as bodies are read on another thread."""

    def test_streams_go_on(self):
        words = " ".join("word%d of the %s text" % (i, "\u00e9\u4e2d"[i % 2]) for i in range(40000))[:1000000]
        big = {**CHAT, "messages": [{"role": "user", "content": words}]}
        path, text = server.script(tokens=400, slots=16, step_us=5000)
        with server.scripted(path=path) as s:
            gaps, over = {False: [], True: []}, threading.Event()

            def stream(loaded):
                last = None
                for _ in s.stream("/v1/chat/completions", CHAT):
                    now = time.monotonic()
                    if last:
                        gaps[loaded].append(now - last)
                    last = now

            def prompts():
                while not over.is_set():
                    status, _, answer = s.post("/v1/chat/completions", big)
                    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded"), answer
                    sent.append(status)

            sent = []
            for loaded in (False, True):
                over.clear()
                busy = threading.Thread(target=prompts)
                if loaded:
                    busy.start()
                    time.sleep(0.3)
                server.in_threads([lambda: stream(loaded)] * 4)
                over.set()
                if loaded:
                    busy.join()
            self.assertGreater(len(sent), 1)
            for loaded in (False, True):
                g = sorted(gaps[loaded])
                print("tokens of 4 streams %s: pause p50 %.1f ms, p99 %.1f ms, max %.1f ms" % (
                    "beside %d prompts of 1 MB" % len(sent) if loaded else "alone", g[len(g) // 2] * 1e3, g[len(g) * 99 // 100] * 1e3, g[-1] * 1e3))


class ManyIdle(unittest.TestCase):
    def test_idle_connections(self):
        n = 10000 if LONG else 500
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and hard < n + 200:
            self.skipTest("the limit on open files is %d" % hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, n + 200)), hard))
        path, text = server.script(tokens=5, step_us=0)
        with server.scripted("--max-connections", str(n + 100), path=path) as s:
            before, idle = rss_mb(s.process.pid), []
            try:
                for i in range(n):
                    c = socket.create_connection(("127.0.0.1", s.port), 60)
                    idle.append(c)
                    c.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    if i % 100 == 99:
                        for c in idle[-100:]:
                            self.assertTrue(c.recv(4096).startswith(b"HTTP/1.1 200"))
                used = rss_mb(s.process.pid) - before
                self.assertEqual(ask(s.port, CHAT), text)
                print("%d idle connections: %.1f MB more, %.1f KiB each" % (n, used, used * 1024 / n))
                self.assertLess(used, 64 * max(1, n / 2000))
            finally:
                for c in idle:
                    c.close()


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], warnings="ignore", verbosity=2)
