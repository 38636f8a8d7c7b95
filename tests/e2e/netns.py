#!/usr/bin/env python3
"""netns.py - machines that are network namespaces, for tests of ranks over TCP.

Each has its own hostname and folder for temporary files, or MPI would take them for one machine and use shared memory.  Between them is a
bridge of the kernel, or link_relay.c, which has a delay too.  Needs root.  As a program: netns.py N[@CABLE] COMMAND... runs COMMAND on the
first of N machines, with "@HOSTS" replaced by a hostfile of two slots on each and OMPI_MCA_plm_rsh_agent set, so that mpirun reaches the
others.  CABLE, both ways: a rate as tc has it (800mbit), or of the relay MB/s,US_OF_DELAY[,US_OF_JITTER[,PER_CENT_LOST[,US_OF_QUEUE]]]; e.g. the bench of
reduce-scatters:

  tests/e2e/netns.py 2@100,200 mpirun --allow-run-as-root --oversubscribe --bind-to none --hostfile @HOSTS -n 4 \\
      --mca btl self,vader,tcp --mca btl_tcp_if_include 10.231.7.0/24 -x LG_MODULE_DIR build/tests/bench/bench_reduce
"""
import os
import shutil
import signal
import subprocess
import sys
import tempfile

NETWORK = "10.231.7"
OTHER = "10.231.8"  # of other_network
BUILD = os.environ.get("LG_BUILD_DIR", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "build"))
RELAY = os.path.join(BUILD, "tests", "e2e", "link_relay")
AGENT = """#!/bin/sh
# Reaches a machine: AGENT ADDRESS COMMAND...
node="%(name)s${1##*.}"
shift
[ ! -e "%(dir)s/$node.cut" ] || exit 255 # a shell would not get there
exec ip netns exec "$node" unshare -u sh -c "hostname $node; export TMPDIR=%(dir)s/$node; $*"
"""


def ip(*args):
    subprocess.run(["ip", *args], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def cut(name, i, down=True, folder=None):
    """Take the cable of machine i out, or put it back; from any machine.  folder, that of the machines: the agent does not reach it then."""
    ip("-n", name + str(i), "link", "set", "eth0", "down" if down else "up")
    if folder and down:
        with open(os.path.join(folder, name + str(i) + ".cut"), "w", encoding="utf-8"):
            pass
    elif folder:
        os.remove(os.path.join(folder, name + str(i) + ".cut"))


def sent(interface):
    """Bytes that this machine has sent by an interface."""
    with open("/proc/self/net/dev", encoding="ascii") as f:
        return next(int(line.split(":")[1].split()[8]) for line in f if line.strip().startswith(interface + ":"))


def relay_why_not():
    """Why there is no relay here, or None."""
    if not os.path.exists(RELAY):
        return "%s is not built" % RELAY
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError as e:
        return "/dev/net/tun: %s" % e.strerror
    return None


class Machines:
    """n machines; their addresses end in 1 ... n.  cable: as above."""

    def __init__(self, n, slots=2, cable=None):
        self.cable, self.relay, self.more_links = cable, None, []
        self.n, self.name = n, "lg%d-" % (os.getpid() % 100000)
        self.bridge = "lgb%d" % (os.getpid() % 100000)
        self.dir = tempfile.mkdtemp(prefix="lignum-net-")
        self.hosts, self.agent = os.path.join(self.dir, "hosts"), os.path.join(self.dir, "agent")
        self.interface = NETWORK + ".0/24"
        try:
            if cable and "," in cable:
                self.start_relay(cable.split(","))
            else:
                ip("link", "add", self.bridge, "type", "bridge")
                ip("link", "set", self.bridge, "up")
                for i in range(1, n + 1):
                    self.add(i)
        except (subprocess.CalledProcessError, OSError):
            self.close()
            raise
        with open(self.hosts, "w", encoding="utf-8") as f:
            f.writelines("%s.%d slots=%d\n" % (NETWORK, i, slots) for i in range(1, n + 1))
        with open(self.agent, "w", encoding="utf-8") as f:
            f.write(AGENT % {"name": self.name, "dir": self.dir})
        os.chmod(self.agent, 0o755)

    def add_space(self, i):
        node = self.name + str(i)
        os.mkdir(os.path.join(self.dir, node))
        ip("netns", "add", node)
        ip("-n", node, "link", "set", "lo", "up")
        return node

    def other_network(self):
        """A second network between the machines, eth1, that nobody was told to use."""
        bridge = self.bridge + "o"
        ip("link", "add", bridge, "type", "bridge")
        ip("link", "set", bridge, "up")
        self.more_links.append(bridge)
        for i in range(1, self.n + 1):
            node, link = self.name + str(i), "%s%d" % (bridge, i)
            ip("link", "add", link, "type", "veth", "peer", "name", "eth1", "netns", node)
            ip("link", "set", link, "master", bridge, "up")
            ip("-n", node, "link", "set", "eth1", "addrgenmode", "none")  # else it greets by itself
            ip("-n", node, "addr", "add", "%s.%d/24" % (OTHER, i), "dev", "eth1")
            ip("-n", node, "link", "set", "eth1", "up")

    def start_relay(self, numbers):
        nodes = [self.add_space(i) for i in range(1, self.n + 1)]
        args = [a for pair in zip(("--rate", "--delay", "--jitter", "--loss", "--queue"), numbers) for a in pair]
        self.relay = subprocess.Popen([RELAY, *args, "--network", NETWORK, *nodes], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.relay.stdout.readline() != "ready\n":
            raise OSError("the relay did not start (status %d)" % self.relay.wait())

    def tell(self, command):
        """A command of the relay; its answer."""
        self.relay.stdin.write(command + "\n")
        self.relay.stdin.flush()
        return self.relay.stdout.readline().strip()

    def add(self, i):
        node, link = self.add_space(i), "%sl%d" % (self.bridge, i)
        ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", node)
        ip("link", "set", link, "master", self.bridge, "up")
        ip("-n", node, "addr", "add", "%s.%d/24" % (NETWORK, i), "dev", "eth0")
        ip("-n", node, "link", "set", "eth0", "up")
        if self.cable:
            shape = ["root", "tbf", "rate", self.cable, "burst", "128k", "latency", "50ms"]
            subprocess.run(["tc", "qdisc", "add", "dev", link, *shape], check=True, stderr=subprocess.PIPE)
            subprocess.run(["tc", "-n", node, "qdisc", "add", "dev", "eth0", *shape], check=True, stderr=subprocess.PIPE)

    def first(self, command):
        """The command line that runs `command` on machine 1."""
        node = self.name + "1"
        return ["ip", "netns", "exec", node, "unshare", "-u", "sh", "-c", 'hostname "$0"; exec "$@"', node, *command]

    def env(self):
        return {"OMPI_MCA_plm_rsh_agent": self.agent, "TMPDIR": os.path.join(self.dir, self.name + "1")}

    def end_all(self):
        """End what still runs on the machines: a launcher whose network goes away would wait for ever."""
        for i in range(1, self.n + 1):
            pids = subprocess.run(["ip", "netns", "pids", self.name + str(i)], capture_output=True, text=True, check=False).stdout
            for pid in pids.split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def close(self):
        self.end_all()
        if self.relay:
            self.relay.stdin.close()
            self.relay.wait()
            self.relay.stdout.close()
        for i in range(1, self.n + 1):
            subprocess.run(["ip", "netns", "del", self.name + str(i)], stderr=subprocess.DEVNULL, check=False)
        for link in (self.bridge, *self.more_links):
            subprocess.run(["ip", "link", "del", link], stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(self.dir, ignore_errors=True)


def why_not():
    """Why machines cannot be made here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not shutil.which("ip") or not shutil.which("unshare"):
        return "ip or unshare is not installed"
    try:
        Machines(1).close()
    except (subprocess.CalledProcessError, OSError) as e:
        return "network namespaces are not permitted: %s" % (getattr(e, "stderr", None) or e)
    return None


if __name__ == "__main__":
    why = why_not()
    if why:
        print("SKIP: " + why)
        sys.exit(77)
    number, _, cable = sys.argv[1].partition("@")
    if "," in cable and relay_why_not():
        print("SKIP: no cable with a delay: " + relay_why_not())
        sys.exit(77)
    m = Machines(int(number), cable=cable or None)
    try:
        command = [m.hosts if a == "@HOSTS" else a for a in sys.argv[2:]]
        status = subprocess.run(m.first(command), env={**os.environ, **m.env()}, check=False).returncode
        if m.relay:
            print("relay: packets, bytes, dropped, lost: " + m.tell("count")[6:], file=sys.stderr)
    finally:
        m.close()
    sys.exit(status)
