"""npm_client.py - the official openai and @anthropic-ai/sdk packages from npm against a scripted model; see npm_client.mjs."""
import os
import shutil
import subprocess
import sys

import clients
import sdk_client
import server


def main():
    folder = clients.npm("clients", clients.NPM)
    shutil.copy(os.path.join(os.path.dirname(os.path.abspath(__file__)), "npm_client.mjs"), folder)
    with server.scripted(path=server.answers(*sdk_client.RULES, ctx=8192)) as s:
        sys.exit(subprocess.run(["node", os.path.join(folder, "npm_client.mjs"), "http://127.0.0.1:%d" % s.port, server.NAME]).returncode)


if __name__ == "__main__":
    main()
