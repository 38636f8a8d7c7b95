"""schema_client.py - requests made from GET /openapi.json by schemathesis, against a scripted model: never a 5xx, and the server lives.

usage: schema_client.py [EXAMPLES]   for each route
"""
import re
import subprocess
import sys
import tempfile

import clients
import server


def main():
    python = clients.venv("clients-long", clients.PY_LONG)
    path, _ = server.script(tokens=3, step_us=0, slots=64)
    n = sys.argv[1] if len(sys.argv) > 1 else "150"
    with server.scripted(path=path) as s, tempfile.TemporaryDirectory() as folder:  # it leaves files where it is started
        run = subprocess.run([python, "-m", "schemathesis.cli", "run", "http://127.0.0.1:%d/openapi.json" % s.port, "--checks",
                              "not_a_server_error,content_type_conformance", "--phases", "examples,coverage,fuzzing", "--mode", "all",
                              "--max-examples", n, "--seed", "1", "--no-color", "--generation-database", "none"], cwd=folder,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print(run.stdout[-6000:])
        statuses = {}
        for name, value in s.metrics().items():
            found = re.match(r'lignum_http_requests_total\{route="\w+",status="(\d+)"\}', name)
            if found and value:
                statuses[found.group(1)] = statuses.get(found.group(1), 0) + int(value)
        print("answers by status:", statuses)
        assert not [k for k in statuses if k[0] == "5"] and statuses.get("200", 0) > 100 and statuses.get("400", 0) > 100, statuses
        assert s.process.poll() is None
        sys.exit(run.returncode)


if __name__ == "__main__":
    main()
