"""What the operator of a node demands of a run: keys of the node config, which no server changes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from fedapps.base.options import matches, option, option_fields, parse_options, split_names

from .data import is_simulated

#: Keys that limit the mechanism that the key ``dp`` demands.
_OF_MECHANISM = ("dp-noise", "dp-clip", "dp-delta", "max-epsilon", "max-releases")


class RulesError(RuntimeError):
    """A run asks for more than the node's operator allows. The text has keys and limits, and no data of the node."""


@dataclass(frozen=True)
class NodeRules:
    """The rules of a node's operator. Each field is a key of the node config.

    Parameters
    ----------
    dp : "none" or "local"
        With "local", the node takes part in runs with ``dp = "local"`` alone, and counts the updates that leave it.
    dp_noise, dp_clip : float
        The smallest noise multiplier and the largest clipping norm of such a run.
    dp_delta, max_epsilon, max_releases
        The budget of all updates that ever leave the node, over all runs (:mod:`fedapps.app.node_ledger`).
    may_leave : str
        Glob patterns, separated by commas, of what may leave beside the shared arrays: metrics, records, ``groups`` of
        the profile and ``num-examples``. Empty: what the method declares; under ``dp = "local"`` nothing.
    min_count : int
        At least 1: the fewest examples that a mean over examples, such as a prototype, must have to leave the node. 3 is
        the usual minimum frequency of disclosure control (Hundepool et al., Statistical Disclosure Control, 2012).
    """

    dp: str = option("none", "the privacy mechanism that a run must have; none = any run", choices=["none", "local"])
    dp_noise: float = option(1.0, "the smallest dp-noise of a run", above=0)
    dp_clip: float = option(0.0, "the largest dp-clip of a run; 0 = any", minimum=0)
    dp_delta: float = option(1e-5, "the delta of max-epsilon", above=0, maximum=0.5)
    max_epsilon: float = option(0.0, "the largest epsilon of all updates that ever leave the node; 0 = any", minimum=0)
    max_releases: int = option(0, "the most updates that ever leave the node; 0 = any number", minimum=0)
    may_leave: str = option(
        "",
        "patterns of the metrics, records, groups and num-examples that may leave, exactly and without noise; empty = "
        "what the method declares, and under dp = local nothing",
    )
    min_count: int = option(3, "the fewest examples of a mean, such as a prototype, that leaves the node", minimum=1)

    @classmethod
    def of(cls, node_config: Mapping[str, Any]) -> Self:
        """The rules in a node config. A simulated node may send a mean of one example unless its config says otherwise.

        Raises
        ------
        ValueError
            A value has another type or is out of range, or a limit of the mechanism is given without ``dp``.
        """
        values = {key: node_config[key] for key in option_fields(cls) if key in node_config}
        arguments, errors = parse_options(cls, values, "node config ")
        rules = cls(**arguments)
        if rules.dp == "none" and not errors and (limits := [key for key in _OF_MECHANISM if key in values]):
            errors = [f'node config {", ".join(limits)}: needs dp = "local", the mechanism that it limits']
        if errors:
            raise ValueError("; ".join(errors))
        return replace(rules, min_count=1) if is_simulated(node_config) and "min-count" not in values else rules

    def lets_out(self, name: str, *, otherwise: bool) -> bool:
        """Whether a metric, a record or a part of the profile may leave; ``otherwise`` where ``may_leave`` is empty."""
        patterns = split_names(self.may_leave)
        return matches(name, patterns) if patterns else otherwise

    def check_run(self, dp: str, noise: float, clip: float, *, seeded: bool) -> None:
        """Check the keys ``dp``, ``dp-noise``, ``dp-clip`` and ``dp-seeded`` of a run.

        Raises
        ------
        RulesError
            The run protects less than the operator demands.
        """
        if self.dp == "none":
            return
        wrong = []
        if dp != self.dp:
            wrong.append(f"dp = {dp!r}: must be {self.dp!r}")
        if noise < self.dp_noise:
            wrong.append(f"dp-noise = {noise:g}: must be at least {self.dp_noise:g}")
        if self.dp_clip and clip > self.dp_clip:
            wrong.append(f"dp-clip = {clip:g}: must be at most {self.dp_clip:g}")
        if seeded:
            wrong.append("dp-seeded = true: must be false, because the seed reveals the noise")
        if wrong:
            raise RulesError(f"the node config of this node demands more of the run: {'; '.join(wrong)}")
