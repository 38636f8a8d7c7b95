"""test_ranks.py - one model over several ranks started by mpirun: the answers of one process, and ranks that may die.

Skipped where mpirun or the MPI module is not there.  --long: more ranks, all evaluation prompts, more placements and kills.
"""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import server

CHAT = "/v1/chat/completions"
LONG = "--long" in sys.argv
END_IDS = {"4065": -100, "4063": -100}  # never end: the answers get long enough to be interrupted
MODULE = os.path.join(server.BUILD, "src", "dist", "lignum-mpi.so")


def long_body(i, **more):
    return {"model": server.NAME, "messages": [{"role": "user", "content": "Tell me story number %d." % i}], "max_tokens": 120 if LONG else 80,
            "logit_bias": END_IDS, **more}


def words(seed, n):
    r = random.Random(seed)
    return " ".join(r.choice(("river", "stone", "lamp", "seven", "quiet", "garden", "north", "paper")) for _ in range(n))


class Group(server.Server):
    def __init__(self, n, *args, **kw):
        super().__init__("--ranks", str(n), "--threads", "1", *args, **kw)

    def ranks(self):
        """Process ids of the ranks: those below the launcher, in order of rank (mpirun starts them so)."""
        launcher = self.worker()
        try:
            with open("/proc/%d/task/%d/children" % (launcher, launcher)) as f:
                return [int(p) for p in f.read().split()]
        except (OSError, TypeError):
            return []


class Files(unittest.TestCase):
    def ask(self, s, seed, n_new):
        """The answer to a text of its own, and how many tokens of the prompt were there."""
        got = s.chat({"model": server.NAME, "messages": [{"role": "user", "content": words(seed, 500)}], "max_tokens": n_new, "temperature": 0,
                      "logit_bias": END_IDS})
        usage = got["usage"]
        return got["choices"][0]["message"]["content"], usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]

    def both(self, s):
        """Two texts at one time: each goes to a rank of its own."""
        return server.in_threads([lambda seed=seed: self.ask(s, seed, 60) for seed in (1, 2)])

    def test_a_new_group_finds_what_each_rank_has_kept(self):
        with tempfile.TemporaryDirectory() as d:
            folders = [os.path.join(d, "kept"), os.path.join(d, "kept", "rank-1")]
            with Group(2, "--cache-dir", folders[0]) as s:
                first = self.both(s)
                self.assertEqual(s.stop(), 0)
            for f in folders:
                self.assertEqual(os.stat(f).st_mode & 0o777, 0o700)
                self.assertTrue([x for x in os.listdir(f) if x.endswith(".kept")], f)
            self.assertTrue(all(n > 300 for _, n in first), first)
            with Group(2, "--cache-dir", folders[0]) as s:
                for seed in (2, 1):  # one by one, nobody is busy: only its files say where a text belongs
                    answer, n = self.ask(s, seed, 60)
                    self.assertEqual(answer, first[seed - 1][0])
                    self.assertLessEqual(n, 64, seed)
                self.assertGreater(s.metrics()["lignum_cache_files"], 1)
                self.assertEqual(s.stop(), 0)
                self.assertNotIn("error", s.errors())
            os.chmod(folders[1], 0o755)
            s = Group(2, "--cache-dir", folders[0], wait=False)
            self.assertNotEqual(s.process.wait(60), 0)
            self.assertIn("rank 1: cache folder %s: found mode 755, expected 700" % folders[1], s.errors())


def profile(path, seed):
    """A made-up load profile of the bundled model: 4 layers of 16 experts."""
    r = random.Random(seed)
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"load": [[int(1000 * r.random() ** 4) for _ in range(16)] for _ in range(4)]}, f)


class Answers(unittest.TestCase):
    alone = {}  # a row's prompt -> what one process answers

    def ask(self, s, rows):
        got = server.in_threads([lambda r=r: s.chat(server.chat_body(r, max_tokens=200)) for r in rows])
        for g in got:
            for call in g["choices"][0]["message"].get("tool_calls") or []:
                del call["id"]  # drawn anew for each answer
        return [(g["choices"], g["usage"]["completion_tokens"]) for g in got]

    def same_answers(self, n, rows, *args, one_by_one=False):
        new = [r for r in rows if str(r["prompt_ids"]) not in self.alone]
        if new:
            with server.Server() as s:
                self.alone.update(zip([str(r["prompt_ids"]) for r in new], self.ask(s, new)))
        with Group(n, *args) as s:
            self.assertEqual(len(s.ranks()), n)
            for row, answer in zip(rows, [self.ask(s, [r])[0] for r in rows] if one_by_one else self.ask(s, rows)):
                self.assertEqual(answer, self.alone[str(row["prompt_ids"])])
                self.assertEqual(answer[1], len(row["expected_ids"]), row["messages"])
            self.assertEqual(s.stop(), 0)
            self.assertNotIn("error", s.errors())

    def sampled(self, s):
        bodies = [long_body(i, temperature=1.0, seed=i, top_p=0.9, presence_penalty=0.4, max_tokens=40) for i in range(4)]
        bodies += [dict(b, logprobs=True, top_logprobs=3) for b in bodies[:1]]
        return [[c["message"] if not c["logprobs"] else (c["message"], c["logprobs"]) for c in s.chat(b)["choices"]] for b in bodies]

    def test_eval_prompts(self):
        rows = server.evals()
        with tempfile.TemporaryDirectory() as d:
            for n in ((1, 2, 3, 4, 8) if LONG else (3,)):
                path = os.path.join(d, "load%d.json" % n)
                profile(path, n)
                self.same_answers(n, rows if LONG else rows[::20], "--expert-load", path, "--spare-experts", str(n % 4))

    def test_orders_longer_than_a_short_message(self):
        """MPI brings a long one to its end only while its sender is inside MPI, also where he waits for shared memory."""
        self.same_answers(2, server.evals()[1::2])

    def test_other_exchanges(self):
        """Sums in another order, and rows in 16 bits: the answers are clear enough not to turn."""
        rows = server.evals()
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "load.json")
            for n in ((1, 2, 3, 4, 8) if LONG else (2,)):
                profile(path, 20 + n)
                for kind in (("reduce", "alltoall", "auto") if LONG else ("auto",)):
                    self.same_answers(n, rows if LONG else rows[5::40], "--exchange", kind, "--expert-load", path, "--spare-experts", str(n % 4),
                                      "--wire", "bf16" if n == 3 else "f32")

    def test_divided_prompts(self):
        """Prompts computed by all ranks: the answers of one process, also where the rest of a prompt is not divided any more."""
        rows = server.evals()
        for n in ((2, 3, 4, 8) if LONG else (3,)):
            self.same_answers(n, rows if LONG else rows[7::30], "--divide-prompts", "on", "--divide-ctx", "150" if n == 2 else "4096")
        long = dict(long_body(1, temperature=0, max_tokens=8), messages=[{"role": "user", "content": "word " * 900}])
        with server.Server() as s:
            alone = s.chat(long)["choices"]
        with Group(3, "--divide-prompts", "auto", "--divide-answers", "auto") as s:
            self.assertEqual(s.chat(long)["choices"], alone)
            self.assertRegex(s.errors(), "a prompt of 512 rows: dividing it")
            self.assertRegex(s.errors(), r"one user's row: .* slices add -?[0-9.]+ ms of messages, so (all ranks help|its rank is alone)")

    def test_divided_answers(self):
        """One user's answers with the help of all ranks: those of one process, also beside prompts that are divided and with other sums."""
        rows = server.evals()
        for n in ((2, 3, 4, 8) if LONG else (2, 3)):
            more = ("--divide-prompts", "on") if n == 3 else ("--exchange", "strict")
            self.same_answers(n, rows if LONG else rows[3::60], "--divide-answers", "on", *more, one_by_one=True)
            self.same_answers(n, rows if LONG else rows[3::60], "--divide-answers", "on", *more)

    def test_trace(self):
        """A file that says what each rank did when; messages of a chunk are under way while the next is combined."""
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "trace.json")
            with Group(2, "--exchange", "reduce", "--trace", path, env={"LG_LOG": "info"}) as s:
                s.chat(dict(long_body(1, temperature=0, max_tokens=2), messages=[{"role": "user", "content": "word " * 700}]))
                self.assertEqual(s.stop(), 0)
                self.assertRegex(s.errors(), "exchange reduce, rows in f32: 2 ranks on 1 machines; a message inside")
            with open(path, encoding="utf-8") as f:
                spans = [e for e in json.load(f)["traceEvents"] if e["ph"] == "X"]
            self.assertEqual({e["pid"] for e in spans}, {0, 1})
            step = max((e for e in spans if e["name"] == "step"), key=lambda e: e["args"]["n"])
            self.assertGreater(step["args"]["n"], 256)  # more than two chunks of one rank
            inside = [e for e in spans if e["pid"] == step["pid"] and step["ts"] <= e["ts"] and e["ts"] + e["dur"] <= step["ts"] + step["dur"]]
            combines = [e for e in inside if e["name"] == "combine"]
            sums = [e for e in inside if e["name"] == "sums"]
            self.assertEqual(len(combines), len(sums))
            self.assertEqual(len(combines) % 4, 0)  # as many in each layer
            for c in combines:
                if c["args"]["n"] > 0:  # the chunk before is posted when this one's combine begins
                    self.assertTrue(any(s["args"]["n"] == c["args"]["n"] - 1 and s["args"]["layer"] == c["args"]["layer"] and
                                        s["ts"] <= c["ts"] for s in sums), c)

    def test_trace_of_a_divided_prompt(self):
        """In every layer of a divided step each rank has its exchanges, in order, and states go home while the next products are made."""
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "trace.json")
            with Group(3, "--divide-prompts", "on", "--trace", path) as s:
                s.chat(dict(long_body(1, temperature=0, max_tokens=2), messages=[{"role": "user", "content": "word " * 700}]))
                self.assertEqual(s.stop(), 0)
            with open(path, encoding="utf-8") as f:
                spans = [e for e in json.load(f)["traceEvents"] if e["ph"] == "X"]
        for rank in range(3):
            own = sorted((e for e in spans if e["pid"] == rank), key=lambda e: (e["ts"], -e["dur"]))
            of = {name: [e for e in own if e["name"] == name] for name in ("heads there", "heads back", "keys", "states home", "experts")}
            n = len(of["keys"])  # one layer of attention, three of the recurrence
            self.assertGreater(n, 1)
            self.assertEqual([e["args"]["layer"] for e in of["keys"]], [3] * n)
            for name in ("heads there", "heads back", "states home"):
                self.assertEqual([e["args"]["layer"] for e in of[name]], [0, 1, 2] * n, name)
            for there, back, home in zip(of["heads there"], of["heads back"], of["states home"]):
                self.assertLessEqual(there["ts"] + there["dur"], back["ts"])
                self.assertLessEqual(back["ts"] + back["dur"], home["ts"])
                self.assertTrue(any(home["ts"] <= e["ts"] and e["ts"] + e["dur"] <= home["ts"] + home["dur"] and
                                    e["args"]["layer"] == home["args"]["layer"] for e in of["experts"]), home)

    def test_sampled_bits_and_expert_load(self):
        """Sampling and reported log-probabilities are those of one process; a profile that was measured can be used."""
        with server.Server() as s:
            alone = self.sampled(s)
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "load.json")
            with Group(2, "--expert-load-out", path) as s:
                self.assertEqual(self.sampled(s), alone)
                self.assertEqual(s.stop(), 0)
            with open(path, encoding="utf-8") as f:
                load = json.load(f)["load"]
            self.assertEqual([len(l) for l in load], [16] * 4)
            self.assertTrue(all(sum(l) == sum(load[0]) > 0 for l in load))  # each layer sees all rows
            with Group(3, "--expert-load", path, "--spare-experts", "2") as s:
                self.assertEqual(self.sampled(s), alone)


class Idle(unittest.TestCase):
    def sleeps(self, pid):
        """How often threads of a rank went to sleep since it began, and whether all sleep now."""
        n, asleep = 0, True
        for task in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/status" % (pid, task)) as f:
                lines = dict(line.rstrip("\n").split(":\t", 1) for line in f)
            n += int(lines["voluntary_ctxt_switches"])
            asleep = asleep and not lines["State"].startswith("R")
        return n, asleep

    def test_an_idle_group_sleeps(self):
        """Between requests too, a rank looks for messages a hundred times a second and sleeps meanwhile.

        On a busy machine sleeps are longer, not more, and a rank may wait for a processor after one; a rank that spins never sleeps."""
        with Group(3) as s:
            for _ in range(2 if LONG else 1):
                s.chat(long_body(1, temperature=0, max_tokens=4))
                time.sleep(1)
                looks, start = [], time.monotonic()
                while time.monotonic() < start + 3:
                    looks.append((time.monotonic(), [self.sleeps(p) for p in s.ranks()]))
                    time.sleep(0.03)
                (t0, first), (t1, last) = looks[0], looks[-1]
                for k in range(3):
                    self.assertLess((last[k][0] - first[k][0]) / (t1 - t0), 150, "sleeps of rank %d in a second" % k)
                    self.assertGreater(sum(ranks[k][1] for _, ranks in looks) / len(looks), 0.1, "looks that found rank %d asleep" % k)


class Memory(unittest.TestCase):
    def mapped(self, pid):
        """Kilobytes of packed weights that a process maps: resident, and its proportional share."""
        rss = pss = 0
        inside = False
        with open("/proc/%d/smaps" % pid, encoding="utf-8") as f:
            for line in f:
                if "-" in line.split(None, 1)[0]:
                    inside = ".lgpacked" in line
                elif inside and line.startswith("Rss:"):
                    rss += int(line.split()[1])
                elif inside and line.startswith("Pss:"):
                    pss += int(line.split()[1])
        return rss, pss

    def test_weights_are_there_once(self):
        """Ranks of one machine map the same file: each has it all, and pays its share."""
        with tempfile.TemporaryDirectory() as d, Group(3, "--pack-dir", d) as s:
            self.assertEqual(len(os.listdir(d)), 1)
            size = os.path.getsize(os.path.join(d, os.listdir(d)[0])) / 1024
            try:
                got = [self.mapped(p) for p in s.ranks()]
            except PermissionError as e:
                self.skipTest("other processes' maps cannot be read here: %s" % e)
            print("packed weights of %.0f KiB: resident and proportional KiB of each rank %s" % (size, got))
            for rss, pss in got:
                self.assertGreater(rss, 0.9 * (size - 2048))
                self.assertLess(pss, 0.4 * size)


class Loss(unittest.TestCase):
    """A rank ends, or stands still: every stream goes on with the same text."""

    def strike(self, s, rank, sig):
        """Signal a rank; how long until the whole group has ended, and until there is another one that answers."""
        pids, start = s.ranks(), time.monotonic()
        os.kill(pids[rank], sig)
        while any(server.alive(p) for p in pids):
            time.sleep(0.02)
        ended = time.monotonic() - start
        self.assertLess(ended, 10)
        return start, ended

    def wait_ready(self, s, start):
        while s.get("/ready")[0] != 200:
            self.assertLess(time.monotonic() - start, 60, s.errors())
            time.sleep(0.02)
        return time.monotonic() - start

    def interrupted(self, n, bodies, strikes, *args, prefill=False, again=()):
        """strikes: (events after which, rank, signal); prefill: the first one as soon as prompts are read, before all have answered
        (steps are slow then, so that it is seen in time).
        again: (rank, signal) of strikes that follow each first one as soon as the new group is there."""
        slow = {"exe": server.HOOKS, "env": {"LG_HOOK_SLOW_STEP": "150"}} if prefill else {}
        if prefill and not os.path.exists(server.HOOKS):
            self.skipTest("built without -Dtest_hooks")
        with server.Server() as s:
            alone = server.in_threads([lambda b=b: server.text_of(s.stream(CHAT, b)) for b in bodies])
        with Group(n, *args, **slow) as s:
            n_event, lock, marks = [0], threading.Lock(), list(strikes)
            begun, took, since = set(), [], []

            def hit(rank, sig):
                start, ended = self.strike(s, rank, sig)
                entry = [rank, sig.name, "ended %.2f s" % ended]
                for other, kind in again:
                    self.wait_ready(s, start)
                    second, ended = self.strike(s, other, kind)
                    entry += [other, kind.name, "ended %.2f s" % ended]
                    start = second
                entry.append("ready %.2f s" % self.wait_ready(s, start))
                took.append(entry)
                since.append((start, entry))

            def first_of_all():
                while s.metrics()["lignum_steps_total"] == 0:
                    time.sleep(0.002)
                with lock:
                    n_begun = len(begun)
                    hit(*marks.pop(0)[1:])
                print("%d of %d streams had begun to answer" % (n_begun, len(bodies)))
                self.assertLess(n_begun, len(bodies))

            def run(i, body):
                events = []
                for e in s.stream(CHAT, body):
                    events.append(e)
                    with lock:
                        begun.add(i)
                        n_event[0] += 1
                        for start, entry in since:
                            entry.append("next event %.2f s" % (time.monotonic() - start))
                        since.clear()
                        if marks and marks[0][0] is not None and n_event[0] >= marks[0][0]:
                            hit(*marks.pop(0)[1:])
                self.assertEqual(events[-1], "[DONE]")
                return server.text_of(events)
            jobs = [lambda i=i, b=b: run(i, b) for i, b in enumerate(bodies)]
            got = server.in_threads([first_of_all, *jobs] if prefill else jobs)[1 if prefill else 0:]
            self.assertEqual(marks, [])
            self.assertEqual(got, alone)
            for entry in took:
                print("%d ranks, %d streams:" % (n, len(bodies)), *entry)
            self.assertGreaterEqual(s.metrics()["lignum_worker_restarts_total"], len(strikes) * (1 + len(again)))
            self.assertNotIn("a resumed answer differs", s.errors())
            self.assertEqual(s.get("/ready")[0], 200)

    def streams(self, n, **more):
        return [long_body(i, temperature=0, **more) if i % 2 else long_body(i, temperature=1.1, seed=i, **more) for i in range(n)]

    def prompts(self, n):
        """Long ones, all different from the first word on."""
        return [dict(b, messages=[{"role": "user", "content": ("%d word " % i) * 300}], max_tokens=24) for i, b in enumerate(self.streams(n))]

    def test_killed_rank(self):
        self.interrupted(3, self.streams(4), [(80, 1, signal.SIGKILL), (200, 0, signal.SIGKILL)])

    def test_stopped_rank(self):
        self.interrupted(2, self.streams(3), [(60, 1, signal.SIGSTOP)], "--rank-timeout", "2")

    def test_rank_lost_beside_shared_memory(self):
        """Sums of a machine's ranks are read where each wrote them: nobody waits for parts of a rank that stands still, or is no more."""
        self.interrupted(3, self.streams(3), [(60, 1, signal.SIGSTOP), (120, 2, signal.SIGKILL)], "--rank-timeout", "2", "--exchange", "reduce")

    def test_killed_while_prompts_are_read(self):
        self.interrupted(2, self.prompts(12), [(None, 1, signal.SIGKILL)], prefill=True)

    @unittest.skipUnless(LONG, "32 streams over killed groups take minutes (--long)")
    def test_many_streams(self):
        self.interrupted(4, self.streams(32),
                         [(300, 3, signal.SIGKILL), (900, 2, signal.SIGKILL), (1500, 1, signal.SIGSTOP), (2500, 0, signal.SIGKILL)])

    @unittest.skipUnless(LONG, "32 streams over killed groups take minutes (--long)")
    def test_many_streams_twice_in_a_row(self):
        self.interrupted(4, self.streams(32), [(400, 1, signal.SIGKILL), (1200, 3, signal.SIGSTOP)], "--rank-timeout", "4",
                         again=[(2, signal.SIGKILL)])

    @unittest.skipUnless(LONG, "32 streams over killed groups take minutes (--long)")
    def test_many_streams_while_prompts_are_read(self):
        for sig in (signal.SIGKILL, signal.SIGSTOP):
            self.interrupted(4, self.prompts(32), [(None, 2, sig)], "--rank-timeout", "4", prefill=True)
        self.interrupted(4, self.prompts(32), [(None, 3, signal.SIGKILL)], prefill=True, again=[(0, signal.SIGKILL)])

    def test_nothing_is_left_behind(self):
        before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
        with Group(2) as s:
            pids, gateway = s.ranks(), s.process.pid
            s.stop(signal.SIGKILL)  # the gateway itself
            until = time.monotonic() + 10
            while any(os.path.exists("/proc/%d" % p) for p in pids) and time.monotonic() < until:
                time.sleep(0.02)
            self.assertFalse(any(os.path.exists("/proc/%d" % p) for p in pids))
        if not os.path.isdir("/dev/shm"):
            return

        def left():
            return {n for n in set(os.listdir("/dev/shm")) - before if n.startswith("lignum-%d-" % gateway) or n.startswith("lignum-%d-" % s.process.pid)}
        self.assertEqual(len(left()), 1)  # of the gateway that was killed
        with Group(2) as s:
            self.assertEqual(len(left()), 1)  # its own
            s.stop(signal.SIGTERM)
        self.assertEqual(left(), set())


class Refused(unittest.TestCase):
    def start(self, *args, model=server.MODEL):
        with self.assertRaises(AssertionError) as e:
            Group(2, *args, model=model)
        return str(e.exception)

    def test_what_cannot_be_shared(self):
        self.assertIn("no experts", self.start(model=os.path.join(server.SOURCE, "tests", "data", "models", "tiny-dense")))

    def test_trace_that_cannot_be_written(self):
        self.assertIn("/nowhere/trace.json: No such file", self.start("--trace", "/nowhere/trace.json"))

    def test_options_of_ranks_without_ranks(self):
        for option, value in (("--trace", "t.json"), ("--wire", "q8"), ("--exchange", "auto"), ("--overlap", "off"), ("--rank-timeout", "9"),
                              ("--divide-prompts", "on"), ("--divide-ctx", "9"), ("--divide-answers", "on"), ("--spare-experts", "1"), ("--hold-prompts", "1"), ("--expert-load", "f"), ("--expert-load-out", "f")):
            r = subprocess.run([server.LIGNUM, "serve", "--model", server.MODEL, option, value], capture_output=True, text=True, timeout=60)
            self.assertEqual((r.returncode, "%s goes with --ranks" % option in r.stderr), (2, True), r.stderr)

    def test_wrong_values(self):
        """Named by the command that was called, before anything starts."""
        for option, value, expected in (("--wire", "f64", "expected f32, bf16 or q8"), ("--exchange", "", "expected strict, reduce, alltoall or auto"),
                                        ("--overlap", "yes", "expected on or off"), ("--divide-prompts", "1", "expected auto, on or off"),
                                        ("--divide-answers", "all", "expected auto, on or off"),
                                        ("--divide-ctx", "0", "expected a whole number from 1 to 4294967295"),
                                        ("--rank-timeout", "0", "expected a whole number from 1 to 86400")):
            r = subprocess.run([server.LIGNUM, "serve", "--model", server.MODEL, "--ranks", "2", option, value], capture_output=True, text=True,
                               timeout=60)
            self.assertEqual(r.returncode, 2, r.stderr)
            self.assertIn("lignum serve: %s: " % option, r.stderr)
            self.assertIn(expected, r.stderr)

    def test_bad_profile(self):
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "load.json")
            with open(path, "w", encoding="utf-8") as f:
                json.dump({"load": [[1] * 16] * 3}, f)
            self.assertIn("found 3 layers, expected 4", self.start("--expert-load", path))


if __name__ == "__main__":
    if not shutil.which("mpirun"):
        server.skip("mpirun is not installed (openmpi-bin)")
    if not os.path.exists(MODULE):
        server.skip("this build has no MPI module (libopenmpi-dev)")
    sys.argv = [a for a in sys.argv if a != "--long"]
    unittest.main(verbosity=2)
