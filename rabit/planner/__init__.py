"""Plans collectives for a network whose links differ: the provable optimum, and trees that reach it.

    from rabit.planner import Plan, Topology
    plan = Plan(Topology.from_file("topology.json"))
    print(plan.allreduce, plan.trees, plan.order)

Needs no job and no engine. `rabitrun plan` is the command.
"""

from rabit.planner.graph import Topology
from rabit.planner.plan import Plan, TreePair
from rabit.planner.trees import Tree

__all__ = ["Plan", "Topology", "Tree", "TreePair"]
