"""Refuse sizes of tensor, pipeline, data and context parallelism that do not fit, with the arithmetic.

What vLLM refuses is that of its sources at 0.32.0: ParallelConfig, EngineArgs.create_engine_config.
"""

from __future__ import annotations

from kimi_nb.core.errors import PlanError
from kimi_nb.params import schema
from kimi_nb.plan.roles import HYBRID, RolePlan


def check(role: RolePlan, hardware: schema.Hardware, per_rank: bool, heads: int) -> None:
    """Refuse the sizes of a role that its nodes, its model's ``heads`` or vLLM do not allow.

    ``per_rank`` is whether each rank is a process of its own. Raises PlanError with the arithmetic.
    """
    there, title = hardware.devices.count, hardware.title
    if heads % role.tp:
        raise PlanError(
            f"{role.role}: tp {role.tp} does not divide the {heads} attention heads "
            f"({heads} / {role.tp} = {heads / role.tp:.2f}); "
            f"allowed: {_divisors(heads)}."
        )
    _check_context_sizes(role)
    if role.pp > 1 and per_rank:
        raise PlanError(
            f"{role.role}: pp {role.pp} where each rank is one process that launch_online_dp.py "
            f"starts: it counts tp devices for a rank. Take {role.role}.pp away, or choose a recipe "
            "with one process on each node."
        )
    if role.hybrid:
        _check_hybrid(role, there, per_rank)
    if role.world > there:
        if per_rank:
            raise _spans_nodes(role, hardware, heads)
        if role.dp * role.world != role.nodes * there or role.world % there:
            raise PlanError(
                f"{role.role}: {_product(role)} is more than the {there} devices of one {title}. Over "
                f"nodes it works with all devices of each: {_sizes(role)} = a multiple of {there}, "
                f"and dp x {_sizes(role)} = nodes x {there}; found dp {role.dp} x {role.world} = "
                f"{role.dp * role.world} and {role.nodes} x {there} = {role.nodes * there}."
            )
        return
    if role.dp % role.nodes:
        raise PlanError(
            f"{role.role}: dp {role.dp} over {role.nodes} nodes is "
            f"{role.dp / role.nodes:.2f} ranks a node; dp must be a multiple of "
            f"{role.nodes}."
        )
    local = role.dp // role.nodes
    if local * role.world > there:
        raise PlanError(
            f"{role.role}: dp {role.dp} over {role.nodes} node{'s' * (role.nodes > 1)} "
            f"is {local} ranks a node; {local} ranks x {_factors(role)} = "
            f"{local * role.world} devices, one {title} has {there}."
        )


def _check_context_sizes(role: RolePlan) -> None:
    """Refuse sizes of context parallelism that ParallelConfig of vLLM 0.32.0 refuses."""
    tp, pcp, dcp = role.tp, role.pcp, role.dcp
    where = role.settings.flags.get("decode-context-parallel-size")
    if where is None:
        return
    if pcp == 1 and tp % dcp:
        raise PlanError(
            f"{role.role}: decode-context-parallel-size {dcp} does not divide "
            f"tp {tp} ({where.source}): it splits the ranks of one tensor "
            "parallel group."
        )
    if pcp > 1 and dcp not in (1, pcp, tp * pcp):
        raise PlanError(
            f"{role.role}: decode-context-parallel-size {dcp} ({where.source}) beside "
            f"prefill-context-parallel-size {pcp} and tp {tp}: vLLM allows 1, {pcp} and {tp * pcp} "
            "(tp x pcp)."
        )


def _check_hybrid(role: RolePlan, there: int, per_rank: bool) -> None:
    """Refuse --data-parallel-hybrid-lb where vLLM refuses it, or silently does something else."""
    why = ""
    if per_rank:
        why = (
            "each rank is a process with --data-parallel-rank and its own API, and vLLM refuses two "
            "ways of balancing at once"
        )
    elif role.world > there:
        why = (
            f"a rank of {role.world} devices spans nodes, of which only the first answers for the "
            "others"
        )
    elif role.nodes == 1:
        why = "a group on one node has one API anyway"
    if why:
        raise PlanError(
            f"{role.role}: {HYBRID} lets every node of a group answer for its own ranks; here {why}. "
            f"Take it away (--set {role.role + '.' if role.role != 'mixed' else ''}{HYBRID}=null)."
        )


def _sizes(role: RolePlan) -> str:
    """Return what the devices of a rank are the product of, such as "tp x pp"."""
    return " x ".join(["tp", *(["pp"] if role.pp > 1 else []), *(["pcp"] if role.pcp > 1 else [])])


def _factors(role: RolePlan) -> str:
    """Return the devices of a rank as factors, such as "tp 8 x pp 2"."""
    more = (("pp", role.pp), ("pcp", role.pcp))
    return " x ".join([f"tp {role.tp}", *(f"{name} {size}" for name, size in more if size > 1)])


def _product(role: RolePlan) -> str:
    """Return the devices of a rank, such as "tp 16", or "tp 8 x pp 2 = 16"."""
    return _factors(role) + (f" = {role.world}" if role.world != role.tp else "")


def _spans_nodes(role: RolePlan, hardware: schema.Hardware, heads: int) -> PlanError:
    """Return the refusal of a rank over several nodes where each rank is a process."""
    there = hardware.devices.count
    allowed = [n for n in range(1, there + 1) if heads % n == 0 and n * role.pcp <= there]
    return PlanError(
        f"{role.role}: {_product(role)} is more than the {there} devices of one {hardware.title}, and "
        "here each rank is one process on one node, which launch_online_dp.py starts; "
        f"allowed: {', '.join(map(str, allowed))}. Lower {role.role}.tp, and raise "
        f"{role.role}.dp to use more nodes."
    )


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)
