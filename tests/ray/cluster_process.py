"""A Ray cluster of several raylets on this machine, in a process of its own; told what to do by lines of JSON.

`python -m tests.ray.cluster_process CPUS...`: a node for each number of CPUs, the first being the head. Answers, lines
of JSON too, say what was asked for, or what went wrong. Only they are written to stdout: what Ray says there, from
threads of its own, goes to stderr.
"""

import contextlib
import json
import os
import sys
import time

import ray
from ray._raylet import GcsClient
from ray.cluster_utils import Cluster
from ray.core.generated.autoscaler_pb2 import DrainNodeReason
from ray.exceptions import RayActorError

from tests.support.eventually import eventually

# By its defaults Ray takes many seconds to notice that a node is gone.
NOTICES_SOON = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
}


class Commands:
    """What the lines name. Each node has as many GPUs as CPUs, which are only numbers: executors compute on CPUs."""

    def __init__(self, cpus):
        head = {"num_cpus": cpus[0], "num_gpus": cpus[0], "include_dashboard": False, "_system_config": NOTICES_SOON}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self.cluster.head_node, *(self._new_node(count) for count in cpus[1:])]
        ray.init(address=self.cluster.address, namespace="baton-baton", log_to_driver=False)

    def address(self):
        """Where the cluster is."""
        return self.cluster.address

    def add_node(self, cpus):
        """One more node. Returns its number."""
        self.nodes.append(self._new_node(cpus))
        return len(self.nodes) - 1

    def _new_node(self, cpus):
        return self.cluster.add_node(num_cpus=cpus, num_gpus=cpus)

    def node_ids(self):
        """Ray's ids of the nodes, also of those that are gone."""
        return [node.node_id for node in self.nodes]

    def kill_node(self, number):
        """SIGKILL a raylet, and with it all that Ray runs there."""
        self.nodes[number].kill_raylet(check_alive=False)

    def drain_node(self, number, seconds):
        """Give notice that a node will be preempted."""
        deadline_ms = (time.time_ns() // 10**6) + int(seconds * 1000)
        reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        client, node_id = GcsClient(self.cluster.address), self.nodes[number].node_id
        accepted, why = client.drain_node(node_id, reason, "a test", deadline_ms)
        assert accepted, why

    def actors(self):
        """The names of the fleet's actors."""
        return sorted(ray.util.list_named_actors())

    def kill_actor(self, name):
        """End an actor as a crash would; Ray restarts those that it is to."""
        ray.kill(ray.get_actor(name), no_restart=False)

    def report(self, name):
        """What a host says of itself."""
        report = ray.get(ray.get_actor(name).report.remote(), timeout=20)
        return {key: getattr(value, "value", value) for key, value in vars(report).items()}

    def reports(self, prefix):
        """What the hosts say whose names begin so, by name. One that ends meanwhile is left out."""
        reports = {}
        for name in self.actors():
            if name.startswith(prefix):
                with contextlib.suppress(RayActorError, ValueError):
                    reports[name] = self.report(name)
        return reports

    def view(self):
        """The manager's, in short."""
        view = eventually(self._view_if_there)
        return {
            "is_complete": view.is_complete,
            "url": view.url,
            "wanted": view.wanted,
            "events": [[event.at, event.words] for event in view.events],
        }

    def _view_if_there(self):
        """None while Ray restarts the manager."""
        names = [name for name in self.actors() if name.startswith("manager-r")]
        try:
            manager = ray.get_actor(max(names, key=lambda name: int(name.removeprefix("manager-r"))))
            return ray.get(manager.view.remote(), timeout=20)
        except (RayActorError, ValueError):
            return None


def main():
    """Carry out lines until there are no more."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        serve(Commands([int(count) for count in sys.argv[1:]]), answers)


def serve(commands, answers):
    """The same, for a cluster that runs."""
    print(json.dumps({"answer": None}), file=answers, flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = {"answer": getattr(commands, name)(*arguments)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    ray.shutdown()
    commands.cluster.shutdown()


if __name__ == "__main__":
    main()
