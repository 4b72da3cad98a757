"""A local Ray cluster of two nodes: a head with one CPU, and a node with two CPUs and (it says) a GPU.

Prints its address as JSON; "kill" on standard input kills every process of the second node as a power cut would; the
end of standard input ends it all.
"""

import json
import os
import signal
import sys

from ray.cluster_utils import Cluster

from samebits.server.jobs.warden import processes

MEMORY = 80 << 20
cluster = Cluster(
    initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, "object_store_memory": MEMORY}
)
node = cluster.add_node(num_cpus=2, num_gpus=1, object_store_memory=MEMORY)
print(json.dumps({"address": cluster.address}), flush=True)
for line in sys.stdin:
    if line.strip() == "kill":
        raylet = node.all_processes["raylet"][0].process.pid
        parents, family = processes(), {raylet}
        for _ in range(5):
            family |= {pid for pid, parent in parents.items() if parent in family}
        for pid in sorted(family):
            os.kill(pid, signal.SIGKILL)
        print(json.dumps({"killed": sorted(family)}), flush=True)
cluster.shutdown()
