"""test_relay.py - the cables of link_relay.c between network namespaces: they carry what is sent, never sooner than they may, and can be cut.

Skipped where namespaces or /dev/net/tun are not there.  Times are only asked not to be too short.
"""
import subprocess
import sys
import unittest

import netns
import server

SERVE = """
import hashlib, socket, threading
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.bind(("", 7001))
seen = 0
def echo(): # datagrams come back
    global seen
    while True:
        data, who = u.recvfrom(9000)
        seen += 1
        u.sendto(data, who)
t = socket.create_server(("", 7002))
threading.Thread(target=echo, daemon=True).start()
print("up", flush=True)
c, _ = t.accept()
h = hashlib.sha256()
while part := c.recv(1 << 16):
    h.update(part)
c.sendall(("%s %d" % (h.hexdigest(), seen)).encode())
"""

ASK = """
import hashlib, os, socket, sys, time
to, n_echo, patience, cuts = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4] == "cut"
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
def echo(n, patience):
    u.settimeout(patience)
    came, start = 0, time.monotonic()
    for i in range(n):
        u.sendto(b"%d" % i, (to, 7001))
        try:
            came += u.recv(9000) == b"%d" % i
        except TimeoutError:
            pass
    print("echo", came, time.monotonic() - start, flush=True)
echo(n_echo, patience)
for command in ("cut", "mend") if cuts else ():
    print("now", command, flush=True)
    input()
    echo(1, 0.2 if command == "cut" else patience)
data = os.urandom(2000000)
start = time.monotonic()
c = socket.create_connection((to, 7002))
c.sendall(data)
c.shutdown(socket.SHUT_WR)
answer = c.recv(100).decode().split()
print("bulk", int(answer[0] == hashlib.sha256(data).hexdigest()), time.monotonic() - start, answer[1], flush=True)
"""


def inside(m, i, script, *args):
    return subprocess.Popen(["ip", "netns", "exec", m.name + str(i), sys.executable, "-c", script, *args], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True)


class Cables(unittest.TestCase):
    def test_rate_delay_cut(self):
        m = netns.Machines(3, cable="10,20000")  # 10 MB/s, 20 ms
        self.addCleanup(m.close)
        with inside(m, 3, SERVE) as there, inside(m, 1, ASK, netns.NETWORK + ".3", "5", "20", "cut") as here:
            def reads(what):
                words = here.stdout.readline().split()
                self.assertEqual(words[0], what)
                return words[1:]

            def obeys(command):
                self.assertEqual(reads("now"), [command])
                self.assertEqual(m.tell(command + " 3"), command + " 3")
                here.stdin.write("\n")
                here.stdin.flush()
                return int(reads("echo")[0])
            try:
                self.assertEqual(there.stdout.readline(), "up\n")
                n, took = reads("echo")
                self.assertEqual(n, "5")
                self.assertGreaterEqual(float(took), 5 * 2 * 0.020)
                self.assertEqual(obeys("cut"), 0)
                self.assertEqual(obeys("mend"), 1)
                same, took, seen = reads("bulk")
                self.assertEqual((same, seen), ("1", "6"))
                self.assertGreaterEqual(float(took), 2000000 / 10e6 + 0.040)
            finally:
                here.kill()
                there.kill()
        n_packet, n_byte, _, n_lost = [int(w) for w in m.tell("count").split()[1:]]
        self.assertGreater(n_packet, 2 * 6 + 2000000 / 9000)
        self.assertGreater(n_byte, 2000000)
        self.assertEqual(n_lost, 0)
        self.assertIn("what is", m.tell("cut 4"))

    def test_loss(self):
        """TCP carries everything over cables that lose a packet in twenty; datagrams are gone."""
        m = netns.Machines(2, cable="50,100,50,5")
        self.addCleanup(m.close)
        with inside(m, 2, SERVE) as there:
            try:
                self.assertEqual(there.stdout.readline(), "up\n")
                out, _ = inside(m, 1, ASK, netns.NETWORK + ".2", "100", "0.02", "").communicate(timeout=60)
                echo, bulk = [line.split() for line in out.splitlines()]
                self.assertLess(int(echo[1]), 100)
                self.assertEqual(bulk[1], "1")
            finally:
                there.kill()
        self.assertGreater(int(m.tell("count").split()[4]), 0)


if __name__ == "__main__":
    why = netns.why_not() or netns.relay_why_not()
    if why:
        server.skip(why)
    unittest.main()
