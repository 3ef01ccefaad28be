"""Names of algorithms, and what the field calls them: known without torch."""

from harness.base.errors import meant

SHORT_NAMES = ("async", "averaged", "sync", "averaging", "block-momentum", "diloco")
"""Short names, in the order of `methods.NAMES`."""

ALIASES = {
    "asgd": "async",
    "bmuf": "block-momentum",
    "dcasgd": "DelayCompensated",
    "ddp": "sync",
    "downpour": "async",
    "easgd": "Easgd",
    "fedavg": "averaging",
    "fedbuff": "FedBuff",
    "hogwild": "async",
    "localsgd": "averaging",
}
"""Names of the field, without hyphens and in small letters, and what they are called here."""


def resolve(called: str) -> str:
    """What a name of the field is called here."""
    plain = called.lower().replace("-", "").replace("_", "")
    return ALIASES.get(plain) or meant(called, SHORT_NAMES) or called


def names_algorithm(name: str) -> bool:
    """Whether a name, with or without a number after a colon, is one of these."""
    return resolve(name.partition(":")[0]) in {*SHORT_NAMES, *ALIASES.values()}
