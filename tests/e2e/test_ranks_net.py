"""test_ranks_net.py - ranks on two machines that are network namespaces, over TCP: answers, lost ranks, a cut cable.

The cables have 100 MB/s and 200 us where there is a relay (netns.py), else they are the kernel's.  Runs itself again inside the first machine, where the gateway is.  Skipped where namespaces, mpirun or the MPI module are not there.
"""
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import unittest

import netns
import server
import test_ranks

CHAT = "/v1/chat/completions"


def net_args():
    return ("--hosts", os.environ["LG_NET_HOSTS"], "--interface", os.environ["LG_NET_INTERFACE"], "--rank-timeout", "4")


def all_workers():
    """Process ids of every rank on all machines: the namespaces share this machine's processes."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/cmdline" % pid, "rb") as f:
                words = f.read().split(b"\0")
        except OSError:
            continue
        if b"worker" in words and b"--connect" in words and words[0].endswith(b"lignum") and os.environ["LG_NET_TAG"].encode() in words:
            found.append(int(pid))
    return found


class TwoMachines(unittest.TestCase):
    def start(self, n, *args):
        # The tag is a path that only our ranks have among their words.
        return test_ranks.Group(n, *net_args(), *args, "--expert-load-out", os.environ["LG_NET_TAG"])

    def test_answers_over_tcp(self):
        rows = server.evals()[::20]
        before = netns.sent("eth0"), netns.sent("eth1")
        for exchange in ("strict", "reduce"):
            with self.start(4, "--exchange", exchange) as s:
                self.assertEqual(len(all_workers()), 4)
                self.assertEqual(len(s.ranks()), 2 + 1)  # two ranks, and what reaches the other machine
                got = server.in_threads([lambda r=r: s.chat(server.chat_body(r, max_tokens=200)) for r in rows])
                for row, answer in zip(rows, got):
                    self.assertEqual(answer["usage"]["completion_tokens"], len(row["expected_ids"]), row["messages"])
                self.assertEqual(s.stop(), 0)
        self.assertGreater(netns.sent("eth0") - before[0], 1000000)
        self.assertEqual(netns.sent("eth1") - before[1], 0, "the ranks used a network that is not --interface")

    def interrupted(self, strike, *args):
        bodies = [test_ranks.long_body(i, temperature=0) for i in range(3)]
        with server.Server() as s:
            alone = server.in_threads([lambda b=b: server.text_of(s.stream(CHAT, b)) for b in bodies])
        with self.start(4, *args) as s:
            n_event, lock, once = [0], threading.Lock(), [True]

            def run(body):
                events = []
                for e in s.stream(CHAT, body):
                    events.append(e)
                    with lock:
                        n_event[0] += 1
                        if once[0] and n_event[0] > 60:
                            once[0] = False
                            strike(s)
                self.assertEqual(events[-1], "[DONE]")
                return server.text_of(events)
            got = server.in_threads([lambda b=b: run(b) for b in bodies])
            self.assertEqual(got, alone)
            self.assertGreaterEqual(s.metrics()["lignum_worker_restarts_total"], 1)
            return s.errors()

    def test_rank_of_the_other_machine_dies(self):
        def strike(s):
            here = s.ranks()
            (there, *_) = [p for p in all_workers() if p not in here]
            os.kill(there, signal.SIGKILL)
        self.interrupted(strike)

    def test_cable_is_cut_and_comes_back(self):
        def strike(s):
            """A rank inside a step misses the others; one on the machine that is cut off that waits for the next step, without a limit,
            hears of its group's end when the cable is back."""
            ranks, old = s.ranks(), all_workers()
            here = [p for p in old if p in ranks]
            start = time.monotonic()

            def wait(pids, limit):
                while any(server.alive(p) for p in pids) and time.monotonic() - start < limit:
                    time.sleep(0.05)
                return time.monotonic() - start
            netns.cut(os.environ["LG_NET_NAME"], 2)
            took = wait(here, 30)
            wait(old, 15)
            netns.cut(os.environ["LG_NET_NAME"], 2, down=False)
            every = wait(old, 60)
            print("ranks of the cut group ended after %.1f s, all of them after %.1f s" % (took, every))
            self.assertLess(took, 15)
            self.assertLess(every, 50)
        self.interrupted(strike)

    def test_a_machine_is_lost_for_good(self):
        """--min-ranks: the streams go on with the ranks of the machine that is left; when it is back, a new start has all of them."""
        name, folder = os.environ["LG_NET_NAME"], os.path.dirname(os.environ["LG_NET_TAG"])
        start = []

        def strike(_):
            start.append(time.monotonic())
            netns.cut(name, 2, folder=folder)
        try:
            said = self.interrupted(strike, "--min-ranks", "2")
            print("cut, lost, started on one machine, and all streams ended after %.1f s" % (time.monotonic() - start[0]))
            self.assertIn("%s.2 does not answer" % netns.NETWORK, said)
            self.assertIn("2 ranks instead of 4", said)
            with self.assertRaises(AssertionError) as e:  # too few to begin with
                self.start(4, "--min-ranks", "3")
            self.assertIn("room for 2 ranks; --min-ranks 3", str(e.exception))
        finally:
            netns.cut(name, 2, down=False, folder=folder)
        with self.start(4, "--min-ranks", "2") as s:
            until = time.monotonic() + 20  # a rank that was cut off may have to hear first that its group is gone
            while len(all_workers()) > 4 and time.monotonic() < until:
                time.sleep(0.05)
            self.assertEqual(len(all_workers()), 4)
            self.assertNotIn("does not answer", s.errors())


def main():
    if not shutil.which("mpirun") or not os.path.exists(test_ranks.MODULE):
        server.skip("mpirun or this build's MPI module is not there")
    why = netns.why_not()
    if why:
        server.skip(why)
    no_relay = netns.relay_why_not()
    print("cables: " + ("the kernel's, without delay (%s)" % no_relay if no_relay else "100 MB/s, 200 us"), flush=True)
    m = netns.Machines(2, cable=None if no_relay else "100,200")
    m.other_network()
    env = {**os.environ, **m.env(), "LG_NET_NAME": m.name, "LG_NET_HOSTS": m.hosts, "LG_NET_INTERFACE": m.interface,
           "LG_NET_TAG": os.path.join(m.dir, "load")}
    try:
        return subprocess.run(m.first([sys.executable, os.path.abspath(__file__), "--inside", *sys.argv[1:]]), env=env, check=False).returncode
    finally:
        m.close()


if __name__ == "__main__":
    if "--inside" not in sys.argv:
        sys.exit(main())
    sys.argv.remove("--inside")
    unittest.main()
