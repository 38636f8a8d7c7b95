"""server.py - start `lignum serve` for a test, talk to it, look into it.

Standard library only.  Programs and data are found through LG_BUILD_DIR and LG_SOURCE_DIR.  Exit status 77 is a skip.
"""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

SOURCE = os.environ.get("LG_SOURCE_DIR", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
BUILD = os.environ.get("LG_BUILD_DIR", os.path.join(SOURCE, "build"))
LIGNUM = os.environ.get("LG_LIGNUM", os.path.join(BUILD, "cli", "lignum"))
HOOKS = os.environ.get("LG_LIGNUM_HOOKS", os.path.join(BUILD, "cli", "lignum-hooks"))
SCRIPTED = os.environ.get("LG_SCRIPTED_WORKER", os.path.join(BUILD, "tests", "e2e", "scripted_worker"))
NAME = "tiny-qwen35moe"
MODEL = os.path.join(SOURCE, "models", "tiny-qwen35moe")


def skip(why):
    print("SKIP: " + why)
    sys.exit(77)


def evals(task=None):
    """Rows of the bundled model's evaluation prompts that it answers correctly."""
    with open(os.path.join(SOURCE, "tests", "data", "eval.jsonl"), encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    return [r for r in rows if r["correct"] and (task is None or r["task"].startswith(task))]


def chat_body(row, **more):
    """The chat request that renders to the row's prompt, greedy."""
    body = {"model": NAME, "messages": row["messages"], "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": row["enable_thinking"] is not False}}
    if row["tools"]:
        body["tools"] = row["tools"]
    body.update(more)
    return body


class Server:
    def __init__(self, *args, exe=LIGNUM, model=MODEL, env=None, wait=True, tls=None):
        """tls: an ssl.SSLContext for clients of a server that got --tls-cert."""
        self.tls = tls
        self.log = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen([exe, "serve", "--model", model, "--name", NAME, "--port", "0", *args], stdout=subprocess.PIPE,
                                        stderr=self.log, env={**os.environ, **(env or {})}, text=True)
        self.port, self.said = None, []
        if wait:
            self.wait()

    def wait(self):
        """Until the line that says ready; it names the port."""
        for line in self.process.stdout:
            self.said.append(line)
            found = re.search(r"https?://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found.group(1))
            if line.startswith("Ctrl-C"):
                break
        if self.port is None:
            self.process.wait()
            raise AssertionError("the server did not start: " + self.errors())
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        assert self.get("/ready")[0] == 200

    def errors(self):
        self.log.seek(0)
        return self.log.read()

    def __enter__(self):
        return self

    def __exit__(self, *what):
        self.stop(signal.SIGKILL)

    def stop(self, sig=signal.SIGTERM, timeout=60):
        """Exit status."""
        if self.process.poll() is None:
            self.process.send_signal(sig)
        return self.process.wait(timeout)

    def worker(self):
        """Process id of the worker, or None."""
        try:
            with open("/proc/%d/task/%d/children" % (self.process.pid, self.process.pid)) as f:
                pids = f.read().split()
        except OSError:
            return None
        return int(pids[0]) if pids else None

    def kill_worker(self):
        os.kill(self.worker(), signal.SIGKILL)

    def connect(self, timeout=60):
        s = socket.create_connection(("127.0.0.1", self.port), timeout)
        return self.tls.wrap_socket(s, server_hostname="localhost") if self.tls else s

    def http(self, timeout):
        if self.tls:
            return http.client.HTTPSConnection("localhost", self.port, timeout=timeout, context=self.tls)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, timeout=120, headers=None):
        """Status, headers, body (parsed when it is JSON).  `headers` come on top."""
        c = self.http(timeout)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            c.request(method, path, data, {**({"Content-Type": "application/json"} if data is not None else {}), **(headers or {})})
            r = c.getresponse()
            text = r.read()
            is_json = (r.getheader("Content-Type") or "").startswith("application/json")
            return r.status, r.headers, json.loads(text) if is_json and text else text.decode()
        finally:
            c.close()

    def get(self, path):
        return self.request("GET", path)

    def post(self, path, body, timeout=120):
        return self.request("POST", path, body, timeout)

    def chat(self, body):
        status, _, answer = self.post("/v1/chat/completions", body)
        assert status == 200, (status, answer)
        return answer

    def stream(self, path, body, timeout=120):
        """Parsed events of a stream, the last one "[DONE]"."""
        c = self.http(timeout)
        try:
            c.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
            r = c.getresponse()
            if r.status != 200:
                raise AssertionError((r.status, r.read()))
            for line in r:
                line = line.decode().rstrip("\n")
                if line.startswith("data: "):
                    yield line[6:] if line[6:] == "[DONE]" else json.loads(line[6:])
        finally:
            c.close()

    def raw(self, data, timeout=10):
        """Send bytes, return all that comes until the server closes or is silent for `timeout`."""
        with self.connect(timeout) as s:
            s.sendall(data)
            return read_all(s)

    def metrics(self):
        """Sample line without value -> value."""
        status, _, text = self.get("/metrics")
        assert status == 200
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, value in lines}

    def wait_metric(self, name, value, timeout=20):
        """Until a metric has that value; returns the seconds it took."""
        start = time.monotonic()
        while True:
            now = self.metrics().get(name, 0)
            if now == value:
                return time.monotonic() - start
            if time.monotonic() - start > timeout:
                raise AssertionError("%s is %s, expected %s; %s" % (name, now, value, self.errors()))
            time.sleep(0.01)


def alive(pid):
    """Whether a process runs (a zombie does not)."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(") ", 1)[1][0] != "Z"
    except OSError:
        return False


def read_all(s):
    out = b""
    try:
        while True:
            part = s.recv(65536)
            if not part:
                return out
            out += part
    except (socket.timeout, ConnectionError):
        return out


def text_of(events):
    """Joined content of choice 0, reasoning first, and its finish reason."""
    content, reasoning, finish = "", "", None
    for e in events:
        if e == "[DONE]" or not e.get("choices"):
            continue
        c = e["choices"][0]
        delta = c.get("delta") or {"content": c.get("text")}
        content += delta.get("content") or ""
        reasoning += delta.get("reasoning_content") or ""
        finish = c.get("finish_reason") or finish
    return reasoning, content, finish


def in_threads(jobs):
    """Run functions at the same time; their results in order; the first exception is raised."""
    results, errors = [None] * len(jobs), []

    def run(i, job):
        try:
            results[i] = job()
        except BaseException as e:  # reported below
            errors.append(e)

    threads = [threading.Thread(target=run, args=(i, job)) for i, job in enumerate(jobs)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return results


def script(*, tokens=60, slots=4, step_us=3000, text="w%d ", extra=""):
    """Path of a script for the scripted worker; the text it plays."""
    f = tempfile.NamedTemporaryFile("w", suffix=".script", delete=False)
    f.write("ctx 2048\nslots %d\nstep_us %d\n%s\n" % (slots, step_us, extra))
    words = [text % i if "%" in text else text for i in range(tokens)]
    for i, word in enumerate(words):
        f.write("token %d %s\n" % (100 + i, word))
    f.close()
    return f.name, "".join(words)


def answers(*rules, ctx=2048, extra=""):
    """Path of a script for the scripted worker: each rule is (text in the prompt, ..., what the model says)."""
    f = tempfile.NamedTemporaryFile("w", suffix=".script", delete=False)
    f.write("ctx %d\n%s\n" % (ctx, extra))
    for *when, say in rules:
        f.writelines("when %s\n" % json.dumps(text, ensure_ascii=False) for text in when)
        f.write("say %s\n" % json.dumps(say, ensure_ascii=False))
    f.close()
    return f.name


def call(name, **arguments):
    """A tool call as the model writes it."""
    shown = "".join("<parameter=%s>\n%s\n</parameter>\n" % (k, v if isinstance(v, str) else json.dumps(v)) for k, v in arguments.items())
    return "<tool_call>\n<function=%s>\n%s</function>\n</tool_call>" % (name, shown)


def scripted(*args, path, env=None, **more):
    return Server("--worker", SCRIPTED, *args, env={"LG_SCRIPT": path, **(env or {})}, **more)
